"""Longest paths through the event graph, for many candidates and replicas at once.

A *lane* is one replica of one candidate. All lanes share the graph; the arrays below hold one row per
duration or node and one column per lane.

Two engines with identical results (the same additions and maxima in the same order): plain numpy, depth
by depth, and a compiled loop where numba is installed (:mod:`pipette_milp.simulator.compiled`).

Local search: a lane depends on nothing but its own durations, so a move needs ``finish_times`` for the
replicas whose durations it changed only (slice the last axis), then ``compose_iteration`` over the
finish times of all replicas. ``lane_finish_times`` leaves out the checks, about half the time of a call
for one replica.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp import accelerate
from pipette_milp.arrays import Array
from pipette_milp.errors import InputError, Problem
from pipette_milp.simulator.graph import KINDS, EventGraph

Engine = Literal["auto", "numpy", "numba"]

ENDS_BYTES = 2**26
"""Most memory for the ends of all nodes at once: 1,000 candidates of 128 replicas would take gigabytes."""


def finish_times(
    graph: EventGraph,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    hop_forward_s: ArrayLike,
    hop_backward_s: ArrayLike,
    weight_gradient_s: ArrayLike | None = None,
    *,
    engine: Engine = "auto",
) -> Array:
    """End of the last backward (B or W) of every pipeline stage, in seconds after the start.

    Args:
        forward_s, backward_s, weight_gradient_s: [..., V, d] seconds; the last one exactly where
            the schedule separates the weight gradient.
        hop_forward_s, hop_backward_s: [..., V-1, d] seconds.
            Leading axes (candidates) and d are broadcast against each other.
        engine: "auto" is the compiled loop where numba is installed, else numpy.

    Returns:
        [..., p, d]

    Raises:
        InputError: wrong shape, negative, infinite or NaN durations; the message names the field.
    """
    durations = (forward_s, backward_s, weight_gradient_s, hop_forward_s, hop_backward_s)
    stacked, lead, replicas = stack_durations(graph, durations)
    finish = lane_finish_times(graph, stacked, engine)
    return np.moveaxis(finish.reshape(graph.pipeline, *lead, replicas), 0, -2)


def lane_finish_times(graph: EventGraph, stacked: Array, engine: Engine = "auto") -> Array:
    """:func:`finish_times` for inner loops: stacked durations [rows, lanes] to [p, lanes], unchecked.

    Rows as in :attr:`EventGraph.rows`; a caller that keeps its durations stacked changes rows in place.
    """
    if takes_compiled(engine):
        from pipette_milp.simulator.compiled import last_ends

        return last_ends(graph, stacked)
    blocks = [node_ends(graph, stacked[:, lanes])[graph.last_node] for lanes in lane_blocks(graph, stacked)]
    return np.concatenate(blocks, axis=1)


def takes_compiled(engine: Engine) -> bool:
    """Whether the compiled loops run.

    Raises:
        ValueError: numba is asked for by name and not there; the uncompiled loop would take minutes.
    """
    if engine == "numba" and not accelerate.AVAILABLE:
        raise ValueError("engine 'numba': numba is not installed (extra `fast`) or turned off")
    return engine != "numpy" and accelerate.AVAILABLE


def stack_durations(
    graph: EventGraph, durations: tuple[ArrayLike | None, ...]
) -> tuple[Array, tuple[int, ...], int]:
    """Check and stack the durations, given in the order of :data:`KINDS`: rows by lanes.

    Returns the stacked array [rows, lanes] (see :attr:`EventGraph.duration_row`), the leading shape and d;
    lanes = product of the leading shape and d.
    """
    fields = dict(zip(KINDS, durations, strict=True))
    arrays: dict[str, Array] = {}
    problems = []
    for kind, (name, values) in enumerate(fields.items()):
        rows = graph.rows[kind]
        expected = rows.stop - rows.start
        if name == "weight_gradient" and not graph.separates_weight_gradient:
            if values is not None:
                message = f"schedule {graph.schedule} has no weight-gradient task: leave it out"
                problems.append(Problem(f"{name}_s", message))
            continue
        if values is None:
            problems.append(Problem(f"{name}_s", f"schedule {graph.schedule} needs it"))
            continue
        array = np.asarray(values, dtype=np.float64)
        if array.ndim < 2 or array.shape[-2] != expected:
            message = f"shape {array.shape}: expected [..., {expected}, replicas]"
            problems.append(Problem(f"{name}_s", message))
        elif not _valid(array):
            problems.append(Problem(f"{name}_s", "negative, infinite or not a number: expected seconds >= 0"))
        else:
            arrays[name] = array
    if problems:
        raise InputError(problems)
    lead, replicas = _common_shape(arrays)
    stacked = np.empty((graph.rows[-1].stop, math.prod(lead) * replicas))
    for name, array in arrays.items():
        rows = graph.rows[KINDS.index(name)]
        count = rows.stop - rows.start
        full = np.broadcast_to(array, (*lead, count, replicas))
        stacked[rows].reshape(count, *lead, replicas)[...] = np.moveaxis(full, -2, 0)
    return stacked, lead, replicas


def _valid(array: Array) -> bool:
    """All finite and not negative; NaN fails every comparison."""
    return array.size == 0 or bool(array.min() >= 0.0 and array.max() < np.inf)


def _common_shape(arrays: dict[str, Array]) -> tuple[tuple[int, ...], int]:
    try:
        shape = np.broadcast_shapes(*((*array.shape[:-2], array.shape[-1]) for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name}_s {array.shape}" for name, array in arrays.items())
        message = f"leading axes or replicas do not agree: {shapes}"
        raise InputError(Problem("durations", message)) from None
    return tuple(shape[:-1]), shape[-1]


def lane_blocks(graph: EventGraph, stacked: Array) -> list[slice]:
    """All lanes, at most as many at once as keep the ends of all their nodes below :data:`ENDS_BYTES`."""
    width = max(1, ENDS_BYTES // (8 * (graph.num_nodes + 1)))
    lanes = stacked.shape[1]
    return [slice(first, min(first + width, lanes)) for first in range(0, max(lanes, 1), width)]


def node_ends(graph: EventGraph, stacked: Array) -> Array:
    """End of every node [n + 1, lanes]; the last row is the start, 0."""
    ends = np.zeros((graph.num_nodes + 1, stacked.shape[1]))
    predecessors = graph.predecessors
    for first, beyond in zip(graph.level_start[:-1].tolist(), graph.level_start[1:].tolist(), strict=True):
        start = ends[predecessors[first:beyond, 0]]
        for column in range(1, predecessors.shape[1]):
            np.maximum(start, ends[predecessors[first:beyond, column]], out=start)
        np.add(start, stacked[graph.duration_row[first:beyond]], out=ends[first:beyond])
    return ends
