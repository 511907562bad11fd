"""Local search on the simulated time: descents with a little warmth, again and again from the best plan.

A search runs in cycles. Each starts from the best plan known, accepts small losses at first (a random
threshold that shrinks to nothing) and ends as a plain descent. Cycles grow while they do not help. Half of
the moves start where the critical path loses time. Moves are `pipette_milp.solvers.moves`, acceptance is
exact and mostly decided without a simulation: `pipette_milp.solvers.screening`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.moves import DRAWS, mix_of
from pipette_milp.solvers.plain_search import descend
from pipette_milp.solvers.regroup import gpu_search
from pipette_milp.solvers.screening import Screen

BLOCK = 128
"""Moves between two questions to ``stop``: about a millisecond."""
FIRST_CYCLE = 4_096
"""Moves of the first cycle, the plain descent, and of the first warm one."""
GROWTH = 1.5
LONGEST_CYCLE = 400_000
WARMTH = (2e-4, 1e-3, 4e-3)
"""Mean loss accepted at the start of a cycle, relative to the plan's time; cycles take them in turn."""
FOCUS = 24
"""Cells on the critical path that moves start from."""

Better = Callable[[float], None]
"""Called with the simulated seconds of the best plan so far, the start included."""


def local_search(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    *,
    iterations: int,
    stop: Callable[[], bool] = lambda: False,
    patience: int | None = None,
    listener: Better | None = None,
) -> tuple[float, Candidate]:
    """Improve a candidate; returns its simulated time and itself, never worse than the start.

    Args:
        iterations: moves at most.
        stop: asked before every block of `BLOCK` moves.
        patience: give up after so many moves in a row without improvement.
        listener: hears every new best, unless GPUs are told apart or tables are not exact.

    Where GPUs are told apart the search is `pipette_milp.solvers.regroup.gpu_search`.
    """
    if evaluator.tables.gpu_level is not None:
        return gpu_search(evaluator, start, rng, iterations=iterations, stop=stop, patience=patience)
    if evaluator.tables.detail is not None:
        return descend(evaluator, start, rng, iterations=iterations, stop=stop, patience=patience)
    walk = Walk(evaluator, start, rng, listener)
    length, cycle = float(FIRST_CYCLE), 0
    while walk.moves < iterations and not stop():
        warmth = WARMTH[(cycle - 1) % len(WARMTH)] * walk.best_s if cycle > 0 else 0.0
        before = walk.best_s
        budget = min(int(length), iterations - walk.moves)
        first = walk.moves
        while walk.moves - first < budget:
            if stop() or (patience is not None and walk.moves - walk.improved_at >= patience):
                return walk.best_s, walk.best
            left = 1.0 - (walk.moves - first) / budget
            walk.block(min(BLOCK, budget - (walk.moves - first)), warmth * left * left)
        if not walk.mix.any():
            break
        cycle += 1
        if walk.best_s >= before and cycle % len(WARMTH) == 0:
            length = min(length * GROWTH, LONGEST_CYCLE)
        walk.back_to_best()
    return walk.best_s, walk.best


class Walk:
    """A walk over candidates: where it stands, the best one seen, how many moves it made."""

    def __init__(
        self,
        evaluator: Evaluator,
        start: Candidate,
        rng: np.random.Generator,
        listener: Better | None = None,
    ) -> None:
        self.listener = listener
        self.screen = Screen(evaluator, start)
        self.rng = rng
        self.mix = mix_of(evaluator.tables)
        self.moves = 0
        self.improved_at = 0
        self.best_s = self.screen.time_s
        self.best = self.screen.candidate()
        self._focus: IntArray | None = None
        if listener is not None:
            listener(self.best_s)

    def block(self, number: int, warmth_s: float) -> None:
        """Make some moves, each accepted if it loses less than an exponential variate of mean
        ``warmth_s``."""
        screen, rng = self.screen, self.rng
        draws = rng.random((number, DRAWS))
        allowed = rng.exponential(size=number) * warmth_s
        if self._focus is None:
            self._focus = critical_cells(screen, rng)
        focus, first = self._focus, 0
        while first < number:
            k = screen.next_promising(draws, self.mix, focus, screen.rank_s + allowed, first)
            if k == number:
                break
            if screen.take(screen.rank_s + allowed[k]):
                self._focus = None  # found anew for the next block
                if screen.time_s < self.best_s * (1 - 1e-12):
                    self.best_s, self.best = screen.time_s, screen.candidate()
                    self.improved_at = self.moves + k
                    if self.listener is not None:
                        self.listener(self.best_s)
            first = k + 1
        self.moves += number

    def back_to_best(self) -> None:
        """Stand at the best candidate again."""
        self.screen.moved_to(self.best)
        self._focus = None


def critical_cells(screen: Screen, rng: np.random.Generator) -> IntArray:
    """[FOCUS] flat indices of cells, drawn in proportion to the time the critical path loses there.

    A hop counts as often as it lies on the path; a synchronisation belongs to any cell of its stage.
    """
    f, current = screen.f, screen.current
    replica, end, path = screen.critical_path()
    tasks = (2 + f.separate) * f.virtual
    lost = (path * current.lanes[replica])[tasks:].reshape(2, f.virtual - 1).sum(axis=0)
    shares: Array = np.append(lost, current.guard[end])
    total = shares.sum()
    if total <= 0:
        return np.zeros(0, dtype=np.int64)
    picked = rng.choice(f.virtual, size=FOCUS, p=shares / total)
    stages = np.where(picked < f.virtual - 1, picked + rng.integers(2, size=FOCUS), end) % f.pipeline
    replicas = np.where(picked < f.virtual - 1, replica, rng.integers(f.data, size=FOCUS))
    return np.asarray(stages * f.data + replicas, dtype=np.int64)
