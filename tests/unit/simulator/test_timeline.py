from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.cost.durations import Durations
from pipette_milp.errors import InputError
from pipette_milp.schedules.base import Exchange
from pipette_milp.simulator import EventGraph, Timeline, event_graph, simulate, simulated_s
from pipette_milp.simulator.accounts import PATH_KEYS, union_length
from pipette_milp.simulator.graph import KINDS
from tests.simulator_cases import SCHEDULE_MODES, random_durations, random_use

CASES = 25


def cases(schedule: str, mode: str) -> list[tuple[EventGraph, Durations, Timeline]]:
    rng = np.random.default_rng(31)
    made = []
    for _ in range(CASES):
        graph = event_graph(schedule, *random_use(schedule, rng), mode)
        durations = random_durations(graph, 2, rng)
        timeline = simulate(graph, durations, 0.2 * durations.forward_s, 0.1 * durations.backward_s)
        made.append((graph, durations, timeline))
    return made


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_accounts_sum_to_the_simulated_time(schedule: str, mode: str) -> None:
    for graph, durations, timeline in cases(schedule, mode):
        total = simulated_s(graph, durations)
        assert timeline.simulated_s == total
        assert tuple(timeline.critical_path) == PATH_KEYS
        assert sum(timeline.critical_path.values()) == pytest.approx(total, rel=1e-12)
        seconds = {key: value for key, value in timeline.breakdown.items() if key not in ("stage", "replica")}
        assert set(seconds) == {*PATH_KEYS, "bubble_s"}
        assert sum(seconds.values()) == pytest.approx(total, rel=1e-12)
        assert min(seconds.values()) >= -1e-12 * total
        assert timeline.breakdown["bubble_s"] == max(0.0, timeline.idle_s.min())


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_critical_path_has_no_gap_and_no_slack(schedule: str, mode: str) -> None:
    for graph, _, timeline in cases(schedule, mode):
        assert timeline.path[0].start_s == 0.0
        assert timeline.path[-1].end_s == timeline.simulated_s
        for before, after in zip(timeline.path, timeline.path[1:], strict=False):
            assert after.start_s == before.end_s
        for step in timeline.path:
            if step.kind in KINDS:
                row = graph.rows[KINDS.index(step.kind)].start + step.position
                node = graph.node_of[row, step.micro_batch]
                assert timeline.slack_s[node, step.replica] <= 1e-12 * timeline.simulated_s


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_no_stage_does_two_things_at_once(schedule: str, mode: str) -> None:
    for graph, _, timeline in cases(schedule, mode):
        for steps in graph.program:
            before = np.zeros(2)
            for step in steps:
                parts = step.members if isinstance(step, Exchange) else (step,)
                nodes = [graph.node(part) for part in parts]
                assert (timeline.start_s[nodes] >= before).all()
                before = timeline.end_s[nodes].max(axis=0)


def test_slack_is_what_one_task_may_grow() -> None:
    """Every duration belongs to M tasks, so a graph with M = 1 has tasks that can grow alone."""
    for schedule, mode in SCHEDULE_MODES:
        if schedule == "interleaved":
            continue
        graph = event_graph(schedule, 4, 1, 1, mode)
        durations = random_durations(graph, 2, np.random.default_rng(2))
        timeline = simulate(graph, durations)
        for name, first, count in (
            ("forward_s", graph.rows[0].start, 4),
            ("backward_s", graph.rows[1].start, 4),
            ("hop_forward_s", graph.rows[3].start, 3),
            ("hop_backward_s", graph.rows[4].start, 3),
        ):
            for position in range(count):
                slack = timeline.slack_s[graph.node_of[first + position, 0], 1]
                for growth, same in ((slack, True), (slack + 0.01, False)):
                    values = getattr(durations, name).copy()
                    values[position, 1] += growth
                    total = simulated_s(graph, replace(durations, **{name: values}))
                    assert (total == pytest.approx(timeline.simulated_s, rel=1e-12)) == same


def test_exchange_occupies_its_stage_and_async_does_not() -> None:
    p, m, c = 3, 4, 0.25
    tasks, hops, none = np.ones((p, 1)), np.full((p - 1, 1), c), np.zeros(p)
    durations = Durations(tasks, 2 * tasks, None, hops, hops, none, 0.0, none, none, 0.0)
    exchange = simulate(event_graph("1f1b", p, 1, m, "exchange"), durations)
    # the last stage: 4 receives together with 3 of its sends, then its last send, cut off at its finish
    last = exchange.idle_s[-1, 0] + 3 * m * 1.0
    assert exchange.simulated_s - last == pytest.approx(m * c)
    overlapped = simulate(event_graph("1f1b", p, 1, m, "async"), durations)
    assert overlapped.breakdown["pipeline_comm_s"] == 0.0


def test_last_send_after_the_synchronisation_began_is_no_transfer_time() -> None:
    """Stage 0 is busy for long, so stage 1 has finished before its last gradient can leave."""
    forward, backward, c, none = np.ones((2, 1)), np.array([[10.0], [1.0]]), 0.25, np.zeros(2)
    hops = np.full((1, 1), c)
    durations = Durations(forward, backward, None, hops, hops, none, 0.0, none, none, 0.0)
    timeline = simulate(event_graph("1f1b", 2, 1, 2, "exchange"), durations)
    assert timeline.simulated_s - timeline.idle_s[1, 0] == pytest.approx(2 * (1.0 + 1.0) + 2 * c)


def test_length_of_a_union_of_intervals() -> None:
    """Against a count of unit cells, on whole numbers."""
    rng = np.random.default_rng(12)
    for _ in range(200):
        first = rng.integers(0, 8, (3, 4))
        last = first + rng.integers(0, 6, (3, 4))
        lengths = union_length(first.astype(float), last.astype(float))
        for lane in range(4):
            cells = {cell for a, b in zip(first[:, lane], last[:, lane], strict=True) for cell in range(a, b)}
            assert lengths[lane] == len(cells)


def test_embedding_exchange_counts_where_it_happens() -> None:
    graph = event_graph("1f1b", 3, 1, 4, "exchange")
    durations = random_durations(graph, 2, np.random.default_rng(4))
    without = simulate(graph, replace(durations, embedding_sync_s=0.0))
    timeline = simulate(graph, replace(durations, embedding_sync_s=100.0))
    longer = timeline.simulated_s - without.simulated_s
    took_part = np.array([[100.0], [0.0], [100.0]])
    np.testing.assert_allclose(timeline.idle_s, without.idle_s + longer - took_part, rtol=1e-9)
    kinds = [step.kind for step in timeline.path]
    assert "embedding_sync" in kinds
    assert timeline.critical_path["gradient_sync_s"] >= 100.0
    assert timeline.breakdown["stage"] in (0, 2)


def test_tensor_communication_changes_the_account_only() -> None:
    graph = event_graph("1f1b", 3, 1, 4, "exchange")
    durations = random_durations(graph, 2, np.random.default_rng(4))
    plain = simulate(graph, durations)
    split = simulate(graph, durations, durations.forward_s, durations.backward_s)
    assert split.simulated_s == plain.simulated_s
    assert plain.critical_path["tensor_comm_s"] == 0.0
    assert split.critical_path["compute_s"] == pytest.approx(0.0, abs=1e-12)
    assert split.critical_path["tensor_comm_s"] == pytest.approx(plain.critical_path["compute_s"])
    assert split.breakdown["tensor_comm_s"] == pytest.approx(plain.breakdown["compute_s"])


def test_tensor_communication_beyond_the_task_is_refused() -> None:
    graph = event_graph("1f1b", 3, 1, 4, "exchange")
    durations = random_durations(graph, 2, np.random.default_rng(4))
    with pytest.raises(InputError, match="tensor_comm_backward_s"):
        simulate(graph, durations, None, durations.backward_s + 1.0)
    with pytest.raises(InputError, match="tensor_comm_forward_s: shape"):
        simulate(graph, durations, np.zeros(3))
