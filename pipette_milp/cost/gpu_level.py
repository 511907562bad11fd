"""GPU-level placement: what a plan costs where the GPUs of a node are not joined alike.

A *cell* (tensor group) then is not just a place on a node but ``t`` GPUs of it in the order of their tensor
ranks, ``gpus_of_cell[s, z, i]``. Three things depend on which ones:

* the cell's collectives, and with them its forward and backward times, by what a ring over its GPUs
  attains; groups of equal bandwidth form a *class*, fastest first, `GpuLevel.tasks` has the times of each;
* a hop, or embedding exchange, between cells of one node: rank ``i`` sends to rank ``i`` over the link of
  that pair, and the slowest rank counts;
* the part of a gradient ring inside a node: a ring over the GPUs of rank ``i`` of all cells of the stage on
  the node, the slowest of the ``t`` rings counts.

Everything between nodes stays as it is. The scalar fields of `CostTables` hold the best case of each of these
(fastest class, best pair, best ring), so every bound and every search that looks at nodes alone is a
relaxation of the problem with GPUs (monotone lemma, formulation section 3), and its lower bounds hold.

The other direction, from nodes to GPUs, is a search inside each node: see
`pipette_milp.solvers.arrangements`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cluster import Cluster
from pipette_milp.cost.wiring import Wiring, mesh_wiring, switch_wiring


@dataclass(frozen=True)
class TaskTimes:
    """Times of a cell's tasks; fields as in `CostTables`."""

    forward_layer_s: float
    backward_layer_s: float
    weight_gradient_layer_s: float
    forward_extra_s: Array
    """[V]"""
    backward_extra_s: Array
    """[V]"""
    weight_gradient_extra_s: Array
    """[V]"""
    hop_gather_s: float
    """All-gather of what the cell receives, where the framework scatters hops."""


@dataclass(frozen=True)
class GpuLevel:
    """What `CostTables` has for nodes, by GPU."""

    wiring_of_node: IntArray
    """[N] index into `wirings`."""
    wirings: tuple[Wiring, ...]
    group_bytes_per_s: Array
    """[R] what tensor groups attain in their collectives, each class once, fastest first."""
    tasks: tuple[TaskTimes, ...]
    """[R] times of a cell of each class."""

    def wiring(self, node: int) -> Wiring:
        """How the GPUs of a node are joined."""
        return self.wirings[int(self.wiring_of_node[node])]

    def class_of(self, node: int, gpus: IntArray) -> int:
        """Class of a cell with these GPUs (local numbers) of a node."""
        return self.class_of_rate(self.wiring(node).collective_bytes_per_s(gpus))

    def class_of_rate(self, bytes_per_s: float) -> int:
        """Class of cells whose collectives attain exactly this."""
        return int(np.flatnonzero(self.group_bytes_per_s == bytes_per_s)[0])

    def classes(self, node_of_cell: IntArray, gpus_of_cell: IntArray) -> IntArray:
        """[p, d] class of every cell."""
        found = np.zeros(node_of_cell.shape, dtype=np.int64)
        for s, z in np.ndindex(*node_of_cell.shape):
            found[s, z] = self.class_of(int(node_of_cell[s, z]), gpus_of_cell[s, z])
        return found


def wirings_of(cluster: Cluster, tensor: int, data: int) -> tuple[IntArray, tuple[Wiring, ...]]:
    """[N] kind of wiring of every node, and the kinds, with the rings a family can need worked out."""
    wirings: list[Wiring] = []
    of_node = np.zeros(cluster.num_nodes, dtype=np.int64)
    for node, mesh in enumerate(cluster.meshes):
        gpus = int(cluster.gpus_per_node[node])
        if mesh is None:
            wiring = switch_wiring(gpus, float(cluster.local_bytes_per_s[node]))
        else:
            sizes = frozenset({tensor, *range(2, min(gpus // tensor, data) + 1)})
            wiring = mesh_wiring(gpus, mesh.link_bytes_per_s.tobytes(), mesh.bus_bytes_per_s, sizes)
        if wiring not in wirings:
            wirings.append(wiring)
        of_node[node] = wirings.index(wiring)
    return of_node, tuple(wirings)


def group_rates(wirings: tuple[Wiring, ...], tensor: int) -> Array:
    """[R] distinct bandwidths that tensor groups attain, fastest first; inf alone for groups of one."""
    if tensor == 1:
        return np.array([np.inf])
    found: set[float] = set()
    for wiring in wirings:
        if wiring.gpus >= tensor:
            sets = [range(tensor)] if wiring.uniform else itertools.combinations(range(wiring.gpus), tensor)
            found |= {wiring.collective_bytes_per_s(tuple(gpus)) for gpus in sets}
    return np.array(sorted(found, reverse=True))


def best_local_bytes_per_s(wiring: Wiring, tensor: int, data: int) -> float:
    """What no flow and no part of a ring between cells of one node exceeds.

    The ``tensor`` ranks use different pairs, or different sets of GPUs, and the slowest counts: that is at
    most the ``tensor``-th best of them.
    """
    if wiring.port_bytes_per_s is not None:
        return wiring.port_bytes_per_s
    places = wiring.gpus // tensor
    if places < 2:
        return float("inf")  # a cell has nobody to talk to inside its node
    pairs = sorted(
        (
            max(wiring.flow_bytes_per_s(a, b), wiring.flow_bytes_per_s(b, a))
            for a, b in itertools.combinations(range(wiring.gpus), 2)
        ),
        reverse=True,
    )
    best = pairs[tensor - 1]
    for members in range(2, min(places, data) + 1):
        rates = sorted(
            map(wiring.collective_bytes_per_s, itertools.combinations(range(wiring.gpus), members)),
            reverse=True,
        )
        best = max(best, rates[tensor - 1])
    return best
