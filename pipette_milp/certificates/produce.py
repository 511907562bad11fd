"""Writes the proof of one family: relaxations solved by HiGHS, of which only the duals are kept.

Everything is measured with the functions that check it, so what comes out is accepted or is not there; that
HiGHS solves its relaxations is a matter of luck here, not of trust.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.certificates.check import SHORT, ContentBound, contents_of_groups, split_prices
from pipette_milp.certificates.content_search import SplitPrices, TooManyContentsError
from pipette_milp.certificates.frame import Frame, NamedPattern, significant
from pipette_milp.certificates.proof import Case, Duals, Path, Proof, Step, family_of
from pipette_milp.cost.placement import stage_times
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import PathCounts
from pipette_milp.solvers.evaluation import balanced_split
from pipette_milp.solvers.highs import INFINITY, Solved
from pipette_milp.solvers.layer_branches import busy_layers, tightened_layers
from pipette_milp.solvers.path_pool import VIOLATION
from pipette_milp.solvers.relaxed import BestLinks, best_hop_s
from pipette_milp.solvers.split_model import SplitModel

MOST_ROUNDS = 30
"""Rounds of cuts per model."""
DIGITS = 9
"""Significant digits of a dual: loses about 1e-9 of the bound, a thousandth of HiGHS's own margin."""
PATH_DIGITS = 4
"""Significant digits of the durations that a path is traced from."""
LEAST_DUAL = 1e-11
"""Duals below are left out."""


def prove(tables: CostTables, target_s: float, *, time_limit_s: float) -> Proof | None:
    """A proof that no plan of a family takes less than the target; None if none was found in time."""
    frame = Frame.of(tables, target_s)
    return _Prover(frame, time.monotonic() + time_limit_s).prove()


@dataclass
class _Rows:
    """Where the rows of paths are in a model, and how many rows it had before."""

    bases: int
    paths: dict[int, int] = field(default_factory=dict)


class _LateError(Exception):
    """The time is over."""


class _Prover:
    """One family."""

    def __init__(self, frame: Frame, deadline: float) -> None:
        self.frame, self.deadline = frame, deadline
        self.enough = frame.target * (1 - SHORT)
        self.paths: list[Path] = []
        self.counts: list[PathCounts] = []
        self.known: dict[bytes, int] = {}

    def prove(self) -> Proof | None:
        tables = self.frame.tables
        tightened = tightened_layers(tables, self.enough)
        if tightened is None:
            return self.proof((), [])
        low, high = tightened
        self.seed(low, high)
        try:
            everything = self.case(low, high, steps=False)
            if everything is not None:
                return self.proof((), [everything])
            needed = tuple(int(layers) for layers in busy_layers(tables, low, high))
            cases: list[Case | None] = []
            for case_low, case_high in self.frame.cases(low, high, needed):
                if np.any(case_low > case_high):
                    cases.append(None)
                    continue
                case = self.case(case_low, case_high, steps=True)
                if case is None:
                    return None
                cases.append(case)
            return self.proof(needed, cases)
        except _LateError:
            return None

    def proof(self, least_layers: tuple[int, ...], cases: list[Case | None]) -> Proof:
        """With only those paths that are used."""
        used = sorted({path for case in cases if case is not None for path in _paths_of(case)})
        number = {path: index for index, path in enumerate(used)}
        return Proof(
            family=family_of(self.frame.tables.configuration),
            paths=tuple(self.paths[path] for path in used),
            least_layers=least_layers,
            cases=tuple(None if case is None else _renumbered(case, number) for case in cases),
        )

    # ------------------------------------------------------------------ paths
    def seed(self, low: IntArray, high: IntArray) -> None:
        """Paths at a balanced split with the best hops: plain, and with each stage in turn the busiest."""
        tables = self.frame.tables
        virtual = tables.num_virtual_stages
        balanced = balanced_split(tables)
        layers: Array = np.clip(low if balanced is None else balanced, low, high).astype(np.float64)
        hop = best_hop_s(tables, BestLinks.of(tables))
        hops = np.full(virtual - 1, hop)
        for end in range(tables.pipeline):
            self.path(end, layers, hops, hops)
        for stage in range(virtual):
            busy = layers.copy()
            busy[stage] = 1.5 * busy[stage] + 1.0
            self.path(0, busy, hops, hops)
            self.path(stage % tables.pipeline, busy, hops, hops)

    def path(self, end: int, layers: Array, hop_forward: Array, hop_backward: Array) -> int:
        """Number of the longest path for durations rounded to a few digits."""

        def few(values: Array) -> tuple[float, ...]:
            return tuple(significant(max(0.0, float(value)), PATH_DIGITS) for value in values)

        path = Path(end=end, layers=few(layers), hop_forward=few(hop_forward), hop_backward=few(hop_backward))
        counts = self.frame.counts(path)
        key = counts.key(end)
        if key not in self.known:
            self.known[key] = len(self.paths)
            self.paths.append(path)
            self.counts.append(counts)
        return self.known[key]

    def add_paths(self, model: SplitModel, rows: _Rows) -> int:
        """All paths known into a model that does not have them yet; how many came."""
        missing = [path for path in range(len(self.paths)) if path not in rows.paths]
        for path in missing:
            rows.paths[path] = model.num_rows
            model.add_cut(self.counts[path], self.paths[path].end)
        return len(missing)

    def add_violated(self, model: SplitModel, rows: _Rows, x: Array) -> None:
        """Paths longer than a solution says."""
        tables = self.frame.tables
        layers, hops = x[model.layers], model.hops_of(x)
        for end in range(tables.pipeline):
            number = self.path(end, layers, *hops)
            if number in rows.paths:
                continue
            length = self.counts[number].length_s(*stage_times(tables, layers), *hops)
            if length > float(x[model.finish[end]]) + VIOLATION:
                rows.paths[number] = model.num_rows
                model.add_cut(self.counts[number], end)

    # ------------------------------------------------------------------ relaxations
    def solve(self, model: SplitModel, rows: _Rows) -> Solved | None:
        """The relaxation with every path and pair that matters; None without a solution."""
        for column in (model.total, model.step_start, model.slowest_step, *model.finish):
            model.set_bounds(int(column), 0.0, INFINITY)  # so that there are duals instead of "infeasible"
        latest = None
        for _ in range(MOST_ROUNDS):
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise _LateError
            solved = model.relax(time_limit_s=left)
            if solved.infeasible or solved.x is None or solved.row_duals is None:
                return latest
            latest = solved
            if solved.bound >= self.frame.target:
                break
            before = model.num_rows
            self.add_violated(model, rows, solved.x)
            if isinstance(model, NamedPattern):
                model.add_pairs(solved.x)
            if model.num_rows == before:
                break
        return latest

    def case(self, low: IntArray, high: IntArray, *, steps: bool) -> Case | None:
        """A case by the split model, or else (if wanted) by what nodes may hold."""
        model = self.frame.split(low, high)
        rows = _Rows(model.num_rows)
        self.add_paths(model, rows)
        solved = self.solve(model, rows)
        if solved is None or solved.row_duals is None:
            return None
        whole = _longer(rounded(solved.row_duals), model.num_rows)
        nothing = np.zeros(model.num_rows)
        if split_prices(self.frame, model, whole, nothing, []).bound_s >= self.enough:
            return Case(duals=named(whole, rows, {}))
        if not steps:
            return None
        start, *finish = (
            self.duals_of_least(model, int(column)) for column in (model.step_start, *model.finish)
        )
        found = self.steps(model, split_prices(self.frame, model, whole, start, finish), low, high)
        if found is None:
            return None
        return Case(
            duals=named(whole, rows, {}),
            start=named(start, rows, {}),
            finish=tuple(named(values, rows, {}) for values in finish),
            steps=tuple(found),
        )

    def duals_of_least(self, model: SplitModel, column: int) -> Array:
        solved = model.least(column, time_limit_s=max(0.01, self.deadline - time.monotonic()))
        return np.zeros(model.num_rows) if solved.row_duals is None else rounded(solved.row_duals)

    def steps(
        self, split: SplitModel, prices: SplitPrices, low: IntArray, high: IntArray
    ) -> list[Step] | None:
        steps: list[Step] = []
        narrowing: list[ContentBound] = []
        partitions = self.frame.partitions
        names = ["one"] if len(partitions["one"]) == len(partitions["links"]) else ["one", "links"]
        for name in names:
            groups = partitions[name]
            try:
                possible = contents_of_groups(self.frame, split, prices, groups, narrowing)
            except TooManyContentsError:
                return None
            if not all(len(held) for held in possible):
                return [*steps, Step(partition=name, duals=Duals())]  # type: ignore[arg-type]
            bound, duals = self.content_step(low, high, name, possible)
            if bound is None:
                return None
            steps.append(Step(partition=name, duals=duals))  # type: ignore[arg-type]
            if bound.value >= self.enough:
                return steps
            narrowing.append(bound)
        return None

    def content_step(
        self, low: IntArray, high: IntArray, name: str, possible: list[NDArray[np.int16]]
    ) -> tuple[ContentBound | None, Duals]:
        model = self.frame.patterns(low, high, self.frame.partitions[name], possible)
        rows = _Rows(model.num_rows)
        self.add_paths(model, rows)
        solved = self.solve(model, rows)
        if solved is None or solved.row_duals is None:
            return None, Duals()
        duals = _longer(rounded(solved.row_duals), model.num_rows)
        return ContentBound.of(self.frame, model, duals, possible), named(duals, rows, model.rows_of_pair)


def rounded(duals: Array) -> Array:
    """To so many digits as are written."""
    return np.array([significant(float(v), DIGITS) if abs(v) > LEAST_DUAL else 0.0 for v in duals])


def _longer(duals: Array, rows: int) -> Array:
    """With 0 for rows that came later."""
    return np.concatenate([duals, np.zeros(rows - len(duals))])


def named(duals: Array, rows: _Rows, pairs: dict[tuple[int, int], range]) -> Duals:
    """By what a certificate calls the rows."""
    own = [(int(index), float(duals[index])) for index in np.flatnonzero(duals[: rows.bases])]
    cuts = [(path, float(duals[row])) for path, row in rows.paths.items() if row < len(duals) and duals[row]]
    met = [(one, other, tuple(float(v) for v in duals[list(span)])) for (one, other), span in pairs.items()]
    return Duals(rows=tuple(own), cuts=tuple(cuts), pairs=tuple(m for m in met if any(m[2])))


def _duals_of(case: Case) -> list[Duals]:
    return [case.duals, case.start, *case.finish, *(step.duals for step in case.steps)]


def _paths_of(case: Case) -> set[int]:
    return {path for duals in _duals_of(case) for path, _ in duals.cuts}


def _renumbered(case: Case, number: dict[int, int]) -> Case:
    def renamed(duals: Duals) -> Duals:
        cuts = tuple((number[path], value) for path, value in duals.cuts)
        return duals.model_copy(update={"cuts": cuts})

    return case.model_copy(
        update={
            "duals": renamed(case.duals),
            "start": renamed(case.start),
            "finish": tuple(renamed(one) for one in case.finish),
            "steps": tuple(step.model_copy(update={"duals": renamed(step.duals)}) for step in case.steps),
        }
    )
