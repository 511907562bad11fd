"""Plans for families whose linear tables are only lower estimates (`CostTables.detail`).

The fast evaluation of `pipette_milp.solvers.screening` rests on the linear figures, so every candidate here
is evaluated in full: block layouts first, then a descent over layer splits and placements.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.solvers.evaluation import (
    Candidate,
    Evaluator,
    balanced_split,
    stage_memory_bytes,
)

LAYOUTS = 12
"""Block layouts tried from the start, the rest is left to the descent: each costs a full evaluation."""
LAYER_SHARE = 0.4
"""Moves that shift a layer to another virtual stage; the others exchange or move cells."""


def block_plan(evaluator: Evaluator, layouts: list[IntArray]) -> Candidate | None:
    """The best of some layouts with a split that fits; None where none is found."""
    best: Candidate | None = None
    best_s = np.inf
    for cells in layouts[:LAYOUTS]:
        layers = fitting_split(evaluator, cells)
        if layers is None:
            continue
        candidate = Candidate(layers, cells)
        time_s = evaluator.simulated_s(candidate)
        if time_s < best_s:
            best, best_s = candidate, time_s
    return best


def fitting_split(evaluator: Evaluator, cells: IntArray) -> IntArray | None:
    """[V] the balanced split, layers moved from stages that are too full on this placement to emptier ones.

    None where that does not end in a split that fits: it is no proof that there is none.
    """
    tables = evaluator.tables
    layers = balanced_split(tables, memory=False)
    if layers is None:
        return None
    usable = np.full(tables.pipeline, tables.memory_usable_bytes)
    if tables.detail is not None:
        usable = tables.detail.usable_of_stage(cells)
    for _ in range(4 * tables.total_layers):
        excess = stage_memory_bytes(tables, layers) - usable
        if evaluator.fits(layers, cells):
            return layers
        full, spare = int(np.argmax(excess)), int(np.argmin(excess))
        sources = [j for j in range(full, len(layers), tables.pipeline) if layers[j] > tables.min_layers[j]]
        targets = [j for j in range(spare, len(layers), tables.pipeline) if layers[j] < tables.max_layers[j]]
        if excess[full] <= 0 or excess[spare] >= 0 or not sources or not targets:
            return None
        layers[max(sources, key=lambda j: layers[j])] -= 1
        layers[min(targets, key=lambda j: layers[j])] += 1
    return None


def descend(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    *,
    iterations: int,
    stop: Callable[[], bool] = lambda: False,
    patience: int | None = None,
) -> tuple[float, Candidate]:
    """Random moves, each kept if the plan fits and is faster; never worse than the start."""
    best, best_s = start, evaluator.simulated_s(start)
    improved_at = 0
    for move in range(iterations):
        if stop() or (patience is not None and move - improved_at >= patience):
            break
        proposed = _moved(evaluator, best, rng)
        if proposed is None or not evaluator.fits(proposed.layers, proposed.node_of_cell):
            continue
        time_s = evaluator.simulated_s(proposed)
        if time_s < best_s * (1 - 1e-12):
            best, best_s, improved_at = proposed, time_s, move
    return best_s, best


def _moved(evaluator: Evaluator, candidate: Candidate, rng: np.random.Generator) -> Candidate | None:
    tables = evaluator.tables
    several = tables.num_virtual_stages > 1
    if several and (tables.num_nodes == 1 or rng.random() < LAYER_SHARE):
        source, target = (int(j) for j in rng.choice(tables.num_virtual_stages, size=2, replace=False))
        layers = candidate.layers.copy()
        layers[source] -= 1
        layers[target] += 1
        return Candidate(layers, candidate.node_of_cell)
    cells = candidate.node_of_cell.copy()
    flat = cells.reshape(-1)
    chosen = int(rng.integers(len(flat)))
    free = np.flatnonzero(tables.slots > np.bincount(flat, minlength=tables.num_nodes))
    if len(free) and rng.random() < 0.3:
        flat[chosen] = int(rng.choice(free))
        return Candidate(candidate.layers, cells)
    others = np.flatnonzero(flat != flat[chosen])
    if not len(others):
        return None
    other = int(rng.choice(others))
    flat[chosen], flat[other] = flat[other], flat[chosen]
    return Candidate(candidate.layers, cells)
