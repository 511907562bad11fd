"""Columns for what nodes hold, all of them at once or priced in where they are many.

A node of 8 cells over 16 stages has half a million contents. The relaxation then starts from few and asks
for others by their reduced costs: the sum over the content's rows of minus dual times coefficient, taken over
every content listed. As the nodes of a group are a fixed number, any duals give a bound before all columns
are in (the Lagrangian bound of column generation):

    T >= value of the restricted relaxation + sum over groups of nodes * min(0, least reduced cost)

So that the restricted model has a solution whatever its columns are, a node may hold nothing and a cell may
be nowhere, for `MISSING_COST` each: that only lowers the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.contents import Contents
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.highs import INFINITY, NOTHING, Solved
from pipette_milp.solvers.split_model import SplitModel

ALL_AT_ONCE = 600
"""Contents in all that a relaxation takes without pricing."""
FIRST = 60
"""Contents per group it starts from otherwise."""
ENTERING = 20
"""Contents per group that enter at a time, beside the best one of every stage."""
MISSING_COST = 10.0
"""Units of time (about one iteration each) for a cell that is nowhere: more than any placement costs, unless
a node is tens of times slower than the others."""
POOL = 5_000
"""Contents per group, those of the least reduced cost last time, that are priced before all of them are."""
PRICE_TOLERANCE = 1e-7
"""Reduced cost, in units of time, from which a content is worth entering."""

Coefficient = Callable[[int, IntArray, IntArray], Array | None]
"""(group, cells of one stage, cells of another) -> coefficient of a content that has them, elementwise; None
for a group without the row."""


@dataclass(frozen=True)
class ContentRow:
    """A row's coefficients for all contents there may ever be."""

    index: int
    pair: tuple[int, int]
    """The two stages (or `Contents.rings_column`) that a coefficient depends on."""
    coefficient: Coefficient
    tables: list[Array | None]
    """Per group over `Contents.grid`: what `coefficient` gives there."""


@dataclass(frozen=True)
class _Pool:
    """Some of the contents listed for a group."""

    positions: IntArray
    contents: Contents

    @classmethod
    def least(cls, listed: Contents, reduced: Array) -> _Pool:
        """Those of the least reduced cost."""
        positions = np.arange(len(reduced))
        if len(reduced) > POOL:
            positions = np.sort(np.argpartition(reduced, POOL)[:POOL])
        return cls(positions, listed.chosen(positions))


class ContentColumns(SplitModel):
    """The split model with columns ``count[g][i]``: nodes of group g that hold ``contents[g][i]``.

    Args:
        listed: per group what a node of it may hold.
        priced: start from few contents and price the others in; False takes all listed.
        elastic: nodes may stay empty and cells be nowhere, as where contents are priced, also where all are
            taken at once: the relaxation then has a solution and duals.
    """

    def __init__(
        self,
        tables: CostTables,
        ceiling_s: float,
        low: IntArray,
        high: IntArray,
        groups: list[Group],
        listed: list[Contents],
        *,
        priced: bool,
        elastic: bool = False,
    ) -> None:
        super().__init__(tables, ceiling_s, low, high)
        self.ceiling_s = ceiling_s
        self.groups = groups
        self.listed = listed
        self.priced = priced and sum(len(one) for one in listed) > ALL_AT_ONCE
        self.elastic = elastic or self.priced
        self.content_rows: list[ContentRow] = []
        self._inside = [np.zeros(len(one), dtype=bool) for one in listed]
        self.contents: list[Contents] = []
        """Per group those that have a column."""
        self.count: list[IntArray] = []
        self._pool: list[_Pool] | None = None
        self.reduced: list[Array] | None = None
        """Per group the reduced costs of all listed contents in the relaxation solved last."""
        for one, group, inside in zip(listed, groups, self._inside, strict=True):
            first = _evenly_apart(len(one), FIRST) if self.priced else np.arange(len(one))
            inside[first] = True
            self.contents.append(one.chosen(first))
            self.count.append(self.columns(len(first), 0.0, self._most_nodes(group), integer=True))
        if self.elastic:
            # what the columns of now cannot attain, those to come may
            for column in (self.total, self.step_start, self.slowest_step, *self.finish):
                self.set_bounds(int(column), 0.0, INFINITY)

    def _most_nodes(self, group: Group) -> float:
        """Upper bound of a content's column. Where contents are priced, the number of nodes is left to their
        row: a bound that is met would have a dual of its own, which `relax` does not count."""
        return INFINITY if self.elastic else float(len(group.nodes))

    def content_row(
        self,
        terms: list[tuple[int, float]],
        pair: tuple[int, int],
        coefficient: Coefficient,
        *,
        at_least: float = -INFINITY,
        at_most: float = INFINITY,
    ) -> int:
        """A row over ``terms`` and the contents of all groups, those that enter later included."""
        tables: list[Array | None] = []
        many = []
        for g, (listed, content) in enumerate(zip(self.listed, self.contents, strict=True)):
            table = coefficient(g, *listed.grid())
            tables.append(table)
            if table is not None:
                many.append((self.count[g], content.look_up(pair, table)))
        index = self.row(terms, many, at_least=at_least, at_most=at_most)
        self.content_rows.append(ContentRow(index, pair, coefficient, tables))
        return index

    def reduced_costs(self, row_duals: Array, groups_contents: list[Contents]) -> list[Array]:
        """Per group [P] the reduced cost of some contents: minus the sum over rows of dual times
        coefficient."""
        reduced = []
        for g, listed in enumerate(groups_contents):
            by_pair: dict[tuple[int, int], Array] = {}
            for row in self.content_rows:
                table, dual = row.tables[g], float(row_duals[row.index])
                if table is not None and dual != 0.0:
                    by_pair[row.pair] = by_pair.get(row.pair, 0.0) - dual * table
            cost = np.zeros(len(listed))
            for pair, table in by_pair.items():
                cost += listed.look_up(pair, table)
            reduced.append(cost)
        return reduced

    def relax(self, *, time_limit_s: float) -> Solved:
        """Minimise without integrality, contents priced in until none is missing or the ceiling is met."""
        if not self.priced:
            solved = super().relax(time_limit_s=time_limit_s)
            if solved.column_duals is not None:
                self.reduced = [solved.column_duals[columns] for columns in self.count]
            return solved
        until = time.monotonic() + time_limit_s
        latest = NOTHING
        while True:
            solved = super().relax(time_limit_s=until - time.monotonic())
            if solved.infeasible:
                return solved
            if solved.row_duals is None:
                return self._with_all_columns(latest)
            if self._pool is not None:
                pooled = self.reduced_costs(solved.row_duals, [pool.contents for pool in self._pool])
                # the contents outside the pool are asked when they are all that can matter
                if solved.bound + self._missing(pooled) < self.ceiling_s and self._enter_from_pool(pooled):
                    continue
            reduced = self.reduced_costs(solved.row_duals, self.listed)
            self._pool = [_Pool.least(one, cost) for one, cost in zip(self.listed, reduced, strict=True)]
            missing = self._missing(reduced)
            bound = latest.bound
            if latest is NOTHING or solved.bound + missing > bound:
                # a bound and reduced costs of the same duals, for `affordable`
                bound, self.reduced = solved.bound + missing, reduced
            latest = replace(solved, bound=bound)
            if bound >= self.ceiling_s or missing > -PRICE_TOLERANCE or time.monotonic() > until:
                return latest
            if not sum(self._enter(g, np.arange(len(one)), one) for g, one in enumerate(reduced)):
                return latest  # the solver's tolerance is coarser than that of the prices

    def _with_all_columns(self, solved: Solved) -> Solved:
        """A solution from before the last columns came: they are not in it."""
        if solved.x is None:
            return solved
        missing = self.num_columns - len(solved.x)
        return replace(solved, x=np.concatenate([solved.x, np.zeros(missing)]))

    def _missing(self, reduced: list[Array]) -> float:
        """What contents of these reduced costs can lower the optimum by at most: no group has more nodes."""
        least = [min(0.0, float(one.min(initial=0.0))) for one in reduced]
        return sum(len(group.nodes) * value for group, value in zip(self.groups, least, strict=True))

    def _enter_from_pool(self, reduced: list[Array]) -> int:
        """`_enter` for all groups, of the contents that were the best when all were priced."""
        return sum(
            self._enter(g, pool.positions, cost)
            for g, (pool, cost) in enumerate(zip(self._pool or [], reduced, strict=True))
        )

    def _enter(self, g: int, positions: IntArray, reduced: Array) -> int:
        """The contents of a group that the relaxation misses most, and the best one of every stage, among
        some of those listed; how many came."""
        missed = (reduced < -PRICE_TOLERANCE) & ~self._inside[g][positions]
        if not missed.any():
            return 0
        listed = self.listed[g]
        order = positions[missed][np.argsort(reduced[missed], kind="stable")]
        best_of_stage = [order[np.argmax(held)] for held in (listed.held[order] > 0).T if held.any()]
        entering = np.unique(np.concatenate([order[:ENTERING], best_of_stage]).astype(np.int64))
        self._inside[g][entering] = True
        contents = listed.chosen(entering)
        rows = [
            (row.index, contents.look_up(row.pair, table))
            for row in self.content_rows
            if (table := row.tables[g]) is not None
        ]
        most = self._most_nodes(self.groups[g])
        columns = self.columns_in_rows(rows, len(entering), 0.0, most, integer=True)
        self.contents[g] = Contents(
            np.concatenate([self.contents[g].held, contents.held]), listed.data, listed.slots
        )
        self.count[g] = np.concatenate([self.count[g], columns])
        return len(entering)

    def affordable(self, solved: Solved, ceiling_s: float) -> list[NDArray[np.bool_]]:
        """Per group which listed contents one node can have in a plan below the ceiling, by their reduced
        costs."""
        if self.reduced is None:
            return [np.ones(len(one), dtype=bool) for one in self.listed]
        return [solved.bound + np.maximum(0.0, reduced) <= ceiling_s for reduced in self.reduced]


def of_group(group: int, coefficient: Callable[[IntArray, IntArray], Array]) -> Coefficient:
    """Coefficients of the contents of one group only."""
    return lambda g, one, other: coefficient(one, other) if g == group else None


def _evenly_apart(size: int, most: int) -> IntArray:
    """At most ``most`` indices below ``size``."""
    return np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64))
