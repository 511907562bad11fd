"""Simulated annealing: as Pipette's code does it, and done properly.

The faithful walk moves whole nodes: the default rank order on a permutation of the nodes, changed by
reversing a segment, migrating a node, exchanging two, moving a segment, moving it reversed (pipette, section
5). It starts at a random permutation and accepts a loss by its decimal mantissa alone, so that a second and a
microsecond are refused equally often. The objective here is the simulated time, not the paper's closed form.

The corrected walk makes the moves of the local search from the candidate given, accepts by Metropolis' rule
on the relative loss and cools with the moves that are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.errors import InputError
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.greedy import block_layouts
from pipette_milp.solvers.local_search import BLOCK, Better, Walk
from pipette_milp.solvers.plain_search import descend
from pipette_milp.solvers.regroup import gpu_search
from pipette_milp.solvers.screening import Screen

FIRST_TEMPERATURE = 1.0
COOLING = 0.999
"""Per step; both from the paper's code (pipette, section 5)."""
WARMEST = 0.01
"""Mean relative loss the corrected walk accepts at first; 0.004 to 0.02 do equally well on the shared
instances."""
COLDEST = 1e-6
"""The same at the end."""


def anneal(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    *,
    iterations: int,
    stop: Callable[[], bool] = lambda: False,
    patience: int | None = None,
    faithful: bool = False,
    listener: Better | None = None,
) -> tuple[float, Candidate]:
    """Improve a candidate; returns its simulated time and itself, never worse than the start.

    Args:
        start: the corrected walk starts here; of the faithful one only the layer split is used, and the
            candidate is the answer if the walk finds nothing better.
        iterations: moves at most; the corrected walk cools over exactly so many.
        stop: asked before every move, or block of moves.
        patience: give up after so many moves in a row without improvement.
        faithful: the paper's walk.
        listener: as in `local_search`; of the faithful walk it hears what the walk itself sees, not the
            start.
    """
    if evaluator.tables.gpu_level is not None and not faithful:
        return gpu_search(evaluator, start, rng, iterations=iterations, stop=stop, patience=patience)
    detail = evaluator.tables.detail
    if detail is not None and faithful:
        raise InputError(f"not supported by the paper's annealing: {', '.join(detail.reasons)}")
    if detail is not None:
        return descend(evaluator, start, rng, iterations=iterations, stop=stop, patience=patience)
    if faithful:
        return _faithful(evaluator, start, rng, iterations, stop, patience, listener)
    walk = Walk(evaluator, start, rng, listener)
    decay = math.log(COLDEST / WARMEST)
    while walk.mix.any() and walk.moves < iterations and not stop():
        if patience is not None and walk.moves - walk.improved_at >= patience:
            break
        warmth = WARMEST * math.exp(decay * walk.moves / iterations)
        walk.block(min(BLOCK, iterations - walk.moves), warmth * walk.screen.time_s)
    return walk.best_s, walk.best


def _faithful(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    iterations: int,
    stop: Callable[[], bool],
    patience: int | None,
    listener: Better | None,
) -> tuple[float, Candidate]:
    tables = evaluator.tables
    screen = Screen(evaluator, start)
    best_s, best = screen.time_s, start

    def placed(permutation: IntArray) -> Candidate:
        return Candidate(start.layers, next(block_layouts(tables, [permutation])))

    order = rng.permutation(tables.num_nodes).astype(np.int64)
    current_s = seen_s = screen.time_of(placed(order))
    if listener is not None:
        listener(seen_s)
    temperature, since = FIRST_TEMPERATURE, 0
    for _ in range(iterations):
        if stop() or (patience is not None and since >= patience):
            break
        proposed = permuted(order, rng)
        candidate = placed(proposed)
        time_s = screen.time_of(candidate)
        since += 1
        if accepted(time_s - current_s, temperature, rng):
            order, current_s = proposed, time_s
        if time_s < seen_s:
            seen_s, since = time_s, 0
            if listener is not None:
                listener(seen_s)
        if time_s < best_s:
            best_s, best = time_s, candidate
        temperature *= COOLING
    return best_s, best


def accepted(loss_s: float, temperature: float, rng: np.random.Generator) -> bool:
    """The paper's rule: the loss scaled to [0.1, 1) by a power of ten, whatever its size."""
    if loss_s <= 0:
        return True
    mantissa = loss_s / 10.0 ** (math.floor(math.log10(loss_s)) + 1)
    return float(rng.random()) < math.exp(-mantissa / temperature)


def permuted(order: IntArray, rng: np.random.Generator) -> IntArray:
    """One of five moves, drawn uniformly: reverse, migrate, exchange, move a segment, move it reversed."""
    size = len(order)
    if size < 2:
        return order.copy()
    low, high = sorted(int(i) for i in rng.choice(size, size=2, replace=False))
    kind = int(rng.integers(5))
    if kind == 0:
        return np.concatenate((order[:low], order[low : high + 1][::-1], order[high + 1 :]))
    if kind == 1:
        source, target = (low, high) if rng.random() < 0.5 else (high, low)
        return np.insert(np.delete(order, source), target, order[source])
    if kind == 2:
        swapped = order.copy()
        swapped[[low, high]] = order[[high, low]]
        return swapped
    segment = order[low:high] if kind == 3 else order[low:high][::-1]
    rest = np.concatenate((order[:low], order[high:]))
    return np.insert(rest, int(rng.integers(len(rest) + 1)), segment)
