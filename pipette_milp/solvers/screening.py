"""Fast exact acceptance tests: most moves are refused by a path that is known to exist.

Every path through the event graph is a lower bound on the time of every candidate (formulation, section 3). A
search keeps the paths that were critical lately; a candidate for which one of them is already too long needs
no simulation. What passes is simulated, replicas with changed durations only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipette_milp.accelerate import AVAILABLE, compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.simulator import EventGraph
from pipette_milp.simulator.longest_path import lane_finish_times, node_ends
from pipette_milp.simulator.path_counts import trace
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.incremental import (
    Figures,
    Scratch,
    figures_of,
    scratch_of,
    update_durations,
)
from pipette_milp.solvers.moves import propose

SMOOTHING = 0.02
"""Weight of the mean over replicas, and of communication, against the maximum in `Value.rank`. It leads the
search across plateaus: of several equally slow replicas each can be improved on its own."""
MOST_PATHS = 96
"""Paths kept; the one that refused a move longest ago makes room."""
SLACK = 1e-12
"""Relative; a path's length and the simulated time add up in different orders."""


class Held(NamedTuple):
    """A candidate and everything known about it."""

    layers: IntArray
    cells: IntArray
    lanes: Array
    """[d, rows]"""
    finish: Array
    """[d, p] end of the last backward"""
    guard: Array
    """[p] `update_durations`"""
    step: Array
    """[p]"""
    order: IntArray
    members: IntArray
    lengths: IntArray
    communication: Array
    """[1] sum of all synchronisations and the embedding exchange"""


def held_for(f: Figures) -> Held:
    """Empty arrays."""
    p, d = f.pipeline, f.data
    return Held(
        layers=np.zeros(f.virtual, dtype=np.int64),
        cells=np.zeros((p, d), dtype=np.int64),
        lanes=np.zeros((d, f.rows)),
        finish=np.zeros((d, p)),
        guard=np.zeros(p),
        step=np.zeros(p),
        order=np.zeros((p, d), dtype=np.int64),
        members=np.zeros((p, d), dtype=np.int64),
        lengths=np.zeros(p, dtype=np.int64),
        communication=np.zeros(1),
    )


def copy_held(source: Held, target: Held) -> None:
    """Overwrite ``target``."""
    for values, into in zip(source, target, strict=True):
        np.copyto(into, values)


@compiled
def replica_s(finish, guard, z):
    """Seconds until the barrier as far as replica z is concerned."""
    latest = 0.0
    for s in range(len(guard)):
        latest = max(latest, finish[z, s] + guard[s])
    return latest


@compiled
def tail_s(f, step):
    """Seconds after the barrier."""
    slowest = 0.0
    for s in range(len(step)):
        slowest = max(slowest, step[s])
    return slowest + f.fixed_s


@compiled
def value_of(f, finish, guard, step, communication, smoothing):
    """Simulated seconds and the rank that the search minimises, from complete finish times."""
    d = finish.shape[0]
    worst, total = 0.0, 0.0
    for z in range(d):
        own = replica_s(finish, guard, z)
        worst = max(worst, own)
        total += own
    time = worst + tail_s(f, step)
    return time, time + smoothing * (total / d + communication[0] / f.pipeline)


@compiled
def passes(f, work, current, trial, paths, ends, path_order, number, limit, smoothing, changed):
    """Whether no known path shows that a candidate's rank exceeds the limit.

    Args:
        f, work: `Figures`, `Scratch` with the rings of ``current``
        current: `Held`, not changed
        trial: `Held`; layers and cells of the candidate in, the rest out, finish times only of unchanged
            replicas
        paths, ends: [most, rows] counts of known paths, the stage each ends at
        path_order: order in which to try them; changed: what refuses moves up to the front
        number: how many there are
        limit, smoothing: seconds, see `value_of`
        changed: [d] out; 1 for replicas to simulate
    Returns:
        0 or 1; with 0 ``work`` is as it was, with 1 it holds the rings of the trial.
    """
    p, d = current.cells.shape
    rows = current.lanes.shape[1]
    touched = np.zeros(p + 1, dtype=np.int64)
    any_touched = 0
    for s in range(p):
        for z in range(d):
            if trial.cells[s, z] != current.cells[s, z]:
                touched[s] = 1
                any_touched = 1
                break
    for j in range(f.virtual):
        if trial.layers[j] != current.layers[j]:
            touched[p] = 1
            any_touched = 1
    if any_touched == 0:
        return 0  # the same candidate
    for z in range(d):
        for r in range(rows):
            trial.lanes[z, r] = current.lanes[z, r]
    trial.communication[0] = update_durations(
        f, work, trial.layers, trial.cells, touched, trial.lanes, trial.guard, trial.step
    )
    flat = smoothing * trial.communication[0] / p + tail_s(f, trial.step)
    own = np.zeros(d)
    worst, total = 0.0, 0.0
    for z in range(d):
        like = z
        changed[z] = 0
        if touched[p] == 1 or differ(trial.lanes, z, current.lanes, z):
            # another replica may have had these durations before
            changed[z] = 1
            for other in range(d):
                if not differ(trial.lanes, z, current.lanes, other):
                    changed[z] = 0
                    like = other
                    break
        if changed[z] == 0:
            for s in range(p):
                trial.finish[z, s] = current.finish[like, s]
            own[z] = replica_s(trial.finish, trial.guard, z)
            worst = max(worst, own[z])
            total += own[z]
    refused = (worst + flat + smoothing * total / d) * (1.0 - SLACK) > limit
    i = 0
    while i < number and not refused:
        c = path_order[i]
        for z in range(d):
            if changed[z] == 1:
                length = trial.guard[ends[c]]
                for r in range(rows):
                    length += paths[c, r] * trial.lanes[z, r]
                if length > own[z]:
                    total += length - own[z]
                    own[z] = length
                    worst = max(worst, length)
        refused = (worst + flat + smoothing * total / d) * (1.0 - SLACK) > limit
        if refused:
            path_order[i] = path_order[i // 2]
            path_order[i // 2] = c
        i += 1
    if not refused:
        return 1
    for s in range(p):
        if touched[s] == 1:
            work.lengths[s] = current.lengths[s]
            for i in range(current.lengths[s]):
                work.order[s, i] = current.order[s, i]
                work.members[s, i] = current.members[s, i]
    return 0


@compiled
def differ(lanes, z, other_lanes, other):
    """Whether two lanes are not the same."""
    for r in range(lanes.shape[1]):
        if lanes[z, r] != other_lanes[other, r]:
            return True
    return False


@compiled
def next_promising(
    f,
    work,
    current,
    trial,
    paths,
    ends,
    path_order,
    number,
    draws,
    mix,
    focus,
    limits,
    first,
    smoothing,
    changed,
):
    """Make moves until one passes.

    Args:
        draws: [K, DRAWS] random numbers of K moves
        mix, focus: see `pipette_milp.solvers.moves.propose`
        limits: [K] rank above which a move is refused
        first: index of the first move to make
        The others as in `passes`.
    Returns:
        Index of the move that passed, K if none did.
    """
    p, d = current.cells.shape
    for k in range(first, len(draws)):
        for j in range(f.virtual):
            trial.layers[j] = current.layers[j]
        for s in range(p):
            for z in range(d):
                trial.cells[s, z] = current.cells[s, z]
        if propose(f, draws[k], mix, focus, trial.layers, trial.cells) < 0:
            continue
        if passes(f, work, current, trial, paths, ends, path_order, number, limits[k], smoothing, changed):
            return k
    return len(draws)


@compiled
def node_ends_of(predecessors, duration_row, lanes, z, ends):
    """End of every node of replica z; ``ends`` [n + 1] with the start, 0, last."""
    nodes, most = predecessors.shape
    ends[nodes] = 0.0
    for node in range(nodes):
        start = ends[predecessors[node, 0]]
        for column in range(1, most):
            start = max(start, ends[predecessors[node, column]])
        ends[node] = start + lanes[z, duration_row[node]]


@compiled
def finish_changed(predecessors, duration_row, last_node, lanes, changed, ends, finish):
    """Finish times [d, p] of the replicas with ``changed[z] == 1``, one after another."""
    for z in range(lanes.shape[0]):
        if changed[z] == 1:
            node_ends_of(predecessors, duration_row, lanes, z, ends)
            for s in range(len(last_node)):
                finish[z, s] = ends[last_node[s]]


@compiled
def walk_from(predecessors, duration_row, node, ends, counts):
    """Count the durations on a longest path that ends with ``node``."""
    nodes, most = predecessors.shape
    while node != nodes:
        counts[duration_row[node]] += 1.0
        latest = predecessors[node, 0]
        for column in range(1, most):
            if ends[predecessors[node, column]] > ends[latest]:
                latest = predecessors[node, column]
        node = latest


class Screen:
    """The candidate a search stands at, and the paths that refuse moves."""

    def __init__(self, evaluator: Evaluator, start: Candidate, smoothing: float = SMOOTHING) -> None:
        self.graph: EventGraph = evaluator.graph
        self.f = figures_of(evaluator.tables)
        self.work: Scratch = scratch_of(self.f)
        self.smoothing = smoothing
        self.current, self.trial = held_for(self.f), held_for(self.f)
        self.changed = np.ones(self.f.data, dtype=np.int64)
        self._paths = np.zeros((MOST_PATHS, self.f.rows))
        self._ends = np.zeros(MOST_PATHS, dtype=np.int64)
        self._order = np.arange(MOST_PATHS)
        self._number = 0
        self._known: dict[bytes, int] = {}
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
        below = passes(
            self.f,
            self.work,
            self.current,
            trial,
            self._paths,
            self._ends,
            self._order,
            self._number,
            limit_s,
            0.0,
            self.changed,
        )
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
                self.work,
                self.current,
                self.trial,
                self._paths,
                self._ends,
                self._order,
                self._number,
                draws,
                mix,
                focus,
                limits,
                first,
                self.smoothing,
                self.changed,
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
        else:
            lanes = self.changed == 1
            trial.finish[lanes] = lane_finish_times(graph, trial.lanes[lanes].T).T
        time, rank = value_of(
            self.f, trial.finish, trial.guard, trial.step, trial.communication, self.smoothing
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
        key = bytes([stage % 256]) + path.tobytes()
        if key in self._known:
            return
        if self._number < MOST_PATHS:
            slot = self._number
            self._number += 1
        else:
            slot = int(self._order[-1])
            self._known = {k: c for k, c in self._known.items() if c != slot}
        self._known[key] = slot
        self._paths[slot] = path
        self._ends[slot] = stage
        # to the front: the next moves are much like the one it would have refused
        rank = int(np.flatnonzero(self._order == slot)[0])
        self._order[1 : rank + 1] = self._order[:rank].copy()
        self._order[0] = slot
