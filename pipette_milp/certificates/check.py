"""Checks the proof of one family, by arithmetic and without a solver.

What is taken from the certificate are numbers to multiply rows with, and durations to trace paths from. The
rows are built anew from the instance, the cases are shown to cover all layer splits, what nodes may hold is
searched anew (`pipette_milp.certificates.content_search`), and the least reduced cost over all of that is
computed from the formulas of the rows' coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.certificates.content_search import SplitPrices, TooManyContentsError, possible_contents
from pipette_milp.certificates.frame import Frame, NamedPattern
from pipette_milp.certificates.proof import Case, Duals, Proof, Step
from pipette_milp.certificates.weak_duality import ROUNDING, dual_bound
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.layer_branches import tightened_layers
from pipette_milp.solvers.split_model import SplitModel

SHORT = 1e-9
"""Relative amount by which a bound may miss the target: times are sums in floating point."""


class UnprovenError(Exception):
    """A proof does not show what it claims; the message says where."""


def check_proof(tables: CostTables, target_s: float, proof: Proof) -> None:
    """Check that no plan of a family takes less than the target.

    Raises:
        UnprovenError: the proof does not show it.
    """
    _Checker(Frame.of(tables, target_s), proof).check()


def split_prices(
    frame: Frame, model: SplitModel, duals: Array, start: Array, finish: list[Array]
) -> SplitPrices:
    """What vectors of duals of a split model prove about a longer hop, a longer ring and the ends of stages.

    Args:
        duals: [rows] for the iteration; ``start`` for the start of the optimiser step, ``finish`` for the
            ends of the stages, none for 0.
    """
    arrays = model.arrays()
    upper = frame.cap(model)
    arrays = arrays.bounded(upper)
    whole = dual_bound(arrays, duals)
    rings = np.zeros(model.tables.pipeline)
    if model.load_rows:
        rings = np.maximum(0.0, whole.duals[model.load_rows])

    def least(column: int, values: Array) -> float:
        return max(0.0, dual_bound(arrays.minimising(column), values).value)

    return SplitPrices(
        bound_s=whole.value,
        hop_forward=np.maximum(0.0, whole.reduced_low[model.hop_forward]),
        hop_backward=np.maximum(0.0, whole.reduced_low[model.hop_backward]),
        ring=rings,
        start_s=least(int(model.step_start), start),
        finish_s=np.array([least(int(c), v) for c, v in zip(model.finish, finish, strict=True)])
        if finish
        else np.zeros(model.tables.pipeline),
    )


def reduced_costs(model: NamedPattern, duals: Array, group: int, held: NDArray[np.int16]) -> Array:
    """[P] at most the reduced cost of each content: minus the sum over rows of dual times coefficient, the
    coefficients by their formulas."""
    counts = held.astype(np.int64)
    rings = ((counts > 0) & (counts < model.tables.data)).sum(axis=1)
    total, size, terms = np.zeros(len(held)), np.zeros(len(held)), 0
    for row in model.content_rows:
        dual = float(duals[row.index])
        if dual == 0.0:
            continue
        one, other = (rings if s == model.tables.pipeline else counts[:, s] for s in row.pair)
        values = row.coefficient(group, one, other)
        if values is None:
            continue
        product = dual * values
        total -= product
        size += np.abs(product)
        terms += 1
    return np.asarray(total - (terms + 2) * ROUNDING * size)


@dataclass(frozen=True)
class ContentBound:
    """What duals of a pattern model prove.

    The bound counts every node of a group with the least reduced cost; one that holds something else lifts it
    by the difference.
    """

    model: NamedPattern
    duals: Array
    value: float
    least: list[float]
    """Per group the least reduced cost of its contents, at most 0."""

    @classmethod
    def of(
        cls, frame: Frame, model: NamedPattern, duals: Array, possible: list[NDArray[np.int16]]
    ) -> ContentBound:
        """``possible``: per group [P, p] all that its nodes may hold, at least one each."""
        arrays = model.arrays().bounded(frame.cap(model))
        bound = dual_bound(arrays, duals, left_out=np.concatenate(model.count))
        least = [
            min(0.0, float(reduced_costs(model, bound.duals, g, held).min()))
            for g, held in enumerate(possible)
        ]
        counted = [len(group.nodes) * one for group, one in zip(model.groups, least, strict=True)]
        value = math.fsum([bound.value, *counted])
        value -= ROUNDING * (abs(bound.value) + math.fsum(np.abs(counted)))
        return cls(model, bound.duals, value, least)

    def leaves(self, group: Group, held: NDArray[np.int16], target: float) -> NDArray[np.bool_]:
        """[P] whether a node of a group, of this partition or a finer one, can hold it."""
        for g, one in enumerate(self.model.groups):
            if np.isin(group.nodes, one.nodes).all():
                lift = reduced_costs(self.model, self.duals, g, held) - self.least[g]
                return np.asarray(self.value + lift <= target * (1 + SHORT))
        return np.ones(len(held), dtype=bool)


def contents_of_groups(
    frame: Frame, split: SplitModel, prices: SplitPrices, groups: list[Group], narrowing: list[ContentBound]
) -> list[NDArray[np.int16]]:
    """Per group all contents that its nodes may have in a plan within the target.

    Raises:
        TooManyContentsError: more than can be looked at.
    """
    links = GroupLinks(frame.tables, groups)
    known: dict[tuple[object, ...], NDArray[np.int16]] = {}
    possible = []
    for g, group in enumerate(groups):
        key = (group.slots, *links.of_group(g))
        if key not in known:
            known[key] = possible_contents(split, links, g, group.slots, prices, frame.target)
        held = known[key]
        for one in narrowing:
            held = held[one.leaves(group, held, frame.target)] if len(held) else held
        possible.append(held)
    return possible


class _Checker:
    """One proof."""

    def __init__(self, frame: Frame, proof: Proof) -> None:
        self.frame, self.proof = frame, proof
        self.enough = frame.target * (1 - SHORT)
        virtual, pipeline = frame.tables.num_virtual_stages, frame.tables.pipeline
        for number, path in enumerate(proof.paths):
            lengths = {len(path.hop_forward), len(path.hop_backward)}
            if len(path.layers) != virtual or lengths != {virtual - 1} or path.end >= pipeline:
                raise UnprovenError(f"paths[{number}] is not one of {virtual} virtual stages")
            if min(*path.layers, *path.hop_forward, *path.hop_backward, 0.0) < 0.0:
                raise UnprovenError(f"paths[{number}] has a negative duration")
        self.counts = [frame.counts(path) for path in proof.paths]

    def check(self) -> None:
        tables = self.frame.tables
        tightened = tightened_layers(tables, self.enough)
        if tightened is None:
            return
        low, high = tightened
        self.check_cover(low, high)
        for number, (case_low, case_high) in enumerate(self.frame.cases(low, high, self.proof.least_layers)):
            case = self.proof.cases[number] if number < len(self.proof.cases) else None
            if np.any(case_low > case_high):
                continue  # no split is in this case
            if case is None:
                raise UnprovenError(f"case {number} is missing")
            self.check_case(number, case, case_low, case_high)

    def check_cover(self, low: IntArray, high: IntArray) -> None:
        """Every split within the layer bounds has a stage with as many layers as the cases ask for."""
        needed = np.array(self.proof.least_layers, dtype=np.int64)
        if not len(needed):
            return
        if len(needed) != len(low):
            raise UnprovenError(f"least_layers has {len(needed)} entries, expected {len(low)}")
        below = np.minimum(high, needed - 1)
        if np.all(below >= low) and below.sum() >= self.frame.tables.total_layers:
            raise UnprovenError("the cases leave out splits in which every stage has fewer layers")

    def check_case(self, number: int, case: Case, low: IntArray, high: IntArray) -> None:
        split = self.frame.split(low, high)
        bases = split.num_rows
        vectors = [case.duals, case.start, *case.finish]
        used = sorted({path for duals in vectors for path, _ in duals.cuts})
        rows = self.add_cuts(split, used)
        if case.finish and len(case.finish) != self.frame.tables.pipeline:
            raise UnprovenError(f"case {number} has ends of {len(case.finish)} stages")
        whole, start, *finish = (self.vector(duals, bases, split.num_rows, rows, {}) for duals in vectors)
        prices = split_prices(self.frame, split, whole, start, finish)
        value = prices.bound_s
        narrowing: list[ContentBound] = []
        for step in case.steps:
            if value >= self.enough:
                break
            value = max(value, self.check_step(step, split, prices, low, high, narrowing))
        if value < self.enough:
            raise UnprovenError(f"case {number} reaches {value / self.frame.target:.9f} of the target")

    def check_step(
        self,
        step: Step,
        split: SplitModel,
        prices: SplitPrices,
        low: IntArray,
        high: IntArray,
        narrowing: list[ContentBound],
    ) -> float:
        """The bound of a step; what it rules out of nodes is appended."""
        groups = self.frame.partitions[step.partition]
        try:
            possible = contents_of_groups(self.frame, split, prices, groups, narrowing)
        except TooManyContentsError:
            raise UnprovenError("too many contents of nodes to look at") from None
        if not all(len(held) for held in possible):
            return math.inf
        model = self.frame.patterns(low, high, groups, possible)
        bases = model.num_rows
        rows = self.add_cuts(model, sorted({path for path, _ in step.duals.cuts}))
        model.repeat_pairs([(one, other) for one, other, _ in step.duals.pairs])
        duals = self.vector(step.duals, bases, model.num_rows, rows, model.rows_of_pair)
        bound = ContentBound.of(self.frame, model, duals, possible)
        narrowing.append(bound)
        return bound.value

    def add_cuts(self, model: SplitModel, paths: list[int]) -> dict[int, int]:
        """Row of every path."""
        rows = {}
        for path in paths:
            if not 0 <= path < len(self.counts):
                raise UnprovenError(f"there is no path {path}")
            rows[path] = model.num_rows
            model.add_cut(self.counts[path], self.proof.paths[path].end)
        return rows

    def vector(
        self,
        duals: Duals,
        bases: int,
        size: int,
        rows: dict[int, int],
        pairs: dict[tuple[int, int], range],
    ) -> Array:
        """[rows] of a model with so many rows before its cuts."""
        values = np.zeros(size)
        for index, value in duals.rows:
            if not 0 <= index < bases:
                raise UnprovenError(f"there is no row {index}")
            values[index] = value
        for path, value in duals.cuts:
            values[rows[path]] = value
        for one, other, several in duals.pairs:
            span = pairs.get((one, other), range(0))
            if len(span) != len(several):
                raise UnprovenError(f"stages {one} and {other} have {len(span)} rows, not {len(several)}")
            values[list(span)] = several
        return values
