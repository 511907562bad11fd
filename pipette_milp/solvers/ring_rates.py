"""The best rate a ring over many nodes can have: one that has to leave the pod, or to visit slow nodes.

A ring runs at the rate of its slowest edge. If all its edges have at least some rate, its nodes lie in one
strongly connected component of the graph of such links; so a ring over ``m`` nodes is no faster than the
largest rate at which a component of ``m`` nodes is left (bottleneck argument; directed, as links are).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.link_extremes import known_fact, origin_of


def best_ring_rate(tables: CostTables, fewest_nodes: int) -> float:
    """bytes/s that every edge of some ring over at least so many nodes may have, with nothing else on it.

    Args:
        fewest_nodes: at least 2.

    Returns:
        inf where there are too few nodes for such a ring.
    """
    arrays = (tables.pair_bytes_per_s, tables.egress_bytes_per_s, tables.ingress_bytes_per_s)
    origins = [origin_of(array) for array in arrays]
    factors = {factor for _, factor in origins}
    if len(factors) > 1:
        return ring_rate(*arrays, fewest_nodes)
    pair, egress, ingress = (origin for origin, _ in origins)
    name = ("ring", fewest_nodes, egress.tobytes(), ingress.tobytes())
    return factors.pop() * known_fact(pair, name, lambda: ring_rate(pair, egress, ingress, fewest_nodes))


def ring_rate(pair: Array, egress: Array, ingress: Array, fewest_nodes: int) -> float:
    """See `best_ring_rate`."""
    size = len(pair)
    if fewest_nodes > size:
        return float("inf")
    rate = np.minimum(np.minimum(pair, egress[:, None]), ingress[None, :])
    levels = np.unique(rate[~np.eye(size, dtype=bool)])
    np.fill_diagonal(rate, -1.0)
    # at the least level all nodes are linked
    first, last = 0, len(levels) - 1
    while first < last:
        middle = (first + last + 1) // 2
        if has_component(rate >= levels[middle], fewest_nodes):
            first = middle
        else:
            last = middle - 1
    return float(levels[first])


def has_component(linked: NDArray[np.bool_], nodes: int) -> bool:
    """Whether a directed graph has a strongly connected component of at least so many nodes."""
    left: NDArray[np.bool_] = np.asarray(linked.any(axis=0) & linked.any(axis=1))
    while int(left.sum()) >= nodes:
        start = int(np.argmax(left))
        component = _reached(linked, start, left) & _reached(linked.T, start, left)
        if int(component.sum()) >= nodes:
            return True
        left &= ~component
    return False


def _reached(linked: NDArray[np.bool_], start: int, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[N] nodes on a path from ``start`` through allowed nodes, itself among them."""
    seen = np.zeros(len(linked), dtype=bool)
    seen[start] = True
    frontier: IntArray = np.array([start])
    while len(frontier):
        found = linked[frontier].any(axis=0) & allowed & ~seen
        seen |= found
        frontier = np.flatnonzero(found)
    return seen
