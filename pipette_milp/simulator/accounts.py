"""Where the time of an iteration goes: along the critical path, and on the GPUs of each cell.

Keys are those of the result file (contract, "critical_path" and "breakdown").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp.arrays import Array
from pipette_milp.cost.durations import Durations
from pipette_milp.errors import InputError, Problem
from pipette_milp.schedules.base import Exchange
from pipette_milp.simulator.graph import BACKWARD, FORWARD, KINDS, EventGraph

PATH_KEYS = ("compute_s", "tensor_comm_s", "pipeline_comm_s", "gradient_sync_s", "optimizer_s", "fixed_s")
"""Keys of ``critical_path``; ``breakdown`` adds stage, replica and bubble_s."""


class PathStep(NamedTuple):
    """One step of the critical path.

    ``kind`` is one of :data:`pipette_milp.simulator.graph.KINDS` or gradient_sync, embedding_sync,
    optimizer, parameter_gather, fixed. ``position`` is the virtual stage of a task, the boundary of a hop,
    the pipeline stage of what follows the pipeline; fields that do not apply are None.
    """

    kind: str
    position: int | None
    micro_batch: int | None
    replica: int | None
    start_s: float
    end_s: float


def tensor_comm_seconds(
    durations: Durations, forward: ArrayLike | None, backward: ArrayLike | None
) -> dict[int, Array]:
    """Checked [V, d] seconds for the kinds that have tensor communication."""
    result = {}
    problems = []
    for kind, name, values, whole in (
        (FORWARD, "tensor_comm_forward_s", forward, durations.forward_s),
        (BACKWARD, "tensor_comm_backward_s", backward, durations.backward_s),
    ):
        part = np.zeros_like(whole) if values is None else np.asarray(values, dtype=np.float64)
        if part.shape != whole.shape:
            problems.append(Problem(name, f"shape {part.shape}: expected {whole.shape}"))
        elif not ((part >= 0.0).all() and (part <= whole).all()):
            problems.append(Problem(name, "expected between 0 and the task's duration"))
        result[kind] = part
    if problems:
        raise InputError(problems)
    return result


def path_account(path: Sequence[PathStep], tensor_comm: dict[int, Array]) -> dict[str, float]:
    """Seconds along the path by :data:`PATH_KEYS`."""
    account = dict.fromkeys(PATH_KEYS, 0.0)
    key_of = {
        "forward": "compute_s",
        "backward": "compute_s",
        "weight_gradient": "compute_s",
        "hop_forward": "pipeline_comm_s",
        "hop_backward": "pipeline_comm_s",
        "gradient_sync": "gradient_sync_s",
        "embedding_sync": "gradient_sync_s",
        "optimizer": "optimizer_s",
        "parameter_gather": "optimizer_s",
        "fixed": "fixed_s",
    }
    for step in path:
        communication = 0.0
        if step.kind in ("forward", "backward"):
            communication = float(tensor_comm[KINDS.index(step.kind)][step.position, step.replica])
        account["tensor_comm_s"] += communication
        account[key_of[step.kind]] += step.end_s - step.start_s - communication
    return account


def busy_seconds(
    graph: EventGraph,
    durations: Durations,
    tensor_comm: dict[int, Array],
    start: Array,
    end: Array,
    finish: Array,
) -> dict[str, Array]:
    """Seconds [p, d] that the GPUs of each cell spend by contract key, waiting left out."""
    p, replicas = finish.shape
    chunks = (graph.virtual_stages, p, replicas)
    tasks = np.zeros(chunks)
    for part in (durations.forward_s, durations.backward_s, durations.weight_gradient_s):
        if part is not None:
            tasks += part.reshape(chunks)
    communication = (tensor_comm[FORWARD] + tensor_comm[BACKWARD]).reshape(chunks)
    per_stage = durations.gradient_sync_s.copy()
    for stage in {0, p - 1}:
        per_stage[stage] += durations.embedding_sync_s
    return {
        "compute_s": graph.num_micro_batches * (tasks - communication).sum(axis=0),
        "tensor_comm_s": graph.num_micro_batches * communication.sum(axis=0),
        "pipeline_comm_s": _exchange_occupancy(graph, start, end, finish.max(axis=1)),
        "gradient_sync_s": np.repeat(per_stage[:, np.newaxis], replicas, axis=1),
        "optimizer_s": np.repeat(
            (durations.optimizer_s + durations.parameter_gather_s)[:, np.newaxis], replicas, axis=1
        ),
        "fixed_s": np.full((p, replicas), durations.fixed_s),
    }


def _exchange_occupancy(graph: EventGraph, start: Array, end: Array, sync_start: Array) -> Array:
    """[p, d] seconds in which some member of a stage's exchanges is under way, up to its synchronisation.

    The last gradient a stage sends may still be under way then; that part counts as synchronisation.
    """
    occupied = np.zeros((graph.pipeline, start.shape[1]))
    for stage, steps in enumerate(graph.program):
        for step in steps:
            if isinstance(step, Exchange):
                nodes = [graph.node(member) for member in step.members]
                first = np.minimum(start[nodes], sync_start[stage])
                last = np.minimum(end[nodes], sync_start[stage])
                occupied[stage] += union_length(first, last)
    return occupied


def union_length(first: Array, last: Array) -> Array:
    """Length of the union of k intervals [k, d], for each of d lanes."""
    order = np.argsort(first, axis=0, kind="stable")
    first = np.take_along_axis(first, order, axis=0)
    last = np.maximum.accumulate(np.take_along_axis(last, order, axis=0), axis=0)
    length = last[0] - first[0]
    for interval in range(1, len(first)):
        length = (
            length
            + last[interval]
            - np.minimum(last[interval], np.maximum(first[interval], last[interval - 1]))
        )
    return np.asarray(length)


def breakdown(busy: dict[str, Array], idle: Array) -> dict[str, Any]:
    """The account of the cell with least idle time."""
    stage, replica = (int(index) for index in np.unravel_index(np.argmin(idle), idle.shape))
    seconds = {key: float(values[stage, replica]) for key, values in busy.items()}
    return {
        "stage": stage,
        "replica": replica,
        "compute_s": seconds["compute_s"],
        "tensor_comm_s": seconds["tensor_comm_s"],
        "pipeline_comm_s": seconds["pipeline_comm_s"],
        # what is left of a sum may be -1e-18 where nothing waits
        "bubble_s": max(0.0, float(idle[stage, replica])),
        "gradient_sync_s": seconds["gradient_sync_s"],
        "optimizer_s": seconds["optimizer_s"],
        "fixed_s": seconds["fixed_s"],
    }
