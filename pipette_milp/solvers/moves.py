"""Moves of the local search: small legal changes of a placement or a layer split, drawn from random numbers.

Nearly all moves exchange what is at two sets of positions (stage, replica), or the names of two nodes with
equal room, so every node keeps the number of cells it hosts and the result is legal by construction.

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

from typing import NamedTuple

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables


class Bounds(NamedTuple):
    """What makes a move illegal; fields as in `CostTables`."""

    slots: IntArray
    min_layers: IntArray
    max_layers: IntArray
    memory_layer_bytes: Array
    memory_extra_bytes: Array
    memory_usable_bytes: float


def bounds_of(tables: CostTables) -> Bounds:
    """Copies, in the types the kernels are compiled for."""
    return Bounds(
        slots=np.array(tables.slots, dtype=np.int64),
        min_layers=np.array(tables.min_layers, dtype=np.int64),
        max_layers=np.array(tables.max_layers, dtype=np.int64),
        memory_layer_bytes=np.array(tables.memory_layer_bytes, dtype=np.float64),
        memory_extra_bytes=np.array(tables.memory_extra_bytes, dtype=np.float64),
        memory_usable_bytes=float(tables.memory_usable_bytes),
    )


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
def propose(bounds: Bounds, u: Array, mix: Array, focus: IntArray, layers: IntArray, cells: IntArray) -> bool:
    """Change ``layers[V]`` or ``cells[p, d]`` in place by one random move.

    Args:
        u: [DRAWS] uniform on [0, 1)
        mix: `mix_of`
        focus: flat indices of cells that matter most; half of the moves start there
    Returns:
        False where the draw is no legal change, and nothing was changed; True does not promise a change.
    """
    p, d = cells.shape
    kind = 0
    while kind < len(mix) - 1 and u[0] >= mix[kind]:
        kind += 1
    cell = int(u[2] * p * d)
    if u[1] < 0.5 and len(focus) > 0:
        cell = focus[int(2.0 * u[1] * len(focus))]
    s, z = cell // d, cell % d
    other = int(u[3] * p * d)
    if kind == CELLS:
        exchange_blocks(cells, s, z, other // d, other % d, 1, 1)
        return True
    if kind == RUN:
        other_z = (z + 1 + int(u[3] * (d - 1))) % d
        # half of the runs go on to the last stage: everything after s changes over
        height = p - s if u[4] < 0.5 else 1 + int(u[5] * (p - s))
        exchange_blocks(cells, s, z, s, other_z, height, 1)
        return True
    if kind == BLOCK:
        return exchange_random_blocks(cells, s, z, u)
    if kind == ROTATE:
        rotate_stages(cells, s, int(u[3] * p), z, u[4])
        return True
    if kind == REPLICAS:
        reorder_replicas(cells, s, z, int(u[3] * d), u)
        return True
    if kind == NODES or kind == NODES_3:  # noqa: SIM109  numba compiles this to two comparisons
        a, b = cells[s, z], int(u[3] * len(bounds.slots))
        c = a if kind == NODES else int(u[4] * len(bounds.slots))
        if a == b or b == c or (kind == NODES_3 and a == c):
            return False
        if bounds.slots[a] != bounds.slots[b] or bounds.slots[a] != bounds.slots[c]:
            return False
        rename_nodes(cells, a, b, c)
        return True
    if kind == CONTENT:
        return exchange_contents(cells, s, cells[s, z], other // d, cells[other // d, other % d])
    if kind == JOIN:
        neighbour = (s + 1) % p if u[3] < 0.5 else (s - 1 + p) % p
        return bring(cells, neighbour, z, cells[s, z], u[4])
    if kind == GATHER:
        return bring(cells, s, z, cells[s, int(u[3] * d)], u[4])
    if kind == LAYER:
        target = int(u[4] * len(layers))
        # half of the moves take a layer from a stage that matters
        source = s + p * int(u[6] * (len(layers) // p)) if u[5] < 0.5 else int(u[3] * len(layers))
        return move_layer(bounds, p, layers, source, target)
    return use_free_place(bounds.slots, cells, s, z, int(u[3] * len(bounds.slots)))


@compiled
def exchange_blocks(
    cells: IntArray, s: int, z: int, other_s: int, other_z: int, height: int, width: int
) -> None:
    """Exchange two rectangles that do not overlap."""
    for i in range(height):
        for k in range(width):
            kept = cells[s + i, z + k]
            cells[s + i, z + k] = cells[other_s + i, other_z + k]
            cells[other_s + i, other_z + k] = kept


@compiled
def exchange_random_blocks(cells: IntArray, s: int, z: int, u: Array) -> bool:
    """Rectangles of random size, mostly small or whole stages; the first one near (s, z)."""
    p, d = cells.shape
    height = 1 + int(u[3] * u[3] * p)
    width = d if u[4] < 0.3 else 1 + int(u[5] * u[5] * d)
    s, z = min(s, p - height), min(z, d - width)
    other_s, other_z = int(u[6] * (p - height + 1)), int(u[7] * (d - width + 1))
    if abs(s - other_s) < height and abs(z - other_z) < width:
        return False
    exchange_blocks(cells, s, z, other_s, other_z, height, width)
    return True


@compiled
def rotate_stages(cells: IntArray, s: int, target: int, z: int, draw: float) -> None:
    """Stage s moves to ``target``, those between move up by one; all replicas, or replica z alone."""
    first, width = (0, cells.shape[1]) if draw < 0.5 else (z, 1)
    way = 1 if target > s else -1
    while s != target:
        exchange_blocks(cells, s, first, s + way, first, 1, width)
        s += way


@compiled
def reorder_replicas(cells: IntArray, s: int, z: int, other_z: int, u: Array) -> None:
    """Reverse the replicas between two, or move one past the others; in all stages, or in stage s alone."""
    one, other = min(z, other_z), max(z, other_z)
    first, height = (0, cells.shape[0]) if u[4] < 0.7 else (s, 1)
    reverse = u[5] < 0.5
    while one < other:
        exchange_blocks(cells, first, one, first, other if reverse else one + 1, height, 1)
        one += 1
        if reverse:
            other -= 1


@compiled
def rename_nodes(cells: IntArray, a: int, b: int, c: int) -> None:
    """a to b, b to c, c to a; with c == a an exchange of a and b."""
    for s in range(cells.shape[0]):
        for z in range(cells.shape[1]):
            node = cells[s, z]
            if node == a:
                cells[s, z] = b
            elif node == b:
                cells[s, z] = c
            elif node == c:
                cells[s, z] = a


@compiled
def exchange_contents(cells: IntArray, s: int, a: int, other_s: int, b: int) -> bool:
    """Cells of stage s on node a against those of another stage on node b, as many as there are pairs."""
    if a == b or s == other_s:
        return False
    d = cells.shape[1]
    k, m = 0, 0
    while True:
        while k < d and cells[s, k] != a:
            k += 1
        while m < d and cells[other_s, m] != b:
            m += 1
        if k == d or m == d:
            return True
        cells[s, k], cells[other_s, m] = b, a


@compiled
def bring(cells: IntArray, s: int, z: int, node: int, draw: float) -> bool:
    """Exchange cell (s, z) with a random one on a node."""
    if cells[s, z] == node:
        return False
    number = 0
    for i in range(cells.shape[0]):
        for k in range(cells.shape[1]):
            if cells[i, k] == node:
                number += 1
    wanted = int(draw * number)
    for i in range(cells.shape[0]):
        for k in range(cells.shape[1]):
            if cells[i, k] == node:
                if wanted == 0:
                    cells[i, k] = cells[s, z]
                    cells[s, z] = node
                    return True
                wanted -= 1
    return False


@compiled
def move_layer(bounds: Bounds, pipeline: int, layers: IntArray, source: int, target: int) -> bool:
    """One layer, if bounds and the memory of the target's pipeline stage allow it."""
    if (
        source == target
        or layers[source] <= bounds.min_layers[source]
        or layers[target] >= bounds.max_layers[target]
    ):
        return False
    layers[source] -= 1
    layers[target] += 1
    stage = target % pipeline
    used = 0.0
    for j in range(stage, len(layers), pipeline):
        used += bounds.memory_layer_bytes[j] * layers[j]
    if used + bounds.memory_extra_bytes[stage] > bounds.memory_usable_bytes:
        layers[source] += 1
        layers[target] -= 1
        return False
    return True


@compiled
def use_free_place(slots: IntArray, cells: IntArray, s: int, z: int, node: int) -> bool:
    """Move cell (s, z) to a node with a free place."""
    room = slots[node]
    for i in range(cells.shape[0]):
        for k in range(cells.shape[1]):
            if cells[i, k] == node:
                room -= 1
    if room <= 0:
        return False
    cells[s, z] = node
    return True
