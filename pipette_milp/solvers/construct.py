"""From node contents to a placement: which node, which replica.

The pattern model says how many nodes hold how many cells of each stage. What is left is to label the cells with
replicas so that as many hops as possible stay inside nodes, and pairs of first and last stage with them.
"""

from __future__ import annotations

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.pattern_model import Relaxed


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

    Stage by stage: a replica stays on its node where there is room; the last stage of the others goes back to the
    node of their first stage (tied embedding), else to the best link left.
    """
    stages, data = tables.pipeline, tables.data
    node_of_cell = np.zeros((stages, data), dtype=np.int64)
    node_of_cell[0] = np.repeat(np.arange(len(held)), held[:, 0])
    for s in range(1, stages):
        room = held[:, s].copy()
        waiting = []
        for z in range(data):
            node = node_of_cell[s - 1, z]
            if room[node]:
                node_of_cell[s, z] = node
                room[node] -= 1
            else:
                waiting.append(z)
        if s == stages - 1 and tables.embedding_bytes > 0:
            rest = []
            for z in waiting:
                home = node_of_cell[0, z]
                if room[home]:
                    node_of_cell[s, z] = home
                    room[home] -= 1
                else:
                    rest.append(z)
            waiting = rest
        for z in waiting:
            source = node_of_cell[s - 1, z]
            free = np.flatnonzero(room)
            speed = np.minimum(tables.pair_bytes_per_s[source, free], tables.pair_bytes_per_s[free, source])
            target = free[np.argmax(speed)]
            node_of_cell[s, z] = target
            room[target] -= 1
    return node_of_cell
