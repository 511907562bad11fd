"""Plans from scratch: regular block layouts, the best of them by simulated time.

A layout cuts the grid of stages times replicas into blocks of ``height`` consecutive stages, takes block
after block and fills node after node. Height 1 is the default rank order, a height of a whole pipeline gives
every replica its own nodes; stages may start in the middle of a block, so that the first and the last stage
share a node (tied embedding). Nodes come in index order or sorted by groups of fast links.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError, Problem
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.groups import find_groups
from pipette_milp.solvers.layer_splits import quickest_split
from pipette_milp.solvers.plain_search import block_plan
from pipette_milp.solvers.screening import Screen


def greedy(evaluator: Evaluator, rng: np.random.Generator | None = None) -> Candidate:
    """The best block layout with the quickest balanced layer split, of a family without `CostTables.detail`.

    Args:
        rng: adds layouts over random node orders, as many as there are regular ones; None for the regular
            ones alone.

    Raises:
        InputError: no layer split fits, or the nodes have too few places.
    """
    tables = evaluator.tables
    layers = quickest_split(evaluator)
    if layers is None:
        raise InputError(Problem("layers", "no layer split fits into memory"))
    if int(tables.slots.sum()) < tables.pipeline * tables.data:
        raise InputError(Problem("slots", "the nodes have too few places for the cells of this family"))
    layouts = list(block_layouts(tables, node_orders(tables)))
    if rng is not None:
        shuffled = [rng.permutation(tables.num_nodes).astype(np.int64)]
        layouts += list(block_layouts(tables, shuffled))
    screen = Screen(evaluator, Candidate(layers, layouts[0]))
    best, best_s = layouts[0], screen.time_s
    for cells in layouts[1:]:
        time_s = screen.time_if_below(Candidate(layers, cells), best_s)
        if time_s < best_s:
            best, best_s = cells, time_s
    return Candidate(layers, _odd_nodes_moved(screen, layers, best, best_s, odd_nodes(tables)))


def starting_plan(evaluator: Evaluator) -> Candidate | None:
    """A plan of any family to start from; None where none was found that fits."""
    tables = evaluator.tables
    if tables.detail is None:
        return greedy(evaluator)
    return block_plan(evaluator, list(block_layouts(tables, node_orders(tables))))


def odd_nodes(tables: CostTables) -> IntArray:
    """Nodes in groups of less than half the size of the largest: what they host matters most."""
    groups = find_groups(tables)
    largest = max(len(group.nodes) for group in groups)
    small = [group.nodes for group in groups if 2 * len(group.nodes) < largest]
    return np.concatenate(small) if small else np.zeros(0, dtype=np.int64)


def _odd_nodes_moved(
    screen: Screen, layers: IntArray, cells: IntArray, time_s: float, odd: IntArray
) -> IntArray:
    """Exchange odd nodes with others while that helps, first improvement."""
    slots = screen.bounds.slots
    improved = True
    while improved:
        improved = False
        for a in odd:
            for b in np.flatnonzero(slots == slots[a]):
                exchanged = np.where(cells == a, b, np.where(cells == b, a, cells))
                exchanged_s = screen.time_if_below(Candidate(layers, exchanged), time_s)
                if exchanged_s < time_s * (1 - 1e-12):
                    cells, time_s, improved = exchanged, exchanged_s, True
    return cells


def node_orders(tables: CostTables) -> list[IntArray]:
    """Orders in which nodes are filled: by index, and by groups with the large ones first or last."""
    orders = [np.arange(tables.num_nodes)]
    groups = find_groups(tables)
    if len(groups) > 1:
        groups.sort(key=lambda group: -len(group.nodes))
        orders.append(np.concatenate([group.nodes for group in groups]))
        if len({len(group.nodes) for group in groups}) > 1:
            orders.append(np.concatenate([group.nodes for group in reversed(groups)]))
    return orders


def block_layouts(tables: CostTables, orders: list[IntArray]) -> Iterator[IntArray]:
    """[p, d] placements; the first is the default rank order where groups of ranks do not straddle nodes."""
    for order in orders:
        places = np.repeat(order, tables.slots[order])
        for height, offset, by_stage in _shapes(tables):
            cells = np.empty((tables.pipeline, tables.data), dtype=np.int64)
            stages, replicas = _sequence(tables, height, offset, by_stage=by_stage)
            cells[stages, replicas] = places[: cells.size]
            yield cells


def _shapes(tables: CostTables) -> Iterator[tuple[int, int, bool]]:
    """(height, first stage, whether blocks of the same stages follow each other)."""
    most = int(tables.slots.max())
    tallest = min(most, tables.pipeline)
    heights = [1, *(h for h in range(2, tallest) if most % h == 0), tallest, tables.pipeline]
    for height in sorted(set(heights)):
        offsets = {0}
        if 1 < height < tables.pipeline and tables.embedding_bytes > 0:
            # the first block holds that many of the last stages, then the first ones; or the last block does
            offsets |= {tables.pipeline - last for last in (1, height // 2, height - 1)}
            offsets |= {height // 2, height - 1}
        for offset in sorted(offsets):
            yield height, offset, True
            if 1 < height < tables.pipeline and tables.data > 1:
                yield height, offset, False


def _sequence(tables: CostTables, height: int, offset: int, *, by_stage: bool) -> tuple[IntArray, IntArray]:
    """Stages and replicas of all cells in the order in which they take places."""
    stages, replicas = np.meshgrid(np.arange(tables.pipeline), np.arange(tables.data), indexing="ij")
    block = stages.reshape(-1) // height
    one, other = (block, replicas.reshape(-1)) if by_stage else (replicas.reshape(-1), block)
    sequence = np.lexsort((stages.reshape(-1), other, one))
    shifted = (stages.reshape(-1)[sequence] + offset) % tables.pipeline
    return shifted, replicas.reshape(-1)[sequence]
