"""Links that a group of nodes shares: what a leaf switch or a pod sends upwards, and receives.

A flow between two nodes passes the uplink of every group that holds exactly one of them, outwards where it
holds the sender, inwards where it holds the receiver. An uplink carries its bandwidth in each direction.
Which flows load it at once is fixed by the plan (formulation, section 2): all flows of one boundary and
direction, both directions of the embedding exchange, and the rings of a stage with those of every stage that
has a GPU on one of its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray


def _no_groups() -> IntArray:
    return np.zeros((0, 0), dtype=np.int64)


@dataclass(frozen=True)
class Uplinks:
    """Groups of nodes with a shared way out, nested or apart."""

    of_node: IntArray = field(default_factory=_no_groups)
    """[N, K] the groups that hold node ``n``, -1 = no more; K = 0 where there are none."""
    bytes_per_s: Array = field(default_factory=lambda: np.zeros(0))
    """[U] in each direction."""

    @classmethod
    def of(cls, groups: Iterable[tuple[Iterable[int], float]], num_nodes: int) -> Uplinks:
        """From the nodes and the bandwidth of each group.

        A group that holds no node, or all of them, is left out: nothing crosses its uplink.
        """
        kept = [(set(nodes), rate) for nodes, rate in groups]
        kept = [(nodes, rate) for nodes, rate in kept if 0 < len(nodes) < num_nodes]
        if not kept:
            return cls()
        holding = [[u for u, (nodes, _) in enumerate(kept) if n in nodes] for n in range(num_nodes)]
        deepest = max(len(row) for row in holding)
        of_node = np.full((num_nodes, deepest), -1, dtype=np.int64)
        for n, row in enumerate(holding):
            of_node[n, : len(row)] = row
        return cls(of_node, np.array([rate for _, rate in kept], dtype=float))

    def __len__(self) -> int:
        return len(self.bytes_per_s)

    def members(self, uplink: int) -> list[int]:
        """Nodes of a group."""
        return [int(n) for n in np.flatnonzero((self.of_node == uplink).any(axis=1))]

    def holds(self) -> np.ndarray:
        """[U, N] whether a group holds a node."""
        return np.stack([(self.of_node == u).any(axis=1) for u in range(len(self))]) if len(self) else _none()

    def slowest_bytes_per_s(self, num_nodes: int) -> Array:
        """[N, N] the narrowest uplink between two nodes; inf where they share every group."""
        slowest = np.full((num_nodes, num_nodes), np.inf)
        for held, rate in zip(self.holds(), self.bytes_per_s, strict=True):
            apart = held[:, None] != held[None, :]
            slowest[apart] = np.minimum(slowest[apart], rate)
        return slowest


def _none() -> np.ndarray:
    return np.zeros((0, 0), dtype=bool)


@compiled
def crossed_uplink(of_node: IntArray, a: int, b: int, k: int) -> int:
    """The k-th group of node a if it does not hold node b, else -1."""
    u = of_node[a, k]
    if u >= 0:
        for i in range(of_node.shape[1]):
            if of_node[b, i] == u:
                return -1
    return int(u)


@compiled
def flow_uplink_times(
    source: IntArray,
    target: IntArray,
    load: float,
    both_ways: int,
    of_node: IntArray,
    capacity: Array,
    counts: IntArray,
    out: Array,
) -> None:
    """Seconds each flow spends on the busiest uplink it passes, latency apart.

    Args:
        source, target: [d] nodes
        load: bytes of one flow, all tensor ranks
        both_ways: 1 if as much flows back from target to source at the same time
        of_node, capacity: `Uplinks`
        counts: [2, U] work space: flows that leave and that enter each group
        out: [d] out; flows in the other direction take as long, because an uplink carries as much both ways
    """
    depth = of_node.shape[1]
    counts[:] = 0
    for z in range(source.shape[0]):
        a, b = source[z], target[z]
        if a == b:
            continue
        for k in range(depth):
            u = crossed_uplink(of_node, a, b, k)
            if u >= 0:
                counts[0, u] += 1
                counts[1, u] += both_ways
            u = crossed_uplink(of_node, b, a, k)
            if u >= 0:
                counts[1, u] += 1
                counts[0, u] += both_ways
    for z in range(source.shape[0]):
        a, b = source[z], target[z]
        out[z] = 0.0
        if a == b:
            continue
        for k in range(depth):
            u = crossed_uplink(of_node, a, b, k)
            if u >= 0:
                out[z] = max(out[z], counts[0, u] * load / capacity[u])
            u = crossed_uplink(of_node, b, a, k)
            if u >= 0:
                out[z] = max(out[z], counts[1, u] * load / capacity[u])


@compiled
def ring_uplink_times(
    order: IntArray,
    lengths: IntArray,
    loads: Array,
    of_node: IntArray,
    capacity: Array,
    crossings: IntArray,
    out: Array,
) -> None:
    """Seconds that the ring of each stage spends on the busiest uplink it passes, latency apart.

    A closed ring leaves a group as often as it enters it, so both directions take as long.

    Args:
        order, lengths: [p, d], [p] distinct nodes of each stage in ring order, and how many
        loads: [p] bytes over each edge, all tensor ranks
        of_node, capacity: `Uplinks`
        crossings: [p, U] work space: edges of each ring that leave a group
        out: [p] out
    """
    stages, depth = order.shape[0], of_node.shape[1]
    crossings[:] = 0
    for s in range(stages):
        m = lengths[s]
        if m >= 2:
            for i in range(m):
                a, b = order[s, i], order[s, i + 1 if i + 1 < m else 0]
                for k in range(depth):
                    u = crossed_uplink(of_node, a, b, k)
                    if u >= 0:
                        crossings[s, u] += 1
    for s in range(stages):
        out[s] = 0.0
        for u in range(capacity.shape[0]):
            if crossings[s, u] == 0:
                continue
            load = crossings[s, u] * loads[s]
            for t in range(stages):
                if t != s and crossings[t, u] > 0 and share_a_node(order, lengths, s, t):
                    load += crossings[t, u] * loads[t]
            out[s] = max(out[s], load / capacity[u])


@compiled
def share_a_node(order: IntArray, lengths: IntArray, s: int, t: int) -> bool:
    """Whether two stages have a node in common."""
    for i in range(lengths[s]):
        for j in range(lengths[t]):
            if order[s, i] == order[t, j]:
                return True
    return False
