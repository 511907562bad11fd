"""From node contents to placements: which node of a group, which replica.

The pattern model says how many nodes of a group hold how many cells of each stage. What is left is to choose
the node for every content and to label the cells with replicas so that hops stay inside nodes and fast
groups, and pairs of first and last stage with them.
"""

from __future__ import annotations

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.pattern_model import Relaxed
from pipette_milp.solvers.screening import Screen

ORDERS = 8
"""Assignments of contents to the nodes of their group that `candidates_from` tries."""
CANDIDATES = 3
"""How many it returns at most."""


def candidates_from(
    tables: CostTables, evaluator: Evaluator, groups: list[Group], relaxed: Relaxed
) -> list[Candidate]:
    """Placements with the contents and layers of a relaxed solution, the fastest first.

    Contents go to the nodes of their group in the model's order, sorted by their stages and in random orders;
    the seed is fixed, the answer is the same every time.
    """
    rng = np.random.default_rng(0)
    first = contents_of_nodes(groups, relaxed, tables.num_nodes)
    held = [first, _sorted_in_groups(groups, first)]
    while len(held) < ORDERS:
        shuffled = first.copy()
        for group in groups:
            shuffled[group.nodes] = first[rng.permutation(group.nodes)]
        held.append(shuffled)
    screen: Screen | None = None
    found: list[tuple[float, int, Candidate]] = []
    for number, contents in enumerate(held):
        candidate = Candidate(relaxed.layers, label_replicas(tables, contents))
        if screen is None:
            screen = Screen(evaluator, candidate)
            time_s = screen.time_s
        else:
            limit = found[CANDIDATES - 1][0] if len(found) >= CANDIDATES else np.inf
            time_s = screen.time_if_below(candidate, limit)
        if np.isfinite(time_s):
            found.append((time_s, number, candidate))
            found.sort(key=lambda one: one[:2])
    return [candidate for _, _, candidate in found[:CANDIDATES]]


def contents_of_nodes(groups: list[Group], relaxed: Relaxed, num_nodes: int) -> IntArray:
    """[N, p] cells of each stage on each node; nodes of a group take its contents in order."""
    held = np.zeros((num_nodes, len(relaxed.contents[0][1])), dtype=np.int64)
    taken = [0] * len(groups)
    for g, content, number in relaxed.contents:
        nodes = groups[g].nodes[taken[g] : taken[g] + number]
        taken[g] += number
        held[nodes] = content
    return held


def label_replicas(tables: CostTables, held: IntArray) -> IntArray:
    """[p, d] node of every cell from [N, p] contents.

    Chains of cells grow stage by stage, around from some first stage; every first stage is tried and the
    chains kept whose slowest one is fastest. Replicas are then ordered so that those of one node, and of
    nodes with fast links to each other, are neighbours in the rings.
    """
    hop_s = _crossing_s(tables, tables.hop_bytes)
    embedding_s = _crossing_s(tables, tables.embedding_bytes)
    # a hop is on the critical path about twice per round of the pipeline, the embedding exchange once
    rounds = 2.0 * max(1.0, tables.configuration.num_micro_batches / tables.pipeline)
    found: list[tuple[float, int, IntArray]] = []
    for first in range(tables.pipeline):
        cells = _chains(tables, held, first, hop_s * rounds, embedding_s)
        lost = np.zeros(tables.data)
        for s in range(tables.pipeline - 1):
            lost += rounds * hop_s[cells[s], cells[s + 1]]
        lost += embedding_s[cells[-1], cells[0]]
        found.append((float(lost.max() + lost.mean()), first, cells))
    return _ordered(hop_s, min(found, key=lambda one: one[:2])[2])


def _crossing_s(tables: CostTables, sent_bytes: float) -> Array:
    """[N, N] seconds there and back between two nodes alone on their links, 0 inside a node."""
    load = tables.tensor * sent_bytes
    rate = np.minimum(tables.pair_bytes_per_s, tables.egress_bytes_per_s[:, None])
    rate = np.minimum(rate, tables.ingress_bytes_per_s[None, :])
    once = tables.latency_s + load / rate if load > 0 else np.zeros_like(rate)
    both = once + once.T
    np.fill_diagonal(both, 0.0)
    return np.asarray(both)


def _chains(tables: CostTables, held: IntArray, first: int, hop_s: Array, embedding_s: Array) -> IntArray:
    """[p, d] chains that start at stage ``first`` and go around.

    Where not all chains of a node can stay, those stay that crossed most so far. The rest goes where the
    link, and on the last stage of the round the way back to the chain's start, costs least.
    """
    stages, data = tables.pipeline, tables.data
    cells = np.zeros((stages, data), dtype=np.int64)
    cells[first] = np.repeat(np.arange(len(held)), held[:, first])
    lost = np.zeros(data)
    for step in range(1, stages):
        s, before = (first + step) % stages, (first + step - 1) % stages
        cost_s = hop_s if s != 0 else embedding_s
        closing = None
        if step == stages - 1:
            closing = embedding_s if first == 0 else hop_s
        room = held[:, s].copy()
        waiting = []
        for z in sorted(range(data), key=lambda z: -lost[z]):
            node = cells[before, z]
            home = cells[first, z]
            # on the last step only those stay that are at home or have no home to go back to
            if room[node] and (closing is None or node == home or not room[home]):
                cells[s, z] = node
                room[node] -= 1
            else:
                waiting.append(z)
        for z in waiting:
            node = cells[before, z]
            price = cost_s[node].copy()
            if closing is not None:
                price += closing[:, cells[first, z]]
            price[room == 0] = np.inf
            target = int(np.argmin(price))
            cells[s, z] = target
            room[target] -= 1
            lost[z] += cost_s[node, target]
    return cells


def _ordered(hop_s: Array, cells: IntArray) -> IntArray:
    """Replicas reordered: each next one is the closest to the one before, over all stages."""
    data = cells.shape[1]
    order = [0]
    left = set(range(1, data))
    while left:
        last = cells[:, order[-1]]
        nearest = min(left, key=lambda z: (float(hop_s[last, cells[:, z]].sum()), z))
        order.append(nearest)
        left.remove(nearest)
    return np.ascontiguousarray(cells[:, order])


def _sorted_in_groups(groups: list[Group], held: IntArray) -> IntArray:
    """Contents of each group in the order of the stages they hold."""
    ordered = held.copy()
    for group in groups:
        inside = held[group.nodes]
        ordered[group.nodes] = inside[np.lexsort(-inside.T[::-1])]
    return ordered
