"""Moves of the local search: small legal changes of a placement or a layer split, drawn from random numbers.

Nearly all moves exchange what is at two sets of positions (stage, replica), or the names of two nodes with equal
room, so every node keeps the number of cells it hosts and the result is legal by construction.

Kinds
    CELLS       exchange two cells
    RUN         exchange consecutive stages of two replicas: other continuations of the same pipelines
    BLOCK       exchange two rectangles of stages times replicas: runs, whole stages, parts of pods
    ROTATE      a stage moves past its neighbours, all replicas of it or one
    REPLICAS    reverse or rotate a range of replicas: the order of the rings
    NODES       two nodes change places
    NODES_3     three nodes change places in a cycle
    CONTENT     exchange the cells of one stage on one node with those of another stage on another node
    JOIN        bring a cell to the node of its neighbour in the pipeline (the first stage follows the last)
    GATHER      bring a cell to a node that already hosts its stage
    LAYER       one layer from one virtual stage to another
    FREE        a cell moves to a place nobody uses
"""

from __future__ import annotations

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array
from pipette_milp.cost.tables import CostTables

NUM_KINDS = 12
(CELLS, RUN, BLOCK, ROTATE, REPLICAS, NODES, NODES_3, CONTENT, JOIN, GATHER, LAYER, FREE) = range(NUM_KINDS)
DRAWS = 8
"""Random numbers a move consumes."""

WEIGHTS = {
    CELLS: 2.0,
    RUN: 3.0,
    BLOCK: 3.0,
    ROTATE: 1.0,
    REPLICAS: 1.0,
    NODES: 2.0,
    NODES_3: 1.0,
    CONTENT: 2.0,
    JOIN: 2.0,
    GATHER: 2.0,
    LAYER: 1.0,
    FREE: 1.0,
}
"""How often each kind is drawn where it applies."""


def mix_of(tables: CostTables) -> Array:
    """[NUM_KINDS] cumulative probabilities of the kinds that can change anything; all 0 if none can."""
    several_nodes = tables.num_nodes > 1
    several_replicas = tables.data > 1
    cells = tables.pipeline * tables.data
    applies = {
        CELLS: several_nodes and cells > 1,
        RUN: several_nodes and several_replicas and tables.pipeline > 1,
        BLOCK: several_nodes and cells > 1,
        ROTATE: several_nodes and tables.pipeline > 1,
        REPLICAS: several_nodes and several_replicas,
        NODES: several_nodes,
        NODES_3: tables.num_nodes > 2,
        CONTENT: several_nodes and cells > 1,
        JOIN: several_nodes and tables.pipeline > 1,
        GATHER: several_nodes and several_replicas,
        LAYER: tables.num_virtual_stages > 1 and bool(np.any(tables.max_layers > tables.min_layers)),
        FREE: several_nodes and int(tables.slots.sum()) > cells,
    }
    weights = np.array([WEIGHTS[kind] * applies[kind] for kind in range(NUM_KINDS)])
    total = weights.sum()
    return np.cumsum(weights) / total if total > 0 else weights


@compiled
def exchange_blocks(cells, s, z, other_s, other_z, height, width):
    """Exchange two rectangles that do not overlap."""
    for i in range(height):
        for k in range(width):
            kept = cells[s + i, z + k]
            cells[s + i, z + k] = cells[other_s + i, other_z + k]
            cells[other_s + i, other_z + k] = kept


@compiled
def cell_on(cells, node, draw):
    """Flat index of a random cell on a node; -1 where it hosts none."""
    p, d = cells.shape
    number = 0
    for s in range(p):
        for z in range(d):
            if cells[s, z] == node:
                number += 1
    if number == 0:
        return -1
    wanted = int(draw * number)
    for s in range(p):
        for z in range(d):
            if cells[s, z] == node:
                if wanted == 0:
                    return s * d + z
                wanted -= 1
    return -1


@compiled
def propose(f, u, mix, focus, layers, cells):
    """Change ``layers[V]`` or ``cells[p, d]`` in place by one random move.

    Args:
        f: `pipette_milp.solvers.incremental.Figures`
        u: [DRAWS] uniform on [0, 1)
        mix: `mix_of`
        focus: flat indices of cells that matter most; half of the moves start there
    Returns:
        The kind, or -1 where the draw is no legal change. A kind does not promise that anything changed.
    """
    p, d = cells.shape
    kind = 0
    while kind < len(mix) - 1 and u[0] >= mix[kind]:
        kind += 1
    if len(focus) > 0 and u[1] < 0.5:
        cell = focus[int(2.0 * u[1] * len(focus))]
    else:
        cell = int(u[2] * p * d)
    s, z = cell // d, cell % d

    if kind == CELLS:
        other = int(u[3] * p * d)
        other_s, other_z = other // d, other % d
        if cells[s, z] == cells[other_s, other_z]:
            return -1
        exchange_blocks(cells, s, z, other_s, other_z, 1, 1)

    elif kind == RUN:
        other_z = int(u[3] * (d - 1))
        if other_z >= z:
            other_z += 1
        # half of the runs go on to the last stage: everything after s changes over
        height = p - s if u[4] < 0.5 else 1 + int(u[5] * (p - s))
        exchange_blocks(cells, s, z, s, other_z, height, 1)

    elif kind == BLOCK:
        height = 1 + int(u[3] * u[3] * p)
        width = d if u[4] < 0.3 else 1 + int(u[5] * u[5] * d)
        s, z = min(s, p - height), min(z, d - width)
        other_s, other_z = int(u[6] * (p - height + 1)), int(u[7] * (d - width + 1))
        if abs(s - other_s) < height and abs(z - other_z) < width:
            return -1
        exchange_blocks(cells, s, z, other_s, other_z, height, width)

    elif kind == ROTATE:
        target = int(u[3] * p)
        first, width = (0, d) if u[4] < 0.5 else (z, 1)
        way = 1 if target > s else -1
        while s != target:
            exchange_blocks(cells, s, first, s + way, first, 1, width)
            s += way

    elif kind == REPLICAS:
        other_z = int(u[3] * d)
        if other_z == z:
            return -1
        one, other = min(z, other_z), max(z, other_z)
        first, height = (0, p) if u[4] < 0.7 else (s, 1)
        if u[5] < 0.5:
            while one < other:
                exchange_blocks(cells, first, one, first, other, height, 1)
                one += 1
                other -= 1
        else:
            while one < other:
                exchange_blocks(cells, first, one, first, one + 1, height, 1)
                one += 1

    elif kind == NODES or kind == NODES_3:
        a, b, c = cells[s, z], int(u[3] * f.nodes), int(u[4] * f.nodes)
        if kind == NODES:
            c = a
        elif c == a or c == b:
            return -1
        if a == b or f.slots[a] != f.slots[b] or f.slots[a] != f.slots[c]:
            return -1
        for i in range(p):
            for k in range(d):
                node = cells[i, k]
                if node == a:
                    cells[i, k] = b
                elif node == b:
                    cells[i, k] = c
                elif node == c:
                    cells[i, k] = a

    elif kind == CONTENT:
        other = int(u[3] * p * d)
        other_s, other_z = other // d, other % d
        a, b = cells[s, z], cells[other_s, other_z]
        if a == b or s == other_s:
            return -1
        k, m = 0, 0
        while True:
            while k < d and cells[s, k] != a:
                k += 1
            while m < d and cells[other_s, m] != b:
                m += 1
            if k == d or m == d:
                break
            exchange_blocks(cells, s, k, other_s, m, 1, 1)
            k += 1
            m += 1

    elif kind == JOIN:
        neighbour = (s + 1) % p if u[3] < 0.5 else (s - 1 + p) % p
        node = cells[s, z]
        if cells[neighbour, z] == node:
            return -1
        other = cell_on(cells, node, u[4])
        if other == cell:
            return -1
        exchange_blocks(cells, neighbour, z, other // d, other % d, 1, 1)

    elif kind == GATHER:
        node = cells[s, int(u[3] * d)]
        if cells[s, z] == node:
            return -1
        other = cell_on(cells, node, u[4])
        if other // d == s:
            return -1
        exchange_blocks(cells, s, z, other // d, other % d, 1, 1)

    elif kind == LAYER:
        source, target = int(u[3] * f.virtual), int(u[4] * f.virtual)
        if u[5] < 0.5:
            source = s + p * int(u[6] * (f.virtual // p))  # a stage that matters gives one away
        if source == target or layers[source] <= f.min_layers[source] or layers[target] >= f.max_layers[target]:
            return -1
        layers[source] -= 1
        layers[target] += 1
        stage = target % p
        used = f.memory_extra_bytes[stage]
        for j in range(stage, f.virtual, p):
            used += f.memory_layer_bytes[j] * layers[j]
        if used > f.memory_usable_bytes:
            layers[source] += 1
            layers[target] -= 1
            return -1

    else:
        node = int(u[3] * f.nodes)
        room = f.slots[node]
        for i in range(p):
            for k in range(d):
                if cells[i, k] == node:
                    room -= 1
        if room <= 0:
            return -1
        cells[s, z] = node
    return kind
