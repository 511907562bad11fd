"""Models that grow between solves end where models built at once do."""

from __future__ import annotations

import highspy
import numpy as np
import pytest

from pipette_milp.solvers.highs import Model


def small_model() -> Model:
    model = Model()
    column = model.column(0.0, 10.0, cost=1.0)
    model.row([(column, 1.0)], at_least=2.0)
    return model


def test_another_user_of_highs_with_more_threads_does_no_harm() -> None:
    started = small_model()
    assert started.relax(time_limit_s=10.0).bound == pytest.approx(2.0, rel=1e-5)
    other = highspy.Highs()
    other.resetGlobalScheduler(True)
    other.setOptionValue("output_flag", False)
    other.setOptionValue("threads", 2)
    other.addVar(0.0, 1.0)
    other.run()
    assert started.relax(time_limit_s=10.0).bound == pytest.approx(2.0, rel=1e-5)
    assert small_model().relax(time_limit_s=10.0).bound == pytest.approx(2.0, rel=1e-5)


def test_columns_that_come_later_count_like_the_first() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        columns, rows = 8, 5
        matrix = np.where(rng.random((rows, columns)) < 0.7, rng.uniform(0.1, 2.0, (rows, columns)), 0.0)
        matrix[:, 0] = rng.uniform(0.1, 2.0, rows)  # the first column alone can do it
        cost = rng.uniform(0.5, 2.0, columns)

        def objective(model: Model, index: np.ndarray, cost: np.ndarray = cost) -> int:
            total = model.column(0.0, 1e9, cost=1.0)
            return model.row([(total, 1.0)], [(index, -cost[: len(index)])], at_least=0.0)

        whole = Model()
        index = whole.columns(columns, 0.0, 10.0, integer=True)
        objective(whole, index)
        for row in matrix:
            whole.row([], [(index, row)], at_least=1.0)
        expected = whole.relax(time_limit_s=10.0)

        grown = Model()
        index = grown.columns(3, 0.0, 10.0, integer=True)
        cost_row = objective(grown, index)
        numbers = [grown.row([], [(index, row[:3])], at_least=1.0) for row in matrix[:4]]
        first = grown.relax(time_limit_s=10.0)
        # a row and columns since the last solve, the row in the columns too
        numbers.append(grown.row([], [(index, matrix[4, :3])], at_least=1.0))
        rest = [(row, matrix[i, 3:]) for i, row in enumerate(numbers)]
        added = grown.columns_in_rows([(cost_row, -cost[3:]), *rest], columns - 3, 0.0, 10.0, integer=True)
        latest = grown.relax(time_limit_s=10.0)
        assert latest.x is not None
        assert first.x is not None
        assert len(latest.x) == len(first.x) + len(added)
        assert latest.bound == pytest.approx(expected.bound, rel=1e-9)
        least = whole.minimise(time_limit_s=10.0, gap=0.0).bound
        assert grown.minimise(time_limit_s=10.0, gap=0.0).bound == pytest.approx(least, rel=1e-6)
