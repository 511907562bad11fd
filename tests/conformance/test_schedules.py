"""What every registered schedule must keep."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.schedules import SCHEDULES, get_schedule
from pipette_milp.schedules.base import Exchange
from pipette_milp.simulator import event_graph, execution_order
from tests.simulator_cases import SCHEDULE_MODES, random_use

USES = 40


def uses(schedule: str) -> list[tuple[int, int, int]]:
    rng = np.random.default_rng(11)
    return [random_use(schedule, rng) for _ in range(USES)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_says_who_it_is(name: str) -> None:
    schedule = get_schedule(name)
    assert schedule.name == name
    assert schedule.default_transfers in schedule.transfer_modes


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_task_once_on_its_stage_and_in_order(name: str) -> None:
    schedule = get_schedule(name)
    kinds = "FBW" if schedule.separates_weight_gradient else "FB"
    for p, v, m_total in uses(name):
        order = schedule.order(p, v, m_total)
        assert len(order) == p
        for stage, tasks in enumerate(order):
            expected = {
                (kind, chunk * p + stage, m) for kind in kinds for chunk in range(v) for m in range(m_total)
            }
            assert Counter(map(tuple, tasks)) == Counter(expected)
            place = {tuple(task): index for index, task in enumerate(tasks)}
            for chunk in range(v):
                for m in range(m_total):
                    places = [place[kind, chunk * p + stage, m] for kind in kinds]
                    assert places == sorted(places)


@pytest.mark.parametrize(("name", "mode"), SCHEDULE_MODES)
def test_both_ends_of_every_transfer_name_it_once(name: str, mode: str) -> None:
    for p, v, m_total in uses(name):
        roles: Counter[tuple[str, str, int, int]] = Counter()
        for stage, steps in enumerate(get_schedule(name).program(p, v, m_total, mode)):
            for step in steps:
                if isinstance(step, Exchange):
                    for member in step.members:
                        from_left = member.role == "send" if member.kind == "F" else member.role == "recv"
                        end = member.boundary if from_left else member.boundary + 1
                        assert end % p == stage
                        roles[tuple(member)] += 1
        expected = {
            (role, kind, boundary, m)
            for role in ("send", "recv")
            for kind in "FB"
            for boundary in range(p * v - 1)
            for m in range(m_total)
        }
        assert roles == Counter(expected if mode == "exchange" else ())


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_flight_is_what_the_order_holds(name: str) -> None:
    """Chunks between their F and their B, the running one included; then between B and W."""
    schedule = get_schedule(name)
    for p, v, m_total in uses(name):
        for stage, tasks in enumerate(schedule.order(p, v, m_total)):
            held = most = waiting = most_waiting = 0
            for task in tasks:
                if task.kind == "F":
                    held += 1
                    most = max(most, held)
                    most_waiting = max(most_waiting, waiting)
                elif task.kind == "B":
                    held -= 1
                    waiting += 1
                else:
                    waiting -= 1
            in_flight = schedule.in_flight(stage, p, v, m_total, "megatron")
            assert in_flight.full == most
            if schedule.separates_weight_gradient:
                assert in_flight.weight_only == most_waiting
            else:
                assert in_flight.weight_only == 0


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("bad", [(0, 1, 4), (4, 0, 4), (4, 1, 0)])
def test_counts_below_one_are_refused(name: str, bad: tuple[int, int, int]) -> None:
    schedule = get_schedule(name)
    reason = schedule.legality(*bad, schedule.default_transfers)
    assert reason is not None
    assert "at least 1" in reason


@pytest.mark.parametrize("name", SCHEDULES)
def test_unknown_transfers_are_refused(name: str) -> None:
    reason = get_schedule(name).legality(2, 1, 4, "telepathy")
    assert reason is not None
    assert "telepathy" in reason


@pytest.mark.parametrize("name", [n for n in SCHEDULES if not get_schedule(n).allows_virtual_stages])
def test_virtual_stages_are_refused_where_there_are_none(name: str) -> None:
    with pytest.raises(IllegalConfigurationError, match="interleaved"):
        event_graph(name, 4, 2, 8, get_schedule(name).default_transfers)


@pytest.mark.parametrize(("name", "mode"), SCHEDULE_MODES)
def test_order_of_the_result_file(name: str, mode: str) -> None:
    p, v, m_total = uses(name)[0]
    graph = event_graph(name, p, v, m_total, mode)
    order = execution_order(graph)
    tasks = [[tuple(step) for step in steps if step[0] != "X"] for steps in order]
    assert tasks == [[tuple(task) for task in steps] for steps in get_schedule(name).order(p, v, m_total)]
    assert any(step[0] == "X" for steps in order for step in steps) == (mode == "exchange" and p > 1)
