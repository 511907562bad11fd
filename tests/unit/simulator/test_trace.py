from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.simulator import Timeline, chrome_trace, event_graph, simulate
from tests.simulator_cases import SCHEDULE_MODES, random_durations

P, T, D, M = 2, 2, 3, 4


def made(schedule: str, mode: str) -> tuple[Timeline, Configuration]:
    v = 2 if schedule == "interleaved" else 1
    graph = event_graph(schedule, P, v, M, mode)
    configuration = Configuration(
        pipeline=P,
        virtual_stages=v,
        tensor=T,
        data=D,
        micro_batch=1,
        num_micro_batches=M,
        schedule=schedule,
        pipeline_transfers=mode,
        stages=split_stages((1,) * (P * v)),
    )
    return simulate(graph, random_durations(graph, D, np.random.default_rng(6))), configuration


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_one_row_for_every_gpu_and_nothing_overlaps(schedule: str, mode: str) -> None:
    timeline, configuration = made(schedule, mode)
    names = [f"node-{rank // 4}:{rank % 4}" for rank in range(P * T * D)]
    trace = json.loads(json.dumps(chrome_trace(timeline, configuration, names), allow_nan=False))
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of_phase(trace, "M")
        if event["name"] == "thread_name"
    }
    gpu_rows = {key: name for key, name in threads.items() if name != "critical path"}
    assert len(gpu_rows) == P * T * D
    for (stage, rank), name in gpu_rows.items():
        assert stage == rank // (T * D)
        assert name.startswith(names[rank])
    for place in threads:
        slices = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in of_phase(trace, "X")
            if (event["pid"], event["tid"]) == place and event["dur"] > 0
        )
        assert all(before[1] <= after[0] + 1e-6 for before, after in pairwise(slices))


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_arrows_join_the_tasks_of_every_transfer(schedule: str, mode: str) -> None:
    timeline, configuration = made(schedule, mode)
    trace = chrome_trace(timeline, configuration)
    starts = {event["id"]: event for event in of_phase(trace, "s")}
    ends = {event["id"]: event for event in of_phase(trace, "f")}
    hops = 2 * M * (configuration.num_virtual_stages - 1)
    assert len(starts) == hops * T * D
    assert set(starts) == set(ends)
    slices = of_phase(trace, "X")
    for flow, start in starts.items():
        end = ends[flow]
        assert start["ts"] <= end["ts"] + 1e-6
        assert start["tid"] % (T * D) == end["tid"] % (T * D)
        for event in (start, end):
            assert any(
                (s["pid"], s["tid"]) == (event["pid"], event["tid"])
                and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]
                for s in slices
            )


def test_critical_path_is_marked() -> None:
    timeline, configuration = made("1f1b", "exchange")
    trace = chrome_trace(timeline, configuration)
    row = [event for event in of_phase(trace, "X") if event["pid"] == P]
    assert sum(event["dur"] for event in row) == pytest.approx(timeline.simulated_s * 1e6)
    marked = [event for event in of_phase(trace, "X") if event["pid"] < P and event["args"]["critical"]]
    assert marked
    assert all("cname" in event for event in marked)
    unmarked = [event for event in of_phase(trace, "X") if not event["args"]["critical"]]
    assert unmarked
    assert not any("cname" in event for event in unmarked)


def test_some_replicas_only() -> None:
    timeline, configuration = made("1f1b", "async")
    trace = chrome_trace(timeline, configuration, replicas=[1])
    tids = {event["tid"] for event in of_phase(trace, "X") if event["pid"] < P}
    assert tids == {2, 3, 8, 9}


def test_what_does_not_fit_is_refused() -> None:
    timeline, configuration = made("1f1b", "async")
    with pytest.raises(InputError, match="gpu_names"):
        chrome_trace(timeline, configuration, ["one"])
    with pytest.raises(InputError, match="replicas"):
        chrome_trace(timeline, configuration, replicas=[3])
    with pytest.raises(InputError, match="2 stages and 3 replicas"):
        chrome_trace(timeline, configuration.model_copy(update={"data": 4}))
