"""Weak duality in floating point against fractions, and against optima."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from pipette_milp.certificates.weak_duality import dual_bound
from pipette_milp.solvers.highs import INFINITY, Model, ModelArrays

SEEDS = range(40)
FINE = 1e-12
"""What the directed rounding may lose, relative."""


def random_model(rng: np.random.Generator, *, bounded: bool) -> Model:
    """A few columns and rows of every kind; bounded columns make every sum finite."""
    model = Model()
    for _ in range(int(rng.integers(2, 8))):
        lower = float(rng.choice([0.0, rng.uniform(-2.0, 1.0)]))
        upper = lower + float(rng.uniform(0.0, 4.0)) if bounded or rng.random() < 0.5 else INFINITY
        model.column(lower, upper, cost=float(rng.uniform(-1.0, 2.0)))
    for _ in range(int(rng.integers(1, 7))):
        terms = [(j, float(rng.normal())) for j in range(model.num_columns) if rng.random() < 0.7]
        side = float(rng.normal())
        kind = int(rng.integers(3))
        model.row(
            terms,
            at_least=side if kind != 1 else -INFINITY,
            at_most=side + (0.0 if kind == 2 else 1.0) if kind != 0 else INFINITY,
        )
    return model


def exact_bound(model: ModelArrays, duals: np.ndarray) -> Fraction:
    """The formula in fractions; every column bounded."""
    value = Fraction(0)
    reduced = [Fraction(float(cost)) for cost in model.cost]
    for row, dual in enumerate(duals):
        side = model.row_lower[row] if dual > 0 else model.row_upper[row]
        if dual == 0 or abs(side) >= INFINITY:
            continue
        value += Fraction(float(dual)) * Fraction(float(side))
        for entry in np.flatnonzero(model.entry_row == row):
            coefficient = Fraction(float(model.entry[entry]))
            reduced[model.entry_column[entry]] -= Fraction(float(dual)) * coefficient
    for cost, lower, upper in zip(reduced, model.column_lower, model.column_upper, strict=True):
        value += min(cost * Fraction(float(lower)), cost * Fraction(float(upper)))
    return value


@pytest.mark.parametrize("seed", SEEDS)
def test_never_above_the_exact_value_and_hardly_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, bounded=True).arrays()
    for scale in (1e-6, 1.0, 1e6):
        duals = rng.normal(size=len(model.row_lower)) * scale
        bound, exact = dual_bound(model, duals), exact_bound(model, duals)
        assert Fraction(bound.value) <= exact
        assert float(exact) - bound.value <= FINE * max(1.0, scale) * 100


@pytest.mark.parametrize("seed", SEEDS)
def test_any_duals_are_below_the_optimum_and_the_solvers_reach_it(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    model = random_model(rng, bounded=True)
    solved = model.relax(time_limit_s=10.0)
    if solved.infeasible or solved.row_duals is None or solved.x is None:
        return
    optimum = float(np.array(model.arrays().cost) @ solved.x)
    for _ in range(20):
        assert dual_bound(model.arrays(), rng.normal(size=model.num_rows)).value <= optimum + 1e-7
    assert dual_bound(model.arrays(), solved.row_duals).value == pytest.approx(optimum, abs=1e-6)


def test_a_column_without_an_upper_bound_needs_a_reduced_cost_that_is_not_negative() -> None:
    model = Model()
    free = model.column(0.0, INFINITY, cost=1.0)
    model.row([(free, 1.0)], at_least=3.0)
    arrays = model.arrays()
    assert dual_bound(arrays, np.array([0.5])).value == pytest.approx(1.5)
    assert dual_bound(arrays, np.array([2.0])).value == -math.inf
    assert dual_bound(arrays.bounded(np.array([10.0])), np.array([2.0])).value == pytest.approx(-4.0)


def test_duals_of_a_side_that_is_not_there_count_nothing() -> None:
    model = Model()
    model.column(0.0, 1.0, cost=1.0)
    model.row([(0, 1.0)], at_least=0.5)
    bound = dual_bound(model.arrays(), np.array([-7.0]))
    assert bound.duals.tolist() == [0.0]
    assert bound.value == pytest.approx(0.0)


def test_columns_left_out_are_the_callers() -> None:
    model = Model()
    model.columns(2, 1.0, 2.0)
    model.row([(0, 1.0), (1, 1.0)], at_least=3.0)
    whole = dual_bound(model.arrays(), np.array([1.0]))
    part = dual_bound(model.arrays(), np.array([1.0]), left_out=np.array([1]))
    assert whole.value == pytest.approx(3.0 - 4.0)
    assert part.value == pytest.approx(3.0 - 2.0)
    assert np.all(part.reduced_low <= -1.0)


def test_duals_that_are_no_numbers_prove_nothing() -> None:
    model = Model()
    model.column(0.0, 1.0, cost=1.0)
    model.row([(0, 1.0)], at_least=0.5)
    for value in (math.inf, math.nan):
        assert not dual_bound(model.arrays(), np.array([value])).value > -math.inf
