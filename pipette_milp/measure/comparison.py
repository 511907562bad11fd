"""A measured iteration beside the simulated one: in all, by stage, by link. Needs no torch."""

from __future__ import annotations

import datetime
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipette_milp.measure.events import Event
from pipette_milp.measure.program import ReplayPlan
from pipette_milp.measure.trace import merged_trace
from pipette_milp.schema.instance import Instance
from pipette_milp.simulator import Timeline, event_graph, simulate

TASKS = ("forward", "backward", "weight_gradient")

Runs = Sequence[Sequence[Sequence[Any]]]
"""[rank of the plan][iteration] lists of events, as `Event` or as lists read from JSON."""


def compare(
    instance: Instance,
    wanted: ReplayPlan,
    runs: Runs,
    *,
    transport: str,
    compute: str,
    by_name: bool = True,
    time: datetime.datetime | None = None,
) -> dict[str, Any]:
    """The report of a replay.

    Times are seconds from the common start; ``measured_s`` is the median over the iterations of the end of
    the slowest rank, ``error`` its relative distance from ``simulated_s``. ``stages`` and ``links`` come from
    the iteration of median length (the lower one of two), ``trace`` holds it and the simulated one.
    """
    configuration = wanted.plan.configuration
    iterations = [
        [[Event(*event) for event in of_rank[number]] for of_rank in runs] for number in range(len(runs[0]))
    ]
    lengths = [max(events[-1].end_s for events in iteration) for iteration in iterations]
    middle = lengths.index(statistics.median_low(lengths))
    shown = iterations[middle]
    graph = event_graph(
        configuration.schedule,
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )
    timeline = simulate(graph, wanted.durations)
    measured = statistics.median(lengths)
    notes = list(wanted.notes)
    if not by_name:
        notes.append("hosts do not have the names of the instance's nodes: taken in the order of their ranks")
    return {
        "kind": "replay",
        "time": (time or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds"),
        "instance_sha256": instance.sha256(),
        "configuration": configuration.model_dump(mode="json"),
        "transport": transport,
        "compute": compute,
        "simulated_s": timeline.simulated_s,
        "measured_s": measured,
        "error": measured / timeline.simulated_s - 1.0,
        "iterations_s": lengths,
        "spread": (max(lengths) - min(lengths)) / measured,
        "stages": _stages(wanted, timeline, shown),
        "links": _links(wanted, shown),
        "notes": notes,
        "trace": merged_trace(instance, wanted, timeline, shown),
    }


def _stages(
    wanted: ReplayPlan, timeline: Timeline, events: Sequence[Sequence[Event]]
) -> list[dict[str, Any]]:
    """Compute, end of the last task and synchronisation of every pipeline stage; the slowest replica's."""
    configuration = wanted.plan.configuration
    p, M = configuration.pipeline, configuration.num_micro_batches
    rows = []
    for stage in range(p):
        members = [events[program.rank] for program in wanted.programs if program.stage == stage]
        tasks = [[event for event in of_rank if event.name in TASKS] for of_rank in members]
        durations = wanted.durations
        parts = [durations.forward_s, durations.backward_s]
        if durations.weight_gradient_s is not None:
            parts.append(durations.weight_gradient_s)
        simulated_compute = M * float(np.sum([part[stage::p].sum(axis=0) for part in parts], axis=0).max())
        syncs = [event for of_rank in members for event in of_rank if event.name == "gradient_sync"]
        rows.append(
            {
                "stage": stage,
                "simulated": {
                    "compute_s": simulated_compute,
                    "finish_s": float(timeline.finish_s[stage].max()),
                    "gradient_sync_s": float(durations.gradient_sync_s[stage]),
                },
                "measured": {
                    "compute_s": max(sum(event.end_s - event.start_s for event in seen) for seen in tasks),
                    "finish_s": max(seen[-1].end_s for seen in tasks),
                    # from when the last member has come to it
                    "gradient_sync_s": max(e.end_s for e in syncs) - max(e.start_s for e in syncs)
                    if syncs
                    else 0.0,
                },
            }
        )
    return rows


def _links(wanted: ReplayPlan, events: Sequence[Sequence[Event]]) -> list[dict[str, Any]]:
    """Mean time of the transfers of every boundary, direction and replica whose end was seen.

    A transfer starts when both ends have reached it (exchange), or when it was sent and the one before it has
    ended (async). Of the tensor ranks the slowest counts.
    """
    configuration = wanted.plan.configuration
    exchanges = configuration.pipeline_transfers == "exchange"
    found: dict[tuple[int, str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    nodes: dict[tuple[int, str, int], tuple[int, int]] = {}
    bytes_of_hop = wanted.programs[0].hop_bytes
    sent: dict[tuple[int, str, int, int], float] = {}
    for program in wanted.programs:
        for event in events[program.rank]:
            if event.name.startswith("send_"):
                key = (program.replica, program.tensor_index)
                sent[(*key, event.name[5:], event.position, event.micro_batch)] = event.start_s  # type: ignore[index]
    for program in wanted.programs:
        before: dict[tuple[str, int], float] = {}
        for event in events[program.rank]:
            if not event.name.startswith("receive_"):
                continue
            boundary, micro_batch = event.position, event.micro_batch
            if boundary is None or micro_batch is None:
                continue
            direction = event.name[8:]
            issued = sent[(program.replica, program.tensor_index, direction, boundary, micro_batch)]  # type: ignore[index]
            begin = max(issued, event.start_s if exchanges else before.get((direction, boundary), 0.0))
            if not exchanges:
                before[direction, boundary] = event.end_s
            if not event.waited:
                continue
            key_of_link = (boundary, direction, program.replica)
            found[key_of_link][micro_batch].append(event.end_s - begin)
            ends = boundary % configuration.pipeline, (boundary + 1) % configuration.pipeline
            source = ends[0] if direction == "forward" else ends[1]
            sender = configuration.tensor * (program.replica + configuration.data * source)
            nodes[key_of_link] = wanted.node_of_rank[sender], program.node
    rows = []
    for key_of_link, transfers in sorted(found.items()):
        boundary, direction, replica = key_of_link
        hops = wanted.durations.hop_forward_s if direction == "forward" else wanted.durations.hop_backward_s
        source, target = nodes[key_of_link]
        rows.append(
            {
                "boundary": boundary,
                "direction": direction,
                "replica": replica,
                "from": wanted.node_names[source],
                "to": wanted.node_names[target],
                "bytes_per_rank": bytes_of_hop,
                "simulated_s": float(hops[boundary, replica]),
                "measured_s": statistics.mean(max(times) for times in transfers.values()),
                "seen": len(transfers),
            }
        )
    return rows
