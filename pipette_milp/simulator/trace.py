"""Chrome/Perfetto trace of a simulated iteration: one row per GPU.

Format: "Trace Event Format" of the Chromium project (complete events X, flow events s and f, metadata M);
times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pipette_milp.errors import InputError, Problem
from pipette_milp.schedules.base import Exchange, Task, Transfer
from pipette_milp.schema.plan import Configuration
from pipette_milp.simulator.graph import BACKWARD, FORWARD, HOP_BACKWARD, HOP_FORWARD, KINDS
from pipette_milp.simulator.timeline import Timeline

MICROSECONDS = 1e6
"""In a second; the unit of the format."""
CRITICAL_COLOR = "terrible"
"""Reserved colour name of the format, red. Viewers without colour names show the critical path's own row."""

Event = dict[str, Any]


class _Slice(NamedTuple):
    """What a cell does for a while; every GPU of the cell shows it."""

    name: str
    category: str
    start_s: float
    end_s: float
    critical: bool
    details: dict[str, Any]


def chrome_trace(
    timeline: Timeline,
    configuration: Configuration,
    gpu_names: Sequence[str] | None = None,
    replicas: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The trace as a JSON-able document.

    A process per pipeline stage, a thread per GPU, one more process with the critical path. The GPUs of
    a cell show the same slices. In exchange mode an exchange is one slice, from the start of its
    first member to the end of its last; async transfers occupy no GPU. Arrows lead from the sending to
    the receiving task. Slices on the critical path carry ``"critical": true`` and a colour.

    Args:
        gpu_names: of every rank; "rank r" if left out.
        replicas: which to show, all if left out; 16,384 GPUs make a file of some GB.

    Raises:
        InputError: the names or replicas do not fit the configuration.
    """
    _check(timeline, configuration, gpu_names, replicas)
    shown = range(configuration.data) if replicas is None else replicas
    cell_size = configuration.tensor * configuration.context
    critical = {
        (step.kind, step.position, step.micro_batch, step.replica)
        for step in timeline.path
        if step.end_s > step.start_s
    }
    events: list[Event] = []
    for stage in range(configuration.pipeline):
        events.append(_name_event("process_name", stage, None, f"stage {stage}"))
        for replica in shown:
            slices = list(_cell_slices(timeline, stage, replica, critical))
            for local in range(cell_size):
                rank = local + cell_size * (replica + configuration.data * stage)
                name = gpu_names[rank] if gpu_names is not None else f"rank {rank}"
                events.append(_name_event("thread_name", stage, rank, f"{name} (replica {replica})"))
                events += [_slice_event(item, stage, rank) for item in slices]
    flow = 0
    for replica in shown:
        for sender, receiver, start_s, end_s in _arrows(timeline, replica):
            for local in range(cell_size):
                ends = (
                    (sender, start_s, {"ph": "s"}),
                    (receiver, end_s, {"ph": "f", "bp": "e"}),
                )
                for stage, time_s, kind in ends:
                    rank = local + cell_size * (replica + configuration.data * stage)
                    place = {"pid": stage, "tid": rank, "ts": time_s * MICROSECONDS}
                    events.append({"name": "hop", "cat": "transfer", "id": flow, **place, **kind})
                flow += 1
    events += _critical_row(timeline, configuration.pipeline)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _check(
    timeline: Timeline,
    configuration: Configuration,
    gpu_names: Sequence[str] | None,
    replicas: Sequence[int] | None,
) -> None:
    problems = []
    simulated = (timeline.graph.pipeline, timeline.finish_s.shape[1])
    if simulated != (configuration.pipeline, configuration.data):
        message = f"the timeline has {simulated[0]} stages and {simulated[1]} replicas"
        problems.append(Problem("configuration", message))
    if gpu_names is not None and len(gpu_names) != configuration.num_gpus:
        message = f"{len(gpu_names)} names: expected one for each of {configuration.num_gpus} ranks"
        problems.append(Problem("gpu_names", message))
    if replicas is not None and not all(0 <= replica < configuration.data for replica in replicas):
        problems.append(Problem("replicas", f"{list(replicas)}: expected 0 to {configuration.data - 1}"))
    if problems:
        raise InputError(problems)


def _cell_slices(timeline: Timeline, stage: int, replica: int, critical: set[Any]) -> Iterator[_Slice]:
    """Everything that occupies a cell, in order of time."""
    graph = timeline.graph
    for step in graph.program[stage]:
        parts: tuple[Task | Transfer, ...] = step.members if isinstance(step, Exchange) else (step,)
        nodes = [graph.node(part) for part in parts]
        keys = [
            (KINDS[graph.kind[node]], int(graph.position[node]), int(graph.micro_batch[node]), replica)
            for node in nodes
        ]
        start_s = float(timeline.start_s[nodes, replica].min())
        end_s = float(timeline.end_s[nodes, replica].max())
        details: dict[str, Any] = {"slack_s": float(timeline.slack_s[nodes, replica].min())}
        if isinstance(step, Exchange):
            # the last gradient may leave while the stage synchronises already: one slice at a time a row
            end_s = min(end_s, float(timeline.finish_s[stage].max()))
            if end_s < start_s:
                continue
            name = " + ".join(f"{member.role} {member.kind}{member.micro_batch}" for member in step.members)
            category = "exchange"
        else:
            name, category = f"{step.kind}{step.micro_batch}", keys[0][0]
            details |= {"virtual_stage": step.virtual_stage, "micro_batch": step.micro_batch}
        yield _Slice(name, category, start_s, end_s, any(key in critical for key in keys), details)
    yield from _tail_slices(timeline, stage, critical)


def _tail_slices(timeline: Timeline, stage: int, critical: set[Any]) -> Iterator[_Slice]:
    """From the end of the last backward of the slowest replica to the end of the iteration."""
    durations = timeline.durations
    step_start = timeline.step_start_s
    optimizer_end = step_start + float(durations.optimizer_s[stage])
    gather_end = optimizer_end + float(durations.parameter_gather_s[stage])
    sync_start = float(timeline.finish_s[stage].max())
    parts = [("gradient_sync", sync_start, float(timeline.sync_end_s[stage]))]
    if stage in (0, timeline.graph.pipeline - 1) and durations.embedding_sync_s > 0.0:
        both = max(float(timeline.sync_end_s[0]), float(timeline.sync_end_s[-1]))
        parts.append(("embedding_sync", both, both + durations.embedding_sync_s))
    parts.append(("optimizer", step_start, optimizer_end))
    parts.append(("parameter_gather", optimizer_end, gather_end))
    for kind, start_s, end_s in parts:
        yield _Slice(kind, kind, start_s, end_s, (kind, stage, None, None) in critical, {})
    fixed_start = timeline.simulated_s - durations.fixed_s
    on_path = ("fixed", None, None, None) in critical
    yield _Slice("fixed", "fixed", fixed_start, timeline.simulated_s, on_path, {})


def _slice_event(item: _Slice, process: int, thread: int) -> Event:
    event: Event = {
        "ph": "X",
        "name": item.name,
        "cat": item.category,
        "pid": process,
        "tid": thread,
        "ts": item.start_s * MICROSECONDS,
        "dur": (item.end_s - item.start_s) * MICROSECONDS,
        "args": item.details | {"critical": item.critical},
    }
    if item.critical:
        event["cname"] = CRITICAL_COLOR
    return event


def _arrows(timeline: Timeline, replica: int) -> Iterator[tuple[int, int, float, float]]:
    """Sending stage, receiving stage, a time inside the sending task, the start of the receiving one."""
    graph = timeline.graph
    p = graph.pipeline
    for boundary in range(graph.num_virtual_stages - 1):
        for m in range(graph.num_micro_batches):
            for hop, sender, receiver in (
                (HOP_FORWARD, boundary, boundary + 1),
                (HOP_BACKWARD, boundary + 1, boundary),
            ):
                task = BACKWARD if hop == HOP_BACKWARD else FORWARD
                first_row = graph.rows[task].start
                source = graph.node_of[first_row + sender, m]
                target = graph.node_of[first_row + receiver, m]
                # a viewer binds an arrow to the slice around its time, so not to the very end
                middle = (timeline.start_s[source, replica] + timeline.end_s[source, replica]) / 2
                yield sender % p, receiver % p, float(middle), float(timeline.start_s[target, replica])


def _critical_row(timeline: Timeline, process: int) -> list[Event]:
    events = [
        _name_event("process_name", process, None, "critical path"),
        _name_event("thread_name", process, 0, "critical path"),
    ]
    for step in timeline.path:
        known = {"position": step.position, "micro_batch": step.micro_batch, "replica": step.replica}
        details = {key: value for key, value in known.items() if value is not None}
        item = _Slice(step.kind, step.kind, step.start_s, step.end_s, True, details)
        events.append(_slice_event(item, process, 0))
    return events


def _name_event(what: str, process: int, thread: int | None, name: str) -> Event:
    event: Event = {"ph": "M", "name": what, "pid": process, "args": {"name": name}}
    if thread is not None:
        event["tid"] = thread
    return event
