"""From the finish times of the stages to the whole iteration.

costs, section 4 ("end of the iteration"): a stage synchronises its gradients once all its replicas have
finished; the tied embedding's exchange follows the synchronisation of stages 0 and p-1; the
gradient-norm barrier waits for all of it; then optimiser and parameter gather of the slowest stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp.arrays import Array
from pipette_milp.cost.durations import Durations
from pipette_milp.errors import InputError, Problem
from pipette_milp.simulator.graph import EventGraph
from pipette_milp.simulator.longest_path import Engine, finish_times


def compose_iteration(
    finish_s: ArrayLike,
    gradient_sync_s: ArrayLike,
    embedding_sync_s: ArrayLike,
    optimizer_s: ArrayLike,
    parameter_gather_s: ArrayLike,
    fixed_s: ArrayLike,
) -> Array:
    """Seconds of the iteration [...], from finish times [..., p, d] and the tail.

    gradient_sync_s, optimizer_s, parameter_gather_s are [..., p]; embedding_sync_s and fixed_s [...].
    Nothing is checked here: local search calls it once a move.
    """
    sync_end = np.max(finish_s, axis=-1) + np.asarray(gradient_sync_s)
    embedding_end = np.maximum(sync_end[..., 0], sync_end[..., -1]) + embedding_sync_s
    step_start = np.maximum(sync_end.max(axis=-1), embedding_end)
    step = np.max(np.asarray(optimizer_s) + np.asarray(parameter_gather_s), axis=-1)
    return np.asarray(step_start + step + fixed_s)


def simulated_s(graph: EventGraph, durations: Durations, *, engine: Engine = "auto") -> float:
    """Seconds of the whole iteration.

    Raises:
        InputError: malformed durations; the message names the fields.
    """
    check_tail(graph, durations)
    finish = finish_times(
        graph,
        durations.forward_s,
        durations.backward_s,
        durations.hop_forward_s,
        durations.hop_backward_s,
        durations.weight_gradient_s,
        engine=engine,
    )
    return float(
        compose_iteration(
            finish,
            durations.gradient_sync_s,
            durations.embedding_sync_s,
            durations.optimizer_s,
            durations.parameter_gather_s,
            durations.fixed_s,
        )
    )


def check_tail(graph: EventGraph, durations: Durations) -> None:
    """Refuse malformed durations of what follows the pipeline.

    Raises:
        InputError: wrong shape, negative, infinite or NaN; one problem a field.
    """
    problems = []
    shapes = {
        "gradient_sync_s": (graph.pipeline,),
        "embedding_sync_s": (),
        "optimizer_s": (graph.pipeline,),
        "parameter_gather_s": (graph.pipeline,),
        "fixed_s": (),
    }
    for name, shape in shapes.items():
        values = np.asarray(getattr(durations, name), dtype=np.float64)
        if values.shape != shape:
            problems.append(Problem(name, f"shape {values.shape}: expected {shape}"))
        elif not (np.isfinite(values).all() and (values >= 0.0).all()):
            problems.append(Problem(name, "negative, infinite or not a number: expected seconds >= 0"))
    if problems:
        raise InputError(problems)
