"""The simulated and the measured iteration in one Chrome trace. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipette_milp.measure.events import Event
from pipette_milp.measure.program import ReplayPlan
from pipette_milp.schema.instance import Instance
from pipette_milp.simulator import Timeline, chrome_trace
from pipette_milp.simulator.trace import MICROSECONDS


def merged_trace(
    instance: Instance, wanted: ReplayPlan, timeline: Timeline, events: Sequence[Sequence[Event]]
) -> dict[str, Any]:
    """Processes "simulated: stage s" as `simulate --trace` writes them, then "measured: stage s".

    Args:
        events: of every rank of the plan.
    """
    names = [f"{node.name}:{local}" for node in instance.cluster.nodes for local in range(node.gpus)]
    gpu_names = [names[gpu] for gpu in wanted.plan.placement.gpu_of_rank]
    trace = chrome_trace(timeline, wanted.plan.configuration, gpu_names)
    merged: list[dict[str, Any]] = []
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            event = {**event, "args": {"name": f"simulated: {event['args']['name']}"}}
        merged.append(event)
    first = 1 + max(event["pid"] for event in merged)
    for stage in range(wanted.plan.configuration.pipeline):
        merged.append(_name("process_name", first + stage, None, f"measured: stage {stage}"))
    for program in wanted.programs:
        process = first + program.stage
        label = f"{gpu_names[program.rank]} (replica {program.replica})"
        merged.append(_name("thread_name", process, program.rank, label))
        for event in events[program.rank]:
            if event.name.startswith("send_") and event.end_s - event.start_s <= 0:
                continue
            merged.append(_slice(event, process, program.rank))
    return {"traceEvents": merged, "displayTimeUnit": "ms"}


def _slice(event: Event, process: int, thread: int) -> dict[str, Any]:
    known = {"position": event.position, "micro_batch": event.micro_batch}
    label = event.name
    if event.micro_batch is not None:
        label = f"{event.name} {event.micro_batch}"
    return {
        "ph": "X",
        "name": label,
        "cat": event.name,
        "pid": process,
        "tid": thread,
        "ts": event.start_s * MICROSECONDS,
        "dur": max(0.0, event.end_s - event.start_s) * MICROSECONDS,
        "args": {name: value for name, value in known.items() if value is not None},
    }


def _name(what: str, process: int, thread: int | None, name: str) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": "M", "name": what, "pid": process, "args": {"name": name}}
    if thread is not None:
        event["tid"] = thread
    return event
