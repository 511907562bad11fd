"""Fast exact acceptance tests: most moves are refused by a path that is known to exist.

Every path through the event graph is a lower bound on the time of every candidate (formulation, section 3).
A search keeps the paths that were critical lately; a candidate for which one of them is already too long
needs no simulation. What passes is simulated, replicas with changed durations only.
"""

from __future__ import annotations

import numpy as np

from pipette_milp.accelerate import AVAILABLE
from pipette_milp.arrays import Array, IntArray
from pipette_milp.simulator import EventGraph
from pipette_milp.simulator.longest_path import lane_finish_times, node_ends
from pipette_milp.simulator.path_counts import trace
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.incremental import Scratch, figures_of, scratch_of, update_durations
from pipette_milp.solvers.moves import bounds_of
from pipette_milp.solvers.screening_kernels import (
    Paths,
    copy_held,
    finish_changed,
    held_for,
    next_promising,
    node_ends_of,
    passes,
    value_of,
    walk_from,
)

SMOOTHING = 0.02
"""Weight of the mean over replicas, and of communication, against the maximum in the rank that a search
minimises. It leads across plateaus: of several equally slow replicas each can be improved on its own."""
MOST_PATHS = 96
"""Paths kept; the one that refused a move longest ago makes room."""


class Screen:
    """The candidate a search stands at, and the paths that refuse moves."""

    def __init__(self, evaluator: Evaluator, start: Candidate, smoothing: float = SMOOTHING) -> None:
        if evaluator.tables.detail is not None:
            raise ValueError("incremental evaluation rests on linear tables, which this family has not")
        self.graph: EventGraph = evaluator.graph
        self.f = figures_of(evaluator.tables)
        self.bounds = bounds_of(evaluator.tables)
        self.work: Scratch = scratch_of(self.f)
        self.smoothing = smoothing
        self.current, self.trial = held_for(self.f), held_for(self.f)
        self.changed = np.ones(self.f.data, dtype=np.int64)
        self._known = Paths(
            counts=np.zeros((MOST_PATHS, self.f.rows)),
            end=np.zeros(MOST_PATHS, dtype=np.int64),
            order=np.arange(MOST_PATHS),
            number=np.zeros(1, dtype=np.int64),
        )
        self._slot_of: dict[bytes, int] = {}
        self._node_ends = np.zeros(self.graph.num_nodes + 1)
        self.time_s = 0.0
        self.rank_s = 0.0
        self.moved_to(start)

    def moved_to(self, candidate: Candidate) -> None:
        """Stand at another candidate."""
        trial = self.trial
        trial.layers[:] = candidate.layers
        trial.cells[:] = candidate.node_of_cell
        everything = np.ones(self.f.pipeline + 1, dtype=np.int64)
        trial.communication[0] = update_durations(
            self.f,
            self.work,
            trial.layers,
            trial.cells,
            everything,
            trial.lanes,
            trial.guard,
            trial.step,
        )
        self.changed[:] = 1
        self.take(np.inf)

    def time_if_below(self, candidate: Candidate, limit_s: float) -> float:
        """Simulated seconds of another candidate; inf if a known path shows that they are above the limit."""
        trial = self.trial
        trial.layers[:] = candidate.layers
        trial.cells[:] = candidate.node_of_cell
        below = passes(self.f, self.work, self.current, trial, self._known, limit_s, 0.0, self.changed)
        time_s = self.simulate(-np.inf)[0] if below else np.inf
        self.refuse()
        return time_s

    def time_of(self, candidate: Candidate) -> float:
        """Simulated seconds of any candidate."""
        if self.stands_at(candidate):
            return self.time_s
        return self.time_if_below(candidate, np.inf)

    def stands_at(self, candidate: Candidate) -> bool:
        """Whether it is the candidate it stands at."""
        same_layers = np.array_equal(candidate.layers, self.current.layers)
        return same_layers and np.array_equal(candidate.node_of_cell, self.current.cells)

    def next_promising(self, draws: Array, mix: Array, focus: IntArray, limits: Array, first: int) -> int:
        """`next_promising` from the candidate it stands at."""
        return int(
            next_promising(
                self.f,
                self.bounds,
                self.work,
                self.current,
                self.trial,
                self._known,
                limits,
                self.smoothing,
                self.changed,
                draws,
                mix,
                focus,
                first,
            )
        )

    def simulate(self, limit: float) -> tuple[float, float]:
        """Simulated seconds and rank of the trial; keeps the path that would have refused it if above
        limit."""
        trial, graph = self.trial, self.graph
        if AVAILABLE:
            finish_changed(
                graph.predecessors,
                graph.duration_row,
                graph.last_node,
                trial.lanes,
                self.changed,
                self._node_ends,
                trial.finish,
            )
        elif self.changed.any():
            lanes = self.changed == 1
            trial.finish[lanes] = lane_finish_times(graph, trial.lanes[lanes].T, "numpy").T
        time, rank = value_of(
            trial.finish, trial.guard, trial.step, self.f.fixed_s, trial.communication, self.smoothing
        )
        if rank > limit and self.changed.any():
            through = np.where(self.changed[:, None] == 1, trial.finish + trial.guard, -1.0)
            z, stage = np.unravel_index(int(through.argmax()), through.shape)
            self._keep(self._path(trial.lanes, int(z), int(stage)), int(stage))
        return float(time), float(rank)

    def take(self, limit: float) -> bool:
        """Simulate the trial and stand there if its rank is within the limit."""
        time_s, rank_s = self.simulate(limit)
        if rank_s > limit:
            self.refuse()
            return False
        self.time_s, self.rank_s = time_s, rank_s
        self.accept()
        return True

    def accept(self) -> None:
        """The trial becomes the candidate it stands at."""
        self.trial.order[:] = self.work.order
        self.trial.members[:] = self.work.members
        self.trial.lengths[:] = self.work.lengths
        copy_held(self.trial, self.current)

    def refuse(self) -> None:
        """Back to the candidate it stood at."""
        self.work.order[:] = self.current.order
        self.work.members[:] = self.current.members
        self.work.lengths[:] = self.current.lengths

    def candidate(self) -> Candidate:
        """A copy of where it stands."""
        return Candidate(self.current.layers.copy(), self.current.cells.copy())

    def critical_path(self) -> tuple[int, int, Array]:
        """Slowest replica, the stage its path ends at, and the path's counts [rows]."""
        through = self.current.finish + self.current.guard
        z, stage = np.unravel_index(int(through.argmax()), through.shape)
        path = self._path(self.current.lanes, int(z), int(stage))
        self._keep(path, int(stage))
        return int(z), int(stage), path

    def _path(self, lanes: Array, z: int, stage: int) -> Array:
        graph = self.graph
        if not AVAILABLE:
            ends = node_ends(graph, np.ascontiguousarray(lanes[z, :, None]))
            return np.asarray(trace(graph, ends, np.array([stage]), self.f.rows)[0], dtype=np.float64)
        counts = np.zeros(self.f.rows)
        node_ends_of(graph.predecessors, graph.duration_row, lanes, z, self._node_ends)
        walk_from(
            graph.predecessors, graph.duration_row, int(graph.last_node[stage]), self._node_ends, counts
        )
        return counts

    def _keep(self, path: Array, stage: int) -> None:
        """Try this path first from now on; the moves to come are much like the one it would have refused."""
        key = stage.to_bytes(4, "little") + path.tobytes()
        if key in self._slot_of:
            return
        known = self._known
        if known.number[0] < MOST_PATHS:
            slot = int(known.number[0])
            known.number[0] += 1
        else:
            slot = int(known.order[-1])
            self._slot_of = {other: s for other, s in self._slot_of.items() if s != slot}
        self._slot_of[key] = slot
        known.counts[slot] = path
        known.end[slot] = stage
        place = int(np.flatnonzero(known.order == slot)[0])
        known.order[1 : place + 1] = known.order[:place].copy()
        known.order[0] = slot
