"""One iteration explained: when everything happens, what it waits for, where the time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp.arrays import Array
from pipette_milp.cost.durations import Durations
from pipette_milp.errors import InputError, Problem
from pipette_milp.simulator.accounts import (
    PathStep,
    breakdown,
    busy_seconds,
    path_account,
    tensor_comm_seconds,
)
from pipette_milp.simulator.graph import KINDS, EventGraph
from pipette_milp.simulator.iteration import check_tail, compose_iteration
from pipette_milp.simulator.longest_path import node_ends, stack_durations


@dataclass(frozen=True, eq=False)
class Timeline:
    """Everything about one simulated iteration. ``n`` nodes of the graph, ``d`` replicas, ``p`` stages."""

    graph: EventGraph
    durations: Durations
    start_s: Array
    """[n, d] start of every task and transfer"""
    end_s: Array
    """[n, d]"""
    slack_s: Array
    """[n, d] how much longer each alone could take without changing ``simulated_s``"""
    finish_s: Array
    """[p, d] end of the last backward"""
    sync_end_s: Array
    """[p] end of the gradient synchronisation"""
    step_start_s: float
    """The gradient-norm barrier: every stage starts its optimiser here."""
    simulated_s: float
    path: tuple[PathStep, ...]
    """The critical path, without gaps from 0 to ``simulated_s``"""
    critical_path: dict[str, float]
    """Seconds along it by :data:`PATH_KEYS`; they sum to ``simulated_s``."""
    idle_s: Array
    """[p, d] all waiting of the GPUs of each cell"""
    breakdown: dict[str, Any]
    """Timeline of the cell with least idle time by contract keys; its seconds sum to ``simulated_s``."""


def simulate(
    graph: EventGraph,
    durations: Durations,
    tensor_comm_forward_s: ArrayLike | None = None,
    tensor_comm_backward_s: ArrayLike | None = None,
) -> Timeline:
    """Simulate one iteration and explain it.

    Args:
        tensor_comm_forward_s, tensor_comm_backward_s: [V, d] seconds of forward_s and backward_s that are
            exposed tensor communication (0 if left out); they change no time, only the account.

    Raises:
        InputError: malformed durations; the message names the field.
    """
    check_tail(graph, durations)
    by_kind = (
        durations.forward_s,
        durations.backward_s,
        durations.weight_gradient_s,
        durations.hop_forward_s,
        durations.hop_backward_s,
    )
    stacked, lead, _ = stack_durations(graph, by_kind)
    if lead:
        raise InputError(Problem("durations", f"leading axes {lead}: expected [virtual stage, replica]"))
    exposed = tensor_comm_seconds(durations, tensor_comm_forward_s, tensor_comm_backward_s)

    ends = node_ends(graph, stacked)
    node_durations = stacked[graph.duration_row]
    start = ends[graph.predecessors].max(axis=1)
    end = ends[:-1]
    finish = end[graph.last_node]
    sync_end = finish.max(axis=1) + durations.gradient_sync_s
    step_start = max(
        float(sync_end.max()), max(float(sync_end[0]), float(sync_end[-1])) + durations.embedding_sync_s
    )
    total = float(
        compose_iteration(
            finish,
            durations.gradient_sync_s,
            durations.embedding_sync_s,
            durations.optimizer_s,
            durations.parameter_gather_s,
            durations.fixed_s,
        )
    )
    path = _critical_path(graph, durations, ends, start, sync_end, step_start, total)
    busy = busy_seconds(graph, durations, exposed, start, end, finish)
    idle = np.asarray(total - sum(busy.values()))
    return Timeline(
        graph=graph,
        durations=durations,
        start_s=start,
        end_s=end,
        slack_s=_slack(graph, durations, ends, node_durations, step_start),
        finish_s=finish,
        sync_end_s=sync_end,
        step_start_s=step_start,
        simulated_s=total,
        path=path,
        critical_path=path_account(path, exposed),
        idle_s=idle,
        breakdown=breakdown(busy, idle),
    )


def _critical_path(
    graph: EventGraph,
    durations: Durations,
    ends: Array,
    start: Array,
    sync_end: Array,
    step_start: float,
    total: float,
) -> tuple[PathStep, ...]:
    """Back from the end: the slowest optimiser, the synchronisation it waited for, then task by task."""
    step_s = durations.optimizer_s + durations.parameter_gather_s
    slowest = int(np.argmax(step_s))
    optimizer_end = step_start + float(durations.optimizer_s[slowest])
    gather_end = step_start + float(step_s[slowest])
    steps = [
        PathStep("fixed", None, None, None, gather_end, total),
        PathStep("parameter_gather", slowest, None, None, optimizer_end, gather_end),
        PathStep("optimizer", slowest, None, None, step_start, optimizer_end),
    ]
    stage = int(np.argmax(sync_end))
    if step_start > sync_end[stage]:
        stage = 0 if sync_end[0] >= sync_end[-1] else graph.pipeline - 1
        steps.append(PathStep("embedding_sync", stage, None, None, float(sync_end[stage]), step_start))
    last = graph.last_node[stage]
    replica = int(np.argmax(ends[last]))
    steps.append(
        PathStep("gradient_sync", stage, None, None, float(ends[last, replica]), float(sync_end[stage]))
    )
    node = int(last)
    while node != graph.num_nodes:
        steps.append(
            PathStep(
                KINDS[graph.kind[node]],
                int(graph.position[node]),
                int(graph.micro_batch[node]),
                replica,
                float(start[node, replica]),
                float(ends[node, replica]),
            )
        )
        candidates = graph.predecessors[node]
        node = int(candidates[np.argmax(ends[candidates, replica])])
    return tuple(reversed(steps))


def _slack(
    graph: EventGraph, durations: Durations, ends: Array, node_durations: Array, step_start: float
) -> Array:
    """[n, d] latest end that leaves the barrier where it is, minus the end."""
    latest_sync = np.full(graph.pipeline, step_start)
    latest_sync[[0, -1]] = step_start - durations.embedding_sync_s
    latest = np.full_like(ends, np.inf)
    latest[graph.last_node] = (latest_sync - durations.gradient_sync_s)[:, np.newaxis]
    levels = list(zip(graph.level_start[:-1].tolist(), graph.level_start[1:].tolist(), strict=True))
    for first, beyond in reversed(levels):
        latest_start = latest[first:beyond] - node_durations[first:beyond]
        for column in range(graph.predecessors.shape[1]):
            np.minimum.at(latest, graph.predecessors[first:beyond, column], latest_start)
    # rounding leaves some 1e-16 of either sign on the critical path
    return np.maximum(latest[:-1] - ends[:-1], 0.0)
