"""The simulator against a plain event-driven program, 1,000 random cases a schedule and transfer mode."""

from __future__ import annotations

import numpy as np
import pytest

from pipette_milp.simulator import event_graph, finish_times, simulated_s
from tests.oracle.pipeline_referee import referee_finish, referee_iteration
from tests.simulator_cases import SCHEDULE_MODES, random_durations, random_use

CASES = 1000


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_equal_to_the_referee(schedule: str, mode: str) -> None:
    rng = np.random.default_rng(20240 + SCHEDULE_MODES.index((schedule, mode)))
    shapes = set()
    for _ in range(CASES):
        p, v, m_total = random_use(schedule, rng)
        shapes.add((m_total < p, m_total % p == 0))
        graph = event_graph(schedule, p, v, m_total, mode)
        durations = random_durations(graph, int(rng.integers(1, 3)), rng)
        expected = referee_finish(schedule, mode, p, v, m_total, durations)
        arrays = (
            durations.forward_s,
            durations.backward_s,
            durations.hop_forward_s,
            durations.hop_backward_s,
            durations.weight_gradient_s,
        )
        finish = finish_times(graph, *arrays)
        np.testing.assert_allclose(finish, expected, rtol=1e-9, atol=0.0)
        plain = finish_times(graph, *arrays, engine="numpy")
        np.testing.assert_array_equal(finish, plain)
        total = simulated_s(graph, durations)
        assert total == pytest.approx(referee_iteration(expected, durations), rel=1e-9)
    if schedule != "interleaved":
        assert shapes == {(True, False), (False, True), (False, False)}
