"""The event graph of one iteration of one replica: tasks, transfers, who waits for whom.

It depends on the schedule and on the number of micro-batches only, never on durations. Replicas have
the same graph and meet only in the gradient synchronisation (:mod:`pipette_milp.simulator.iteration`).

Rules (costs, section 2). A task starts when the stage has done its previous step and the payload has
arrived. async: a transfer starts when the sending task and the previous transfer of the same boundary
and direction have ended, and holds up nobody but its receiver. exchange: a transfer starts when both
ends have reached it, that is when both have done the step before; a stage goes on when all members of
its exchange have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.schedules import get_schedule
from pipette_milp.schedules.base import ASYNC, Exchange, Program, Task

IntArray = NDArray[np.int64]

KINDS = ("forward", "backward", "weight_gradient", "hop_forward", "hop_backward")
"""Kinds of nodes, by their code in :attr:`EventGraph.kind`."""
FORWARD, BACKWARD, WEIGHT_GRADIENT, HOP_FORWARD, HOP_BACKWARD = range(5)
_TASK_KIND = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT_GRADIENT}
_HOP_KIND = {"F": HOP_FORWARD, "B": HOP_BACKWARD}

Key = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class EventGraph:
    """Nodes in topological order, grouped by depth. ``n`` nodes, ``V`` virtual stages, ``p`` stages."""

    schedule: str
    pipeline: int
    virtual_stages: int
    num_micro_batches: int
    transfers: str
    program: Program
    """Steps of every pipeline stage in execution order."""
    kind: IntArray
    """[n] code of :data:`KINDS`"""
    position: IntArray
    """[n] virtual stage of a task, boundary of a transfer"""
    micro_batch: IntArray
    """[n]"""
    duration_row: IntArray
    """[n] row in the stacked durations: forward [V], backward [V], weight gradient [V] if the schedule has
    one, hop forward [V-1], hop backward [V-1]"""
    predecessors: IntArray
    """[n, most] nodes that must have ended, the unused rest filled with ``n`` (the start)"""
    level_start: IntArray
    """[levels + 1] first node of every depth; nodes of one depth do not wait for each other"""
    last_node: IntArray
    """[p] the last task of every pipeline stage"""

    @property
    def num_virtual_stages(self) -> int:
        """``V = p * v``."""
        return self.pipeline * self.virtual_stages

    @property
    def num_nodes(self) -> int:
        """Tasks and transfers of one replica."""
        return len(self.kind)

    @property
    def num_tasks(self) -> int:
        """Tasks (F, B and W) of one replica, without transfers."""
        return int(np.count_nonzero(self.kind <= WEIGHT_GRADIENT))

    @property
    def separates_weight_gradient(self) -> bool:
        """Whether the weight-gradient pass is a task of its own."""
        return get_schedule(self.schedule).separates_weight_gradient

    def rows_of(self, kind: int) -> slice:
        """Rows of a kind in the stacked durations."""
        return row_slices(self.num_virtual_stages, self.separates_weight_gradient)[kind]


def row_slices(num_virtual_stages: int, separates_weight_gradient: bool) -> tuple[slice, ...]:
    """Rows of every kind in the stacked durations, in the order of :data:`KINDS`."""
    tasks, hops = num_virtual_stages, num_virtual_stages - 1
    lengths = (tasks, tasks, tasks if separates_weight_gradient else 0, hops, hops)
    ends = np.cumsum(lengths).tolist()
    return tuple(slice(end - length, end) for end, length in zip(ends, lengths, strict=True))


@lru_cache(maxsize=256)
def event_graph(
    schedule: str, pipeline: int, virtual_stages: int, num_micro_batches: int, transfers: str
) -> EventGraph:
    """The graph of a schedule.

    Raises
    ------
    IllegalConfigurationError
        If the schedule is unknown or this use of it is illegal; the message gives the rule.
    """
    rules = get_schedule(schedule)
    reason = rules.legality(pipeline, virtual_stages, num_micro_batches, transfers)
    if reason is not None:
        raise IllegalConfigurationError(Problem("schedule", reason))
    program = rules.program(pipeline, virtual_stages, num_micro_batches, transfers)
    waits = _async_waits(program) if transfers == ASYNC else _exchange_waits(program)
    _add_payloads(waits, pipeline * virtual_stages)
    if transfers == ASYNC:
        _add_channels(waits)
    return _assemble(
        (schedule, pipeline, virtual_stages, num_micro_batches, transfers),
        program,
        waits,
        rules.separates_weight_gradient,
    )


def _async_waits(program: Program) -> dict[Key, list[Key]]:
    """Every task waits for the one before it on its stage."""
    waits: dict[Key, list[Key]] = {}
    for steps in program:
        previous: list[Key] = []
        for step in steps:
            key = _task_key(step)
            waits[key] = previous
            previous = [key]
    return waits


def _exchange_waits(program: Program) -> dict[Key, list[Key]]:
    """Tasks and transfers wait for the step before them, a transfer for that of both its ends."""
    waits: dict[Key, list[Key]] = {}
    for steps in program:
        previous: list[Key] = []
        for step in steps:
            if isinstance(step, Exchange):
                members = [(_HOP_KIND[m.kind], m.boundary, m.micro_batch) for m in step.members]
                for key in members:
                    waits.setdefault(key, []).extend(previous)
                previous = members
            else:
                key = _task_key(step)
                waits.setdefault(key, []).extend(previous)
                previous = [key]
    return waits


def _task_key(step: Task | Exchange) -> Key:
    if isinstance(step, Exchange):
        raise TypeError("an exchange is not a task")
    return _TASK_KIND[step.kind], step.virtual_stage, step.micro_batch


def _add_payloads(waits: dict[Key, list[Key]], num_virtual_stages: int) -> None:
    """A task needs its payload, a transfer the task that makes it.

    That a W follows its B, and the last virtual stage's B its F, is the order of one stage.
    """
    last = num_virtual_stages - 1
    for key in list(waits):
        kind, position, m = key
        if kind == FORWARD and position > 0:
            _payload(waits, (HOP_FORWARD, position - 1, m), (FORWARD, position - 1, m), key)
        elif kind == BACKWARD and position < last:
            _payload(waits, (HOP_BACKWARD, position, m), (BACKWARD, position + 1, m), key)


def _payload(waits: dict[Key, list[Key]], hop: Key, sender: Key, receiver: Key) -> None:
    hop_waits = waits.setdefault(hop, [])
    if sender not in hop_waits:
        hop_waits.append(sender)
    if hop not in waits[receiver]:
        waits[receiver].append(hop)


def _add_channels(waits: dict[Key, list[Key]]) -> None:
    """async: transfers of one boundary and direction are served one at a time, in micro-batch order."""
    for key in waits:
        kind, position, m = key
        if kind in (HOP_FORWARD, HOP_BACKWARD) and m > 0:
            waits[key].append((kind, position, m - 1))


def _assemble(
    names: tuple[str, int, int, int, str],
    program: Program,
    waits: dict[Key, list[Key]],
    separates_weight_gradient: bool,
) -> EventGraph:
    depth = _depths(waits)
    keys = sorted(waits, key=lambda key: (depth[key], key[1], key[0], key[2]))
    number = {key: index for index, key in enumerate(keys)}
    n = len(keys)
    most = max(1, max(len(set(needed)) for needed in waits.values()))
    predecessors = np.full((n, most), n, dtype=np.int64)
    for index, key in enumerate(keys):
        needed = sorted({number[other] for other in waits[key]})
        predecessors[index, : len(needed)] = needed
    kind, position, micro_batch = np.array(keys, dtype=np.int64).T
    rows = row_slices(names[1] * names[2], separates_weight_gradient)
    first_row = np.array([row.start for row in rows], dtype=np.int64)
    depths = np.array([depth[key] for key in keys])
    level_start = np.searchsorted(depths, np.arange(depths[-1] + 2))
    last_tasks = [next(step for step in reversed(steps) if isinstance(step, Task)) for steps in program]
    arrays = {
        "kind": np.ascontiguousarray(kind),
        "position": np.ascontiguousarray(position),
        "micro_batch": np.ascontiguousarray(micro_batch),
        "duration_row": first_row[kind] + position,
        "predecessors": predecessors,
        "level_start": level_start.astype(np.int64),
        "last_node": np.array([number[_task_key(task)] for task in last_tasks], dtype=np.int64),
    }
    for array in arrays.values():
        array.flags.writeable = False
    return EventGraph(*names, program, **arrays)


def _depths(waits: dict[Key, list[Key]]) -> dict[Key, int]:
    """Longest chain of nodes before each node; every node's predecessors are less deep."""
    followers: dict[Key, list[Key]] = {key: [] for key in waits}
    missing = {key: len(needed) for key, needed in waits.items()}
    for key, needed in waits.items():
        for other in needed:
            followers[other].append(key)
    depth: dict[Key, int] = {}
    ready = [key for key, count in missing.items() if count == 0]
    while ready:
        key = ready.pop()
        depth[key] = 1 + max((depth[other] for other in waits[key]), default=-1)
        for follower in followers[key]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if len(depth) < len(waits):
        stuck = sorted(key for key in waits if key not in depth)[:3]
        raise ValueError(f"the programs of the stages wait for each other for ever, first {stuck}")
    return depth
