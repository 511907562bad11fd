"""Monotone: raising any duration never lowers the result (formulation, section 3)."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_milp.simulator import event_graph, simulated_s
from tests.simulator_cases import SCHEDULE_MODES, random_durations, random_use


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), field=st.integers(0, 9), growth=st.floats(1e-6, 10.0))
def test_growing_durations_never_shorten(
    schedule: str, mode: str, seed: int, field: int, growth: float
) -> None:
    rng = np.random.default_rng(seed)
    graph = event_graph(schedule, *random_use(schedule, rng), mode)
    durations = random_durations(graph, 2, rng)
    name = [entry.name for entry in fields(durations)][field]
    value = getattr(durations, name)
    before = simulated_s(graph, durations)
    if value is None:
        return
    if isinstance(value, float):
        grown = value + growth
    elif value.size:
        grown = value.copy()
        grown.flat[int(rng.integers(value.size))] += growth
    else:
        return
    assert simulated_s(graph, replace(durations, **{name: grown})) >= before


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(0.1, 10.0))
def test_scales_with_its_durations(schedule: str, mode: str, seed: int, factor: float) -> None:
    """No constant is hidden in the graph."""
    rng = np.random.default_rng(seed)
    graph = event_graph(schedule, *random_use(schedule, rng), mode)
    durations = random_durations(graph, 2, rng)
    scaled = replace(
        durations,
        **{
            entry.name: None if (value := getattr(durations, entry.name)) is None else value * factor
            for entry in fields(durations)
        },
    )
    assert simulated_s(graph, scaled) == pytest.approx(factor * simulated_s(graph, durations), rel=1e-9)
