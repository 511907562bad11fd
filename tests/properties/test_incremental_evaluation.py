"""Incremental against full evaluation, kernels against their plain twins, screening against the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_milp.cost.placement import placement_durations
from pipette_milp.solvers import incremental, moves, screening_kernels
from pipette_milp.solvers.evaluation import Candidate, Evaluator, balanced_split
from pipette_milp.solvers.greedy import greedy
from pipette_milp.solvers.moves import DRAWS, bounds_of, mix_of, propose
from pipette_milp.solvers.screening import Screen
from tests.oracle.tiny_tables import random_tables, with_uplinks

NOTHING = np.zeros(0, dtype=np.int64)


def solvable(seed: int):
    rng = np.random.default_rng(seed)
    while True:
        tables = random_tables(rng)
        if seed % 3 == 0:
            tables = with_uplinks(tables, seed)
        if balanced_split(tables) is not None:
            return tables, rng


def full_rank(evaluator: Evaluator, candidate: Candidate, smoothing: float) -> tuple[float, float]:
    """Time and rank by the plain evaluation."""
    tables = evaluator.tables
    durations = placement_durations(tables, candidate.layers, candidate.node_of_cell)
    time_s = evaluator.of_durations(durations)
    screen = Screen(evaluator, candidate, smoothing)
    return time_s, screen.rank_s


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_durations_follow_random_moves(seed: int) -> None:
    tables, rng = solvable(seed)
    evaluator = Evaluator(tables)
    screen = Screen(evaluator, greedy(evaluator))
    mix = mix_of(tables)
    for _ in range(20):
        if not mix.any():
            return
        k = screen.next_promising(rng.random((1, DRAWS)), mix, NOTHING, np.array([np.inf]), 0)
        if k == 1:
            continue  # no legal change drawn
        if rng.random() < 0.7:
            assert screen.take(np.inf)
        else:
            screen.simulate(np.inf)
            screen.refuse()
        candidate = screen.candidate()
        assert evaluator.fits(candidate.layers)
        assert candidate.layers.sum() == tables.total_layers
        assert np.all(
            np.bincount(candidate.node_of_cell.reshape(-1), minlength=tables.num_nodes) <= tables.slots
        )
        durations = evaluator.durations(candidate)
        held = screen.current
        expected = [durations.forward_s, durations.backward_s]
        if durations.weight_gradient_s is not None:
            expected.append(durations.weight_gradient_s)
        expected += [durations.hop_forward_s, durations.hop_backward_s]
        np.testing.assert_allclose(held.lanes.T, np.concatenate(expected), rtol=1e-12)
        guard = durations.gradient_sync_s.copy()
        guard[0] += durations.embedding_sync_s
        if tables.pipeline > 1:
            guard[-1] += durations.embedding_sync_s
        np.testing.assert_allclose(held.guard, guard, rtol=1e-12)
        step = durations.optimizer_s + durations.parameter_gather_s
        np.testing.assert_allclose(held.step, step, rtol=1e-12)
        assert screen.time_s == pytest.approx(evaluator.of_durations(durations), rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_screening_refuses_only_what_is_above_the_limit(seed: int) -> None:
    """Each move is decided twice: with what the walk learnt, and afresh by full evaluation."""
    tables, rng = solvable(seed)
    evaluator = Evaluator(tables)
    screen = Screen(evaluator, greedy(evaluator))
    mix, bounds = mix_of(tables), bounds_of(tables)
    if not mix.any():
        return
    for _ in range(40):
        draws = rng.random((1, DRAWS))
        layers, cells = screen.current.layers.copy(), screen.current.cells.copy()
        if not propose(bounds, draws[0], mix, NOTHING, layers, cells):
            continue
        candidate = Candidate(layers, cells)
        if screen.stands_at(candidate):
            continue
        true_s, true_rank = full_rank(evaluator, candidate, screen.smoothing)
        assert screen.time_of(candidate) == pytest.approx(true_s, rel=1e-12)
        limit = screen.rank_s * float(rng.choice([1.0, 1.001, 1.05]))
        passed = screen.next_promising(draws, mix, NOTHING, np.array([limit]), 0) == 0
        if passed:
            if screen.take(limit):
                assert true_rank <= limit * (1 + 1e-11)
            else:
                assert true_rank >= limit * (1 - 1e-11)
        else:
            assert true_rank >= limit * (1 - 1e-11)
        if not screen.stands_at(candidate):
            assert screen.time_if_below(candidate, true_s * 1.001) == pytest.approx(true_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_kernels_equal_their_plain_twins(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same walk with every kernel replaced by its plain function: the same numbers, bit by bit."""
    tables, _ = solvable(seed)
    evaluator = Evaluator(tables)
    start = greedy(evaluator)
    compiled_walk = _walk(evaluator, start, seed)
    for module in (incremental, moves, screening_kernels):
        for name, kernel in list(vars(module).items()):
            if hasattr(kernel, "py_func"):
                monkeypatch.setattr(module, name, kernel.py_func)
    import pipette_milp.solvers.screening as screening

    for name, kernel in list(vars(screening).items()):
        if hasattr(kernel, "py_func"):
            monkeypatch.setattr(screening, name, kernel.py_func)
    for with_compiled_simulator in (True, False):
        monkeypatch.setattr(screening, "AVAILABLE", with_compiled_simulator)
        plain_walk = _walk(evaluator, start, seed)
        assert plain_walk == compiled_walk


def _walk(evaluator: Evaluator, start: Candidate, seed: int) -> list[tuple]:
    rng = np.random.default_rng(seed)
    screen = Screen(evaluator, start)
    mix = mix_of(evaluator.tables)
    steps: list[tuple] = []
    if not mix.any():
        return steps
    for _ in range(60):
        draws = rng.random((4, DRAWS))
        focus = rng.integers(screen.current.cells.size, size=3)
        limits = np.full(4, screen.rank_s * 1.01)
        k = screen.next_promising(draws, mix, focus, limits, 0)
        taken = screen.take(limits[k]) if k < 4 else None
        candidate = screen.candidate()
        steps.append((k, taken, screen.time_s, candidate.layers.tobytes(), candidate.node_of_cell.tobytes()))
    return steps
