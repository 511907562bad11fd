"""Closed forms for uniform stages: costs, sections 2 (hops of time c) and 5 (no communication)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipette_milp.simulator import event_graph, finish_times

PIPELINES = range(2, 7)
MICRO_BATCHES = range(1, 13)
TASKS = [(1.0, 2.0), (1.0, 1.0), (2.0, 1.5), (0.7, 2.9)]


def uniform(
    schedule: str, p: int, v: int, m: int, mode: str, f: float, b: float, c: float, w: float | None = None
) -> float:
    """End of the last backward with one duration a kind."""
    graph = event_graph(schedule, p, v, m, mode)
    tasks, hops = (p * v, 1), (p * v - 1, 1)
    weight_gradient = None if w is None else np.full(tasks, w)
    finish = finish_times(
        graph, np.full(tasks, f), np.full(tasks, b), np.full(hops, c), np.full(hops, c), weight_gradient
    )
    return float(finish.max())


@pytest.mark.parametrize("mode", ["async", "exchange"])
@pytest.mark.parametrize("p", PIPELINES)
def test_1f1b_without_communication(p: int, mode: str) -> None:
    for m, (f, b) in itertools.product(MICRO_BATCHES, TASKS):
        assert uniform("1f1b", p, 1, m, mode, f, b, 0.0) == pytest.approx((m + p - 1) * (f + b), rel=1e-12)


@pytest.mark.parametrize("mode", ["async", "exchange"])
@pytest.mark.parametrize("p", PIPELINES)
def test_one_micro_batch(p: int, mode: str) -> None:
    for schedule, (f, b), c in itertools.product(("1f1b", "gpipe"), TASKS, (0.1, 0.5, 3.0)):
        expected = p * (f + b) + 2 * (p - 1) * c
        assert uniform(schedule, p, 1, 1, mode, f, b, c) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", PIPELINES)
@pytest.mark.parametrize("c", [0.1, 0.25, 0.5])
def test_1f1b_async(p: int, c: float) -> None:
    checked = 0
    for m, (f, b) in itertools.product(MICRO_BATCHES, TASKS):
        pipeline = (m + p - 1) * (f + b)
        simulated = uniform("1f1b", p, 1, m, "async", f, b, c)
        if m % p == 0:
            assert simulated == pytest.approx(pipeline + (2 * (p - 1) * m / p + 2 * (p - 2)) * c, rel=1e-12)
            checked += 1
        if p >= 3 and 2 <= m <= p:
            assert simulated == pytest.approx(pipeline + (2 * p + 2 * m - 6) * c, rel=1e-12)
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize("p", PIPELINES)
@pytest.mark.parametrize("c", [0.1, 0.5, 0.7])
def test_1f1b_exchange(p: int, c: float) -> None:
    for m, (f, b) in itertools.product(MICRO_BATCHES, TASKS):
        if m < 2:
            continue
        hops = m + 1 if p == 2 else 2 * m + 2 * p - 5
        expected = (m + p - 1) * (f + b) + hops * c
        assert uniform("1f1b", p, 1, m, "exchange", f, b, c) == pytest.approx(expected, rel=1e-12)


def test_1f1b_exchange_form_fails_beyond_its_range() -> None:
    """c <= min(f, b) is stated as the limit; the simulator must not be the formula in disguise."""
    p, m, f, b, c = 4, 8, 1.0, 2.0, 1.5
    assert uniform("1f1b", p, 1, m, "exchange", f, b, c) > (m + p - 1) * (f + b) + (2 * m + 2 * p - 5) * c


@pytest.mark.parametrize("mode", ["async", "exchange"])
@pytest.mark.parametrize("p", PIPELINES)
def test_gpipe_without_communication(p: int, mode: str) -> None:
    for m, (f, b) in itertools.product(MICRO_BATCHES, TASKS):
        assert uniform("gpipe", p, 1, m, mode, f, b, 0.0) == pytest.approx((m + p - 1) * (f + b), rel=1e-12)


@pytest.mark.parametrize("p", PIPELINES)
@pytest.mark.parametrize("v", [2, 3, 4])
def test_interleaved_without_communication(p: int, v: int) -> None:
    """f and b of a whole rank; a chunk takes the v-th part."""
    for m, (f, b) in itertools.product(range(p, 13, p), TASKS):
        expected = (m + (p - 1) / v) * (f + b)
        simulated = uniform("interleaved", p, v, m, "async", f / v, b / v, 0.0)
        assert simulated == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", PIPELINES)
def test_zb_h1_without_communication(p: int) -> None:
    for m, (f, b, w) in itertools.product(range(p, 13), [(1.0, 1.0, 1.0), (1.0, 1.2, 0.7), (2.0, 1.5, 1.5)]):
        expected = m * (f + b + w) + (p - 1) * (f + b - w)
        assert uniform("zb-h1", p, 1, m, "async", f, b, 0.0, w) == pytest.approx(expected, rel=1e-12)


def test_uneven_stages_break_the_published_closed_form() -> None:
    """formulation, section 3: p = 4, M = 8, c = 0.5, f = (1.5, 1, 1, 1), b = 2 f takes 46.5, not 55.5."""
    f = np.array([[1.5], [1.0], [1.0], [1.0]])
    hops = np.full((3, 1), 0.5)
    finish = finish_times(event_graph("1f1b", 4, 1, 8, "async"), f, 2 * f, hops, hops)
    assert finish.max() == pytest.approx(46.5)
