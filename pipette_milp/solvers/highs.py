"""A small mixed-integer model handed to HiGHS as arrays.

Pyomo builds the models people read (`pipette_milp.formulations`); the bounds solve thousands of small ones,
where building through an algebraic layer would take longer than solving.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_milp.arrays import Array, IntArray

INFINITY = 1e30
SAFETY = 1e-6
"""Relative amount every dual bound is lowered by, above HiGHS's feasibility tolerance (1e-7) on rows scaled
to about one."""


MOST_ITERATIONS_PER_ROW = 3
"""Simplex iterations from the last basis, in rows, after which a relaxation is solved from scratch. Measured:
mostly fewer than one per row, but now and then the clean-up at the optimum cycles for 17,000 iterations on
1,600 rows that presolve and 1,600 iterations solve in 0.2 s."""
DUAL_SIMPLEX, PRIMAL_SIMPLEX = 1, 4
"""HiGHS's numbers. New rows and bounds leave the last basis dual feasible; new columns, and another
objective, leave it primal feasible: the primal simplex then takes half the time (measured on 117 relaxations
with new columns, 1,700 rows)."""


@dataclass(frozen=True)
class Solved:
    """What HiGHS answered."""

    infeasible: bool
    bound: float
    """Safe: lowered by `SAFETY`; -inf where the solve proves nothing."""
    x: Array | None
    """Values of the columns, None without a solution."""
    column_duals: Array | None = None
    """Reduced costs, of a relaxation only."""
    row_duals: Array | None = None


@dataclass(frozen=True)
class ModelArrays:
    """``row_lower <= matrix x <= row_upper`` and ``column_lower <= x <= column_upper``, minimising
    ``cost x``; bounds beyond `INFINITY` are none."""

    cost: Array
    column_lower: Array
    column_upper: Array
    row_lower: Array
    row_upper: Array
    entry_row: IntArray
    """Of every entry of the matrix that is not zero, row by row."""
    entry_column: IntArray
    entry: Array

    def bounded(self, column_upper: Array) -> ModelArrays:
        """With other upper bounds of the columns."""
        return replace(self, column_upper=column_upper)

    def minimising(self, column: int) -> ModelArrays:
        """With one column for the objective."""
        cost = np.zeros(len(self.cost))
        cost[column] = 1.0
        return replace(self, cost=cost)


NOTHING = Solved(False, -float("inf"), None)


class Model:
    """Columns and rows of a minimisation; rows may be added between solves."""

    def __init__(self) -> None:
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._cost: list[float] = []
        self._integer: list[bool] = []
        self._rows: list[tuple[float, float, IntArray, Array]] = []
        self._relaxation: Any = None
        self._relaxation_rows = 0
        self._relaxation_solves = 0
        self._columns_came = False
        """Since the relaxation was solved last."""

    def column(self, lower: float, upper: float, *, cost: float = 0.0, integer: bool = False) -> int:
        """Add a variable; returns its index."""
        self._lower.append(lower)
        self._upper.append(upper)
        self._cost.append(cost)
        self._integer.append(integer)
        return len(self._lower) - 1

    def columns(self, count: int, lower: float, upper: float, *, integer: bool = False) -> IntArray:
        """Add ``count`` equal variables; returns their indices."""
        return np.array([self.column(lower, upper, integer=integer) for _ in range(count)], dtype=np.int64)

    @property
    def num_columns(self) -> int:
        return len(self._lower)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def set_bounds(self, index: int, lower: float, upper: float) -> None:
        """Change the bounds of a variable, also in a relaxation that was solved already."""
        self._lower[index], self._upper[index] = lower, upper
        if self._relaxation is not None:
            self._relaxation.changeColBounds(index, lower, upper)

    def row(
        self,
        terms: Sequence[tuple[int, float]],
        many: Sequence[tuple[IntArray, Array]] = (),
        *,
        at_least: float = -INFINITY,
        at_most: float = INFINITY,
    ) -> int:
        """Add ``at_least <= sum of coefficient * variable <= at_most``; returns the row's index.

        Args:
            terms: (variable, coefficient); repeated variables are summed.
            many: (variables, coefficients) as arrays, disjoint from ``terms`` and from each other.
        """
        merged: dict[int, float] = {}
        for index, value in terms:
            merged[index] = merged.get(index, 0.0) + value
        indices = np.concatenate([np.array(list(merged), dtype=np.int64), *[i for i, _ in many]])
        values = np.concatenate([np.array(list(merged.values()), dtype=float), *[v for _, v in many]])
        kept = values != 0.0
        self._rows.append((at_least, at_most, indices[kept], values[kept]))
        return len(self._rows) - 1

    def columns_in_rows(
        self,
        rows: Sequence[tuple[int, Array]],
        count: int,
        lower: float,
        upper: float,
        *,
        integer: bool = False,
    ) -> IntArray:
        """Add ``count`` equal variables to rows that are there already; returns their indices.

        Args:
            rows: (row, [count] coefficients).
        """
        added = self.columns(count, lower, upper, integer=integer)
        passed = [(row, values) for row, values in rows if row < self._relaxation_rows]
        for row, values in rows:
            low, high, indices, old = self._rows[row]
            kept = values != 0.0
            self._rows[row] = (
                low,
                high,
                np.concatenate([indices, added[kept]]),
                np.concatenate([old, values[kept]]),
            )
        self._columns_came = True
        if self._relaxation is not None:
            matrix = np.array([values for _, values in passed]).reshape(len(passed), count).T
            number = np.array([row for row, _ in passed], dtype=np.int32)
            column, entry = np.nonzero(matrix)
            self._relaxation.addCols(
                count,
                np.zeros(count),
                np.full(count, lower),
                np.full(count, upper),
                len(entry),
                np.searchsorted(column, np.arange(count)).astype(np.int32),
                number[entry],
                matrix[column, entry],
            )
        return added

    def relax(self, *, time_limit_s: float) -> Solved:
        """Minimise without integrality; a later call goes on from the basis of the one before."""
        import highspy

        if self._relaxation is None:
            self._relaxation = self._pass(highspy, integer=False)
            # measured on pattern models of 1,300 rows and 4,600 columns: 0.8 s without, 1.5 to 3 s with
            self._relaxation.setOptionValue("presolve", "off")
            self._relaxation_rows = len(self._rows)
            self._relaxation_solves = 0
        grown = self._pass_new_rows()
        highs = self._relaxation
        warm = self._relaxation_solves > 0
        primal = warm and self._columns_came and not grown
        highs.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX if primal else DUAL_SIMPLEX)
        self._columns_came = False
        if warm:
            highs.setOptionValue("simplex_iteration_limit", MOST_ITERATIONS_PER_ROW * len(self._rows))
        self._relaxation_solves += 1
        # HiGHS counts the time of all runs of one object
        highs.setOptionValue("time_limit", highs.getRunTime() + max(0.01, time_limit_s))
        _run(highs)
        status = highs.getModelStatus()
        kinds = highspy.HighsModelStatus
        if status in (kinds.kUnknown, kinds.kIterationLimit) or (warm and status == kinds.kInfeasible):
            # trouble on the way from the last basis: once more from scratch, presolved. "Infeasible" proves
            # that nothing is left, so it has to be found from scratch too
            highs = self._relaxation = self._pass(highspy, integer=False)
            highs.setOptionValue("time_limit", max(0.01, time_limit_s))
            _run(highs)
            status = highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return Solved(True, float("inf"), None)
        if status != highspy.HighsModelStatus.kOptimal:
            return NOTHING
        solution = highs.getSolution()
        return Solved(
            False,
            _safe(float(highs.getInfo().objective_function_value)),
            np.array(solution.col_value),
            np.array(solution.col_dual),
            np.array(solution.row_dual),
        )

    def _pass_new_rows(self) -> bool:
        """Whether there were any."""
        grown = self._relaxation_rows < len(self._rows)
        for lower, upper, indices, values in self._rows[self._relaxation_rows :]:
            self._relaxation.addRow(lower, upper, len(indices), indices.astype(np.int32), values)
        self._relaxation_rows = len(self._rows)
        return grown

    def least(self, index: int, *, time_limit_s: float) -> Solved:
        """The least value of one variable in the relaxation solved last: a safe bound and its duals."""
        return self._extreme(index, 1.0, time_limit_s)

    def most(self, index: int, *, time_limit_s: float) -> float:
        """A safe upper bound of one variable in the relaxation solved last; infinite if there is none."""
        return -self._extreme(index, -1.0, time_limit_s).bound

    def _extreme(self, index: int, sign: float, time_limit_s: float) -> Solved:
        """The relaxation solved last, with one variable times ``sign`` as its objective."""
        import highspy

        highs = self._relaxation
        if highs is None:
            return NOTHING
        self._pass_new_rows()
        highs.setOptionValue("simplex_strategy", PRIMAL_SIMPLEX)
        for column, cost in enumerate(self._cost):
            if cost:
                highs.changeColCost(column, 0.0)
        highs.changeColCost(index, sign)
        highs.setOptionValue("time_limit", highs.getRunTime() + max(0.01, time_limit_s))
        _run(highs)
        answer = NOTHING
        if highs.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            solution = highs.getSolution()
            value = _safe(float(highs.getInfo().objective_function_value))
            duals = np.array(solution.col_dual), np.array(solution.row_dual)
            answer = Solved(False, value, np.array(solution.col_value), *duals)
        highs.changeColCost(index, self._cost[index])
        for column, cost in enumerate(self._cost):
            if cost:
                highs.changeColCost(column, cost)
        return answer

    def minimise(self, *, time_limit_s: float, gap: float) -> Solved:
        """Minimise with integrality, one thread; stops at the relative ``gap``."""
        import highspy

        highs = self._pass(highspy, integer=True)
        highs.setOptionValue("time_limit", max(0.01, time_limit_s))
        highs.setOptionValue("mip_rel_gap", gap)
        _run(highs)
        status = highs.getModelStatus()
        kinds = highspy.HighsModelStatus
        if status not in (kinds.kInfeasible, kinds.kOptimal, kinds.kTimeLimit):
            # HiGHS 1.16 ends some of these with "solve error" after presolve and solves them without
            highs.setOptionValue("presolve", "off")
            _run(highs)
            status = highs.getModelStatus()
        if status == kinds.kInfeasible:
            return Solved(True, float("inf"), None)
        if status not in (kinds.kOptimal, kinds.kTimeLimit):
            return NOTHING
        info = highs.getInfo()
        bound = float(info.mip_dual_bound)
        if not np.isfinite(bound):
            bound = -float("inf")
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        return Solved(False, _safe(bound), np.array(highs.getSolution().col_value) if found else None)

    def arrays(self) -> ModelArrays:
        """Columns and rows as they are now, for whoever wants to do without a solver."""
        return ModelArrays(
            cost=np.array(self._cost),
            column_lower=np.array(self._lower),
            column_upper=np.array(self._upper),
            row_lower=np.array([row[0] for row in self._rows]),
            row_upper=np.array([row[1] for row in self._rows]),
            entry_row=np.repeat(np.arange(len(self._rows)), [len(row[2]) for row in self._rows]),
            entry_column=np.concatenate([np.zeros(0, dtype=np.int64), *[row[2] for row in self._rows]]),
            entry=np.concatenate([np.zeros(0), *[row[3] for row in self._rows]]),
        )

    def _pass(self, highspy: Any, *, integer: bool) -> Any:
        highs = new_highs()
        lp = highspy.HighsLp()
        arrays = self.arrays()
        lp.num_col_, lp.num_row_ = len(arrays.cost), len(arrays.row_lower)
        lp.col_cost_ = arrays.cost
        lp.col_lower_ = arrays.column_lower
        lp.col_upper_ = arrays.column_upper
        lp.row_lower_ = arrays.row_lower
        lp.row_upper_ = arrays.row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lengths = np.bincount(arrays.entry_row, minlength=lp.num_row_)
        lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lp.a_matrix_.index_ = arrays.entry_column.astype(np.int32)
        lp.a_matrix_.value_ = arrays.entry
        if integer and any(self._integer):
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[flag] for flag in self._integer]
        highs.passModel(lp)
        return highs


def new_highs() -> Any:
    """A silent HiGHS with one thread."""
    import highspy

    with _quiet_stdout():
        highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("parallel", "off")
    return highs


def _run(highs: Any) -> None:
    """Solve. HiGHS keeps one pool of threads for the process and refuses to run with any other number."""
    highs.resetGlobalScheduler(True)
    highs.run()


def _safe(bound: float) -> float:
    return bound - SAFETY * abs(bound)


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Keep the banner HiGHS prints when it is first created off stdout, where the answer goes."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # stdout is closed: nothing to protect
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(sink)
