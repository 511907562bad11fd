"""Kernels of the acceptance tests in `pipette_milp.solvers.screening`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.solvers.incremental import Figures, Scratch, update_durations
from pipette_milp.solvers.moves import Bounds, propose

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


class Paths(NamedTuple):
    """Paths of the event graph that were critical lately."""

    counts: Array
    """[most, rows] how often each duration lies on the path"""
    end: IntArray
    """[most] the stage it ends at"""
    order: IntArray
    """[most] order in which to try them"""
    number: IntArray
    """[1] how many there are; the first so many of ``order``"""


def copy_held(source: Held, target: Held) -> None:
    """Overwrite ``target``."""
    for values, into in zip(source, target, strict=True):
        np.copyto(into, values)


@compiled
def replica_s(finish: Array, guard: Array, z: int) -> float:
    """Seconds until the barrier as far as replica z is concerned."""
    latest = 0.0
    for s in range(len(guard)):
        latest = max(latest, finish[z, s] + guard[s])
    return latest


@compiled
def largest(values: Array) -> float:
    """Maximum of non-negative numbers."""
    most = 0.0
    for value in values:
        most = max(most, value)
    return most


@compiled
def value_of(
    finish: Array, guard: Array, step: Array, fixed_s: float, communication: Array, smoothing: float
) -> tuple[float, float]:
    """Simulated seconds and the rank that the search minimises, from complete finish times."""
    d = finish.shape[0]
    worst, total = 0.0, 0.0
    for z in range(d):
        own = replica_s(finish, guard, z)
        worst = max(worst, own)
        total += own
    time = worst + largest(step) + fixed_s
    return time, time + smoothing * (total / d + communication[0] / len(guard))


@compiled
def passes(
    f: Figures,
    work: Scratch,
    current: Held,
    trial: Held,
    known: Paths,
    limit: float,
    smoothing: float,
    changed: IntArray,
) -> bool:
    """Whether no known path shows that a candidate's rank exceeds the limit.

    Args:
        work: with the rings of ``current``
        current: not changed
        trial: layers and cells of the candidate in, the rest out, finish times only of unchanged replicas
        known: paths to try; what refuses moves up to the front
        limit, smoothing: seconds, see `value_of`
        changed: [d] out; 1 for replicas to simulate
    Returns:
        False leaves ``work`` as it was, True leaves the rings of the trial there.
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
        return False  # the same candidate
    for z in range(d):
        for r in range(rows):
            trial.lanes[z, r] = current.lanes[z, r]
    trial.communication[0] = update_durations(
        f, work, trial.layers, trial.cells, touched, trial.lanes, trial.guard, trial.step
    )
    flat = smoothing * trial.communication[0] / p + largest(trial.step) + f.fixed_s
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
    while i < known.number[0] and not refused:
        c = known.order[i]
        for z in range(d):
            if changed[z] == 1:
                length = trial.guard[known.end[c]]
                for r in range(rows):
                    length += known.counts[c, r] * trial.lanes[z, r]
                if length > own[z]:
                    total += length - own[z]
                    own[z] = length
                    worst = max(worst, length)
        refused = (worst + flat + smoothing * total / d) * (1.0 - SLACK) > limit
        if refused:
            known.order[i] = known.order[i // 2]
            known.order[i // 2] = c
        i += 1
    if not refused:
        return True
    for s in range(p):
        if touched[s] == 1:
            work.lengths[s] = current.lengths[s]
            for i in range(current.lengths[s]):
                work.order[s, i] = current.order[s, i]
                work.members[s, i] = current.members[s, i]
    return False


@compiled
def differ(lanes: Array, z: int, other_lanes: Array, other: int) -> bool:
    """Whether two lanes are not the same."""
    for r in range(lanes.shape[1]):  # noqa: SIM110  a kernel
        if lanes[z, r] != other_lanes[other, r]:
            return True
    return False


@compiled
def next_promising(
    f: Figures,
    bounds: Bounds,
    work: Scratch,
    current: Held,
    trial: Held,
    known: Paths,
    limits: Array,
    smoothing: float,
    changed: IntArray,
    draws: Array,
    mix: Array,
    focus: IntArray,
    first: int,
) -> int:
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
        if not propose(bounds, draws[k], mix, focus, trial.layers, trial.cells):
            continue
        if passes(f, work, current, trial, known, limits[k], smoothing, changed):
            return k
    return len(draws)


@compiled
def node_ends_of(predecessors: IntArray, duration_row: IntArray, lanes: Array, z: int, ends: Array) -> None:
    """End of every node of replica z; ``ends`` [n + 1] with the start, 0, last."""
    nodes, most = predecessors.shape
    ends[nodes] = 0.0
    for node in range(nodes):
        start = ends[predecessors[node, 0]]
        for column in range(1, most):
            start = max(start, ends[predecessors[node, column]])
        ends[node] = start + lanes[z, duration_row[node]]


@compiled
def finish_changed(
    predecessors: IntArray,
    duration_row: IntArray,
    last_node: IntArray,
    lanes: Array,
    changed: IntArray,
    ends: Array,
    finish: Array,
) -> None:
    """Finish times [d, p] of the replicas with ``changed[z] == 1``, one after another."""
    for z in range(lanes.shape[0]):
        if changed[z] == 1:
            node_ends_of(predecessors, duration_row, lanes, z, ends)
            for s in range(len(last_node)):
                finish[z, s] = ends[last_node[s]]


@compiled
def walk_from(predecessors: IntArray, duration_row: IntArray, node: int, ends: Array, counts: Array) -> None:
    """Count the durations on a longest path that ends with ``node``."""
    nodes, most = predecessors.shape
    while node != nodes:
        counts[duration_row[node]] += 1.0
        latest = predecessors[node, 0]
        for column in range(1, most):
            if ends[predecessors[node, column]] > ends[latest]:
                latest = predecessors[node, column]
        node = latest
