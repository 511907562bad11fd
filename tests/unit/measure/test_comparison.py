"""Reports of replays made on a clock: what is measured there is known exactly."""

from __future__ import annotations

import json

import pytest

from pipette_milp.measure.comparison import compare
from pipette_milp.measure.events import Event
from tests.replay_cases import costs_of, played, random_plan, replayable


@pytest.mark.parametrize("transfers", ["exchange", "async"])
def test_a_perfect_replay(transfers: str) -> None:
    costs = costs_of(4, 2, model={"layers": 8})
    plan = random_plan(costs, (4, 4), tensor=2, data=2, num_micro_batches=8, pipeline_transfers=transfers)
    wanted = replayable(costs, plan)
    events = played(wanted)
    runs = [[of_rank, of_rank] for of_rank in json.loads(json.dumps(events))]
    report = compare(costs.instance, wanted, runs, transport="clock", compute="wait")
    assert report["error"] == pytest.approx(0.0, abs=1e-12)
    assert report["spread"] == 0.0
    for row in report["stages"]:
        for key in ("compute_s", "finish_s"):
            assert row["measured"][key] == pytest.approx(row["simulated"][key])
    assert {(link["boundary"], link["direction"], link["replica"]) for link in report["links"]} == {
        (0, direction, replica) for direction in ("forward", "backward") for replica in (0, 1)
    }
    for link in report["links"]:
        assert link["measured_s"] == pytest.approx(link["simulated_s"])
    assert report["instance_sha256"] == costs.instance.sha256()
    json.dumps(report)


def test_the_median_iteration_is_reported_and_its_spread() -> None:
    costs = costs_of(2, 2)
    plan = random_plan(costs, (6,), data=4, num_micro_batches=4)
    wanted = replayable(costs, plan)

    def run(end_s: float) -> list[Event]:
        return [Event("forward", 0, 0, 0.0, end_s / 2), Event("fixed", None, None, end_s, end_s)]

    runs = [[run(1.0), run(3.0), run(2.0)] for _ in range(4)]
    report = compare(costs.instance, wanted, runs, transport="clock", compute="wait", by_name=False)
    assert report["measured_s"] == 2.0
    assert report["spread"] == 1.0
    assert report["stages"][0]["measured"]["compute_s"] == 1.0
    assert report["error"] == pytest.approx(2.0 / report["simulated_s"] - 1.0)
    assert any("hosts do not have the names" in note for note in report["notes"])


def test_one_trace_with_both() -> None:
    costs = costs_of(4, 2, model={"layers": 8})
    plan = random_plan(costs, (4, 4), tensor=2, data=2, num_micro_batches=8)
    wanted = replayable(costs, plan)
    events = played(wanted)
    report = compare(costs.instance, wanted, [[e] for e in events], transport="clock", compute="wait")
    trace = report["trace"]["traceEvents"]
    names = [e["args"]["name"] for e in trace if e["ph"] == "M" and e["name"] == "process_name"]
    assert names == [
        "simulated: stage 0",
        "simulated: stage 1",
        "simulated: critical path",
        "measured: stage 0",
        "measured: stage 1",
    ]
    measured = [e for e in trace if e["ph"] == "X" and e["pid"] >= 3]
    forwards = [e for e in measured if e["cat"] == "forward"]
    assert len(forwards) == 8 * 8  # ranks, micro-batches
    simulated = {
        (e["tid"], e["name"]): e["ts"]
        for e in trace
        if e["ph"] == "X" and e["pid"] < 2 and e["cat"] == "forward"
    }
    assert len(simulated) == len(forwards)
    starts = sorted(e["ts"] for e in forwards)
    assert starts == pytest.approx(sorted(simulated.values()))
