"""Local search on the simulated time: random exchanges, kept when they do not make the plan worse.

Moves: exchange two cells (or a cell and a free place), exchange the contents of two nodes, exchange two replicas of
one stage or of all, move one layer from a virtual stage to another. Plans of equal time are ranked by the sum of
their communication, so that the search does not stand still on plateaus of the maximum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.solvers.evaluation import Candidate, Evaluator

PLATEAU_WEIGHT = 1e-6
"""Weight of the summed communication against the simulated time; too small to trade one for the other."""


def local_search(
    evaluator: Evaluator,
    start: Candidate,
    rng: np.random.Generator,
    *,
    iterations: int,
    stop: Callable[[], bool] = lambda: False,
    patience: int | None = None,
) -> tuple[float, Candidate]:
    """Improve a candidate; returns its simulated time and itself.

    Args:
        iterations: evaluations at most.
        stop: asked before every evaluation.
        patience: give up after so many evaluations in a row without improvement.
    """
    state = _State(evaluator, start)
    since = 0
    for _ in range(iterations):
        if stop() or (patience is not None and since >= patience):
            break
        since = 0 if state.try_move(rng) else since + 1
    return state.best_s, Candidate(state.best_layers, state.best_cells)


class _State:
    def __init__(self, evaluator: Evaluator, start: Candidate) -> None:
        self.evaluator = evaluator
        self.tables = evaluator.tables
        self.layers = start.layers.copy()
        self.cells = start.node_of_cell.copy()
        self.best_s, self.rank = self._value(self.layers, self.cells)
        self.best_layers, self.best_cells = self.layers.copy(), self.cells.copy()
        spare = self.tables.slots - np.bincount(self.cells.reshape(-1), minlength=self.tables.num_nodes)
        self.spare = spare
        movable = int((self.tables.max_layers > self.tables.min_layers).any())
        several_nodes = self.tables.num_nodes > 1
        self.moves: list[Callable[[np.random.Generator], tuple[IntArray, IntArray] | None]] = []
        if several_nodes:
            self.moves += [self._exchange_cells, self._exchange_cells, self._exchange_nodes]
            if self.tables.data > 1:
                self.moves += [self._exchange_replicas, self._exchange_in_stage]
            if spare.any():
                self.moves.append(self._use_free_place)
        if movable and self.tables.num_virtual_stages > 1:
            self.moves.append(self._move_layer)

    def _value(self, layers: IntArray, cells: IntArray) -> tuple[float, float]:
        durations = self.evaluator.durations(Candidate(layers, cells))
        time = self.evaluator.of_durations(durations)
        communication = (
            durations.hop_forward_s.sum()
            + durations.hop_backward_s.sum()
            + durations.gradient_sync_s.sum()
            + durations.parameter_gather_s.sum()
            + durations.embedding_sync_s
        )
        return time, time + PLATEAU_WEIGHT * float(communication)

    def try_move(self, rng: np.random.Generator) -> bool:
        """One random move; True if the best time improved."""
        if not self.moves:
            return False
        changed = self.moves[rng.integers(len(self.moves))](rng)
        if changed is None:
            return False
        layers, cells = changed
        time, rank = self._value(layers, cells)
        if rank > self.rank:
            return False
        if cells is not self.cells and self.spare.any():
            self.spare = self.tables.slots - np.bincount(cells.reshape(-1), minlength=self.tables.num_nodes)
        self.layers, self.cells, self.rank = layers, cells, rank
        if time < self.best_s * (1 - 1e-12):
            self.best_s, self.best_layers, self.best_cells = time, layers, cells
            return True
        return False

    def _exchange_cells(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        first, second = rng.integers(self.cells.size, size=2)
        flat = self.cells.reshape(-1)
        if flat[first] == flat[second]:
            return None
        cells = self.cells.copy()
        cells.reshape(-1)[[first, second]] = flat[second], flat[first]
        return self.layers, cells

    def _exchange_nodes(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        first, second = rng.integers(self.tables.num_nodes, size=2)
        if first == second or self.tables.slots[first] != self.tables.slots[second]:
            return None
        cells = self.cells.copy()
        cells[self.cells == first], cells[self.cells == second] = second, first
        return self.layers, cells

    def _exchange_replicas(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        first, second = rng.integers(self.tables.data, size=2)
        if first == second:
            return None
        cells = self.cells.copy()
        cells[:, [first, second]] = cells[:, [second, first]]
        return self.layers, cells

    def _exchange_in_stage(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        stage = rng.integers(self.tables.pipeline)
        first, second = rng.integers(self.tables.data, size=2)
        if self.cells[stage, first] == self.cells[stage, second]:
            return None
        cells = self.cells.copy()
        cells[stage, [first, second]] = cells[stage, [second, first]]
        return self.layers, cells

    def _use_free_place(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        free = np.flatnonzero(self.spare > 0)
        if not len(free):
            return None
        cells = self.cells.copy()
        cells.reshape(-1)[rng.integers(cells.size)] = free[rng.integers(len(free))]
        return self.layers, cells

    def _move_layer(self, rng: np.random.Generator) -> tuple[IntArray, IntArray] | None:
        source, target = rng.integers(len(self.layers), size=2)
        if source == target:
            return None
        layers = self.layers.copy()
        layers[source] -= 1
        layers[target] += 1
        return (layers, self.cells) if self.evaluator.fits(layers) else None
