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
from functools import cached_property, lru_cache

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.schedules import get_schedule
from pipette_milp.schedules.base import ASYNC, Exchange, Program, Task, Transfer

KINDS = ("forward", "backward", "weight_gradient", "hop_forward", "hop_backward")
"""Kinds of nodes, by their code in :attr:`EventGraph.kind`."""
FORWARD, BACKWARD, WEIGHT_GRADIENT, HOP_FORWARD, HOP_BACKWARD = range(5)
_TASK_KIND = {"F": FORWARD, "B": BACKWARD, "W": WEIGHT_GRADIENT}
_HOP_KIND = {"F": HOP_FORWARD, "B": HOP_BACKWARD}


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
    rows: tuple[slice, ...]
    """Rows of every kind in the stacked durations: forward [V], backward [V], weight gradient [V] if the
    schedule has one, hop forward [V-1], hop backward [V-1]"""
    duration_row: IntArray
    """[n] row in the stacked durations"""
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

    @cached_property
    def node_of(self) -> IntArray:
        """[rows, M] node of a duration row and micro-batch."""
        nodes = np.empty((self.rows[-1].stop, self.num_micro_batches), dtype=np.int64)
        nodes[self.duration_row, self.micro_batch] = np.arange(self.num_nodes)
        nodes.flags.writeable = False
        return nodes

    def node(self, part: Task | Transfer) -> int:
        """Node of a task, or of the hop that a transfer is one end of."""
        if isinstance(part, Task):
            row = self.rows[_TASK_KIND[part.kind]].start + part.virtual_stage
        else:
            row = self.rows[_HOP_KIND[part.kind]].start + part.boundary
        return int(self.node_of[row, part.micro_batch])

    @property
    def separates_weight_gradient(self) -> bool:
        """Whether the weight-gradient pass is a task of its own."""
        return self.rows[WEIGHT_GRADIENT].start < self.rows[WEIGHT_GRADIENT].stop


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

    Raises:
        IllegalConfigurationError: unknown schedule, or an illegal use of it; the message
            gives the rule.
    """
    rules = get_schedule(schedule)
    reason = rules.legality(pipeline, virtual_stages, num_micro_batches, transfers)
    if reason is not None:
        raise IllegalConfigurationError(Problem("schedule", reason))
    program = rules.program(pipeline, virtual_stages, num_micro_batches, transfers)
    numbering = _Numbering(pipeline * virtual_stages, num_micro_batches, rules.separates_weight_gradient)
    waits = [_program_waits(numbering, program), _payload_waits(numbering)]
    if transfers == ASYNC:
        waits.append(_channel_waits(numbering))
    last_tasks = [next(step for step in reversed(steps) if isinstance(step, Task)) for steps in program]
    arrays = _sorted_by_depth(
        numbering, np.concatenate(waits), np.array([numbering.of_task(task) for task in last_tasks])
    )
    return EventGraph(
        schedule,
        pipeline,
        virtual_stages,
        num_micro_batches,
        transfers,
        program,
        rows=numbering.rows,
        **arrays,
    )


class _Numbering:
    """Provisional node numbers: by duration row, then micro-batch."""

    def __init__(
        self, num_virtual_stages: int, num_micro_batches: int, separates_weight_gradient: bool
    ) -> None:
        self.rows = row_slices(num_virtual_stages, separates_weight_gradient)
        self.num_micro_batches = num_micro_batches
        self.num_nodes = self.rows[-1].stop * num_micro_batches
        self._task_start = {
            name: self.rows[kind].start * num_micro_batches for name, kind in _TASK_KIND.items()
        }
        self._hop_start = {
            name: self.rows[kind].start * num_micro_batches for name, kind in _HOP_KIND.items()
        }

    def of_task(self, task: Task) -> int:
        """Node of a task."""
        kind, virtual_stage, micro_batch = task
        return self._task_start[kind] + virtual_stage * self.num_micro_batches + micro_batch

    def of_transfer(self, transfer: Transfer) -> int:
        """Node of a hop, the same from both its ends."""
        _, kind, boundary, micro_batch = transfer
        return self._hop_start[kind] + boundary * self.num_micro_batches + micro_batch

    def block(self, kind: int) -> IntArray:
        """[rows of the kind, M] node numbers."""
        rows = self.rows[kind]
        first, beyond = rows.start * self.num_micro_batches, rows.stop * self.num_micro_batches
        return np.arange(first, beyond, dtype=np.int64).reshape(-1, self.num_micro_batches)


def _pairs(node: IntArray, needs: IntArray) -> IntArray:
    """[k, 2]: each node waits for what it needs."""
    return np.stack((node.ravel(), needs.ravel()), axis=1)


def _program_waits(numbering: _Numbering, program: Program) -> IntArray:
    """Every step waits for the step before it on its stage; a transfer does so on both its ends."""
    waiting: list[int] = []
    needed: list[int] = []
    for steps in program:
        previous: list[int] = []
        for step in steps:
            if isinstance(step, Exchange):
                nodes = [numbering.of_transfer(member) for member in step.members]
            else:
                nodes = [numbering.of_task(step)]
            for node in nodes:
                for other in previous:
                    waiting.append(node)
                    needed.append(other)
            previous = nodes
    return _pairs(np.array(waiting, dtype=np.int64), np.array(needed, dtype=np.int64))


def _payload_waits(numbering: _Numbering) -> IntArray:
    """A task waits for its payload, a transfer for the task that makes it.

    That a W follows its B, and the last virtual stage's B its F, is the order of one stage.
    """
    forward, backward = numbering.block(FORWARD), numbering.block(BACKWARD)
    hop_forward, hop_backward = numbering.block(HOP_FORWARD), numbering.block(HOP_BACKWARD)
    return np.concatenate(
        (
            _pairs(hop_forward, forward[:-1]),
            _pairs(forward[1:], hop_forward),
            _pairs(hop_backward, backward[1:]),
            _pairs(backward[:-1], hop_backward),
        )
    )


def _channel_waits(numbering: _Numbering) -> IntArray:
    """async: transfers of one boundary and direction are served one at a time, in micro-batch order."""
    hops = np.concatenate((numbering.block(HOP_FORWARD), numbering.block(HOP_BACKWARD)))
    return _pairs(hops[:, 1:], hops[:, :-1])


def _sorted_by_depth(numbering: _Numbering, waits: IntArray, last_node: IntArray) -> dict[str, IntArray]:
    """The arrays of :class:`EventGraph`, nodes renumbered by depth, then duration row, then micro-batch."""
    n = numbering.num_nodes
    waits = np.stack(np.divmod(np.unique(waits[:, 0] * n + waits[:, 1]), n), axis=1)
    depth = _depths(n, waits)
    old_numbers = np.argsort(depth, kind="stable")
    number = np.empty(n, dtype=np.int64)
    number[old_numbers] = np.arange(n)
    node, needs = number[waits[:, 0]], number[waits[:, 1]]
    by_node = np.lexsort((needs, node))
    node, needs = node[by_node], needs[by_node]
    first_of_node = np.searchsorted(node, np.arange(n))
    column = np.arange(len(node)) - first_of_node[node]
    predecessors = np.full((n, int(column.max(initial=0)) + 1), n, dtype=np.int64)
    predecessors[node, column] = needs
    row, micro_batch = np.divmod(old_numbers, numbering.num_micro_batches)
    row_start = np.array([rows.start for rows in numbering.rows], dtype=np.int64)
    row_kind = np.repeat(np.arange(len(KINDS)), [rows.stop - rows.start for rows in numbering.rows])
    kind = row_kind[row]
    arrays = {
        "kind": kind,
        "position": row - row_start[kind],
        "micro_batch": micro_batch,
        "duration_row": row,
        "predecessors": predecessors,
        "level_start": np.searchsorted(depth[old_numbers], np.arange(depth.max() + 2)),
        "last_node": number[last_node],
    }
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def _depths(n: int, waits: IntArray) -> IntArray:
    """Longest chain of nodes before each node; every node's predecessors are less deep.

    Plain lists: a graph has some hundred depths with a handful of nodes each, too few for arrays.
    """
    followers: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for node, needed in waits.tolist():
        followers[needed].append(node)
        missing[node] += 1
    depth = [0] * n
    ready = [node for node in range(n) if missing[node] == 0]
    for node in ready:  # grows while it is read: every node enters once all it waits for are in front of it
        for follower in followers[node]:
            depth[follower] = max(depth[follower], depth[node] + 1)
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    if len(ready) < n:
        raise ValueError("the programs of the stages wait for each other for ever")
    return np.array(depth, dtype=np.int64)
