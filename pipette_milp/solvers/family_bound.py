"""Lower bound of one family: relaxations with lazily added path cuts, asked in decision form.

The question is always "is there a plan with T <= ceiling?". The answer no is a bound equal to the ceiling;
else the model's own optimum is the bound and its solution is a good place to start a search from. Three
depths, each sharper and slower than the one before: the split model, the pattern model over one group of
nodes, and over the groups found from the links.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.solvers.contents import Contents, TooManyPatternsError, node_contents
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.groups import one_group
from pipette_milp.solvers.highs import NOTHING, Solved
from pipette_milp.solvers.layer_branches import (
    Branch,
    BranchKey,
    busiest_branches,
    floor_bound_s,
    tightened_layers,
)
from pipette_milp.solvers.lone_nodes import CardModel, Held, LoneNodes
from pipette_milp.solvers.path_pool import PathPool
from pipette_milp.solvers.pattern_model import PatternModel, Relaxed
from pipette_milp.solvers.patterns import Prices, useful_contents
from pipette_milp.solvers.pods import PodColumns, Pods, PodShape, add_pods
from pipette_milp.solvers.split_model import SplitModel
from pipette_milp.solvers.time_unit import in_unit

MOST_ROUNDS = 25
"""Rounds of cuts per phase; the last model still is a relaxation, so stopping early costs only strength."""
MIP_GAP = 1e-4
SPLIT_GAP = 1e-3
"""The same for whole layers over pods: the next round of cuts moves the optimum by more."""
HURRIED_ROUNDS = 8
"""The same of a relaxation that whole numbers follow, which mostly settle it in one round."""
MOST_OF_REST = 0.2
"""Share of the time left that one branch may take for whole layers."""
LONE_REACH = 0.15
"""How far below the ceiling, as a share of it, the bound of a branch may be that is looked at case by case:
from farther below, hardly any case is out."""
LONE_SHARE = 0.5
"""Share of the time left that the cases of what lone nodes hold may take."""
MOST_WHOLE = 4_000
"""Contents per group that an integer model is built with: a few seconds of HiGHS per solve on one core."""


AnyModel = TypeVar("AnyModel", bound=SplitModel)


@dataclass(frozen=True)
class FamilyBound:
    """``bound_s`` never exceeds the best simulated time of the family."""

    bound_s: float
    closed: bool
    """No plan of the family is below the ceiling."""
    layers: IntArray | None = None
    """[V] the layer split of ``relaxed``."""
    relaxed: Relaxed | None = None
    """Where to look for a plan, from the pattern model only."""
    shape: PodShape | None = None
    """The same from the split model with pods."""
    branches_s: dict[BranchKey, float] = field(default_factory=dict)
    """What is proven about parts of the layer splits; to be handed to the next call for this family."""
    by: str = "HiGHS"
    """What a bound above the cheap one rests on."""
    exhausted: bool = True
    """False when the time limit ended it: more time could lift the bound."""


def bound_family(
    evaluator: Evaluator,
    groups: list[Group],
    ceiling_s: float,
    *,
    time_limit_s: float,
    known_s: dict[BranchKey, float] | None = None,
    whole: bool = True,
    pods: IntArray | None = None,
) -> FamilyBound:
    """Bound one family against a ceiling.

    Args:
        groups: partition of the nodes; coarser is faster, finer is stronger, none leaves out the placement.
        pods: [N] pod of every node, for what `pipette_milp.solvers.pods` adds at every depth.
        ceiling_s: the time a plan would have to beat.
        known_s: ``branches_s`` of an earlier answer for this family.
        whole: ask for whole numbers of layers and nodes where the relaxation leaves the family open; without
            groups only where there are pods.
    """
    unit_s = floor_bound_s(evaluator.tables) or 1.0
    tables = in_unit(evaluator.tables, unit_s)
    answer = _bound_in_unit(
        PathPool(evaluator, tables),
        groups,
        None if pods is None else Pods.of(tables, pods),
        ceiling_s / unit_s,
        time.monotonic() + time_limit_s,
        {key: bound_s / unit_s for key, bound_s in (known_s or {}).items()},
        whole=whole,
    )
    bound_s = ceiling_s if answer.closed else min(ceiling_s, answer.bound_s * unit_s)
    branches_s = {key: bound * unit_s for key, bound in answer.branches_s.items()}
    return replace(answer, bound_s=bound_s, branches_s=branches_s)


def _bound_in_unit(
    cuts: PathPool,
    groups: list[Group],
    pods: Pods | None,
    ceiling_s: float,
    deadline: float,
    known: dict[BranchKey, float],
    *,
    whole: bool,
) -> FamilyBound:
    """`bound_family` with times in a unit in which the bound is about 1."""
    tables = cuts.tables
    closed = FamilyBound(ceiling_s, True)
    tightened = tightened_layers(tables, ceiling_s)
    if tightened is None:
        return closed
    low, high = tightened
    search = _Search(cuts, pods, ceiling_s, deadline, known)
    split = search.with_pods(SplitModel(tables, ceiling_s, low, high))
    cuts.seed(split, low, high)
    if groups:
        high = search.most_layers(split, low, high)
        if high.sum() < tables.total_layers or np.any(high < low):
            return closed
        low = np.maximum(low, tables.total_layers - (high.sum() - high))
        split = search.with_pods(SplitModel(tables, ceiling_s, low, high))
        cuts.repeat(split)
    branches = busiest_branches(tables, low, high, last=pods is not None)
    if not groups and pods is not None and whole:
        return search.settle_splits(branches)
    # one cell a node: no two rings share a card, nothing to filter by
    roomed = bool(groups) and split.best.most_slots > 1
    opened = search.relax_all(split, branches, roomed=roomed)
    if not groups or search.late or not opened:
        return search.answer(opened)
    try:
        listed = {group.slots: node_contents(tables, group.slots) for group in groups}
        prices = [one.prices for one in opened]
        useful = useful_contents(split, groups, listed, prices, ceiling_s, deadline=deadline)
    except TooManyPatternsError:
        return search.answer(opened)
    opened = [replace(one, useful=kept) for one, kept in zip(opened, useful, strict=True)]
    opened = search.by_lone_nodes(opened, groups, listed)
    # what one group of nodes leaves out is out for every finer partition, at a fraction of its cost
    coarse = one_group(tables)
    if len(groups) > len(coarse):
        opened = search.filtered_coarsely(opened, groups, coarse, listed)
        if search.late or not opened:
            return search.answer(opened)
    opened = search.relax_contents(opened, groups, listed)
    if search.late or not opened or not whole:
        return search.answer(opened)
    return search.minimise_all(opened, groups, listed)


def _any_of(useful: list[NDArray[np.bool_]], groups: list[Group], slots: int) -> NDArray[np.bool_]:
    """What any group of nodes with these slots can hold."""
    return np.any([kept for group, kept in zip(groups, useful, strict=True) if group.slots == slots], axis=0)


def _enough(useful: list[NDArray[np.bool_]]) -> bool:
    """Whether every group has something its nodes can hold."""
    return all(bool(kept.any()) for kept in useful)


@dataclass(frozen=True)
class _Open:
    """A branch that is not closed yet, or a case of it, and its bound."""

    bound_s: float
    branch: Branch
    prices: Prices
    useful: list[NDArray[np.bool_]]
    """Per group which contents of its kind of node are not ruled out."""
    held: tuple[Held, ...] = ()
    """What some lone nodes hold, where a branch is looked at case by case."""


class _Search:
    """Solve, add what the solution misses, solve again; branch by branch."""

    def __init__(
        self,
        cuts: PathPool,
        pods: Pods | None,
        ceiling_s: float,
        deadline: float,
        known: dict[BranchKey, float],
    ) -> None:
        self.cuts = cuts
        self.pods = pods
        self.pod_columns: PodColumns | None = None
        """Of the model built last."""
        self.proven = dict(known)
        """Bound of every branch that was looked at."""
        self.ceiling_s = ceiling_s
        self.deadline = deadline
        self.late = False
        """The time limit cut something short."""
        self.met: list[tuple[int, int]] = []
        """Pairs of stages whose rows the pattern model's relaxation needed."""

    def with_pods(self, model: AnyModel) -> AnyModel:
        """A model that was just built, with the rows of the pods."""
        if self.pods is not None:
            self.pod_columns = add_pods(model, self.pods)
        return model

    def answer(self, opened: list[_Open], relaxed: Relaxed | None = None) -> FamilyBound:
        """What is known: the least bound of the branches left."""
        return self.least([one.bound_s for one in opened], relaxed)

    def least(
        self, bounds_s: list[float], relaxed: Relaxed | None = None, shape: PodShape | None = None
    ) -> FamilyBound:
        """`answer` from the bounds of the branches left."""
        if not bounds_s:
            return FamilyBound(self.ceiling_s, True, branches_s=self.proven)
        layers = relaxed.layers if relaxed is not None else None
        return FamilyBound(
            min(bounds_s), False, layers, relaxed, shape, branches_s=self.proven, exhausted=not self.late
        )

    def roomed(self, model: SplitModel, branch: Branch, prices: Prices) -> Prices:
        """Prices with the room of every stage's ring in a branch."""
        if not model.load_rows:
            return prices
        self.cuts.busiest(model, branch)
        left = max(0.01, self.deadline - time.monotonic())
        return replace(
            prices, room_s=np.array([model.most(int(load), time_limit_s=left) for load in model.load])
        )

    def relax_all(self, model: SplitModel, branches: list[Branch], *, roomed: bool = False) -> list[_Open]:
        """The branches that the split model's relaxation leaves open, with their bounds; the least bounds
        first."""
        floor = floor_bound_s(model.tables)
        opened = []
        for branch in sorted(branches, key=lambda one: self.proven.get(one.key, floor)):
            known = self.proven.get(branch.key, floor)
            if known >= self.ceiling_s:
                continue
            model.restrict_layers(branch.low, branch.high)
            bound, solved = self._rounds(model, known, lambda left: model.relax(time_limit_s=left))
            self.proven[branch.key] = bound
            if bound >= self.ceiling_s:
                continue
            prices = Prices.of(model, solved, branch.low, branch.high)
            if roomed:
                prices = self.roomed(model, branch, prices)
            opened.append(_Open(bound, branch, prices, []))
        return opened

    def by_lone_nodes(
        self, branches: list[_Open], groups: list[Group], listed: dict[int, Contents]
    ) -> list[_Open]:
        """Every branch case by case of what the lone nodes hold, where there are such."""
        if len(groups) == 1 or all(len(group.nodes) > 1 for group in groups):
            return branches
        tables = self.cuts.tables
        now = time.monotonic()
        lone = LoneNodes(
            tables,
            groups,
            listed,
            self.ceiling_s,
            lambda model: self._rounds(
                model, 0.0, lambda left: model.relax(time_limit_s=left), most=HURRIED_ROUNDS
            ),
            now + LONE_SHARE * (self.deadline - now),
        )
        opened = []
        for one in branches:
            if one.bound_s < (1 - LONE_REACH) * self.ceiling_s:
                opened.append(one)
                continue
            known = dict(self.cuts.known)
            model = CardModel(tables, self.ceiling_s, one.branch.low, one.branch.high, lone.cards)
            self.cuts.repeat(model)
            cases, left = lone.cases(model, one.useful)
            self.cuts.known = known  # the paths of odd cases are those of no other model
            for case in cases:
                useful = list(left)
                for held in case.held:
                    useful[held.group] = np.zeros_like(left[held.group])
                    useful[held.group][held.position] = True
                opened.append(
                    replace(one, bound_s=max(one.bound_s, case.bound_s), useful=useful, held=case.held)
                )
        self.settle(branches, opened)
        return opened

    def settle(self, before: list[_Open], opened: list[_Open]) -> None:
        """Keep what is proven about branches: the least bound of their cases that are left open."""
        for key in {one.branch.key for one in before}:
            left = [one.bound_s for one in opened if one.branch.key == key]
            self.proven[key] = max(self.proven[key], min(left, default=self.ceiling_s))

    def filtered_coarsely(
        self, branches: list[_Open], groups: list[Group], coarse: list[Group], listed: dict[int, Contents]
    ) -> list[_Open]:
        """`relax_contents` over a coarser partition, for the contents that it leaves to the finer one."""
        whole: dict[BranchKey, _Open] = {}
        for one in branches:
            useful = [_any_of(one.useful, groups, c.slots) for c in coarse]
            if one.branch.key in whole:
                known = whole[one.branch.key]
                useful = [a | b for a, b in zip(useful, known.useful, strict=True)]
                one = replace(one, bound_s=min(one.bound_s, known.bound_s))
            whole[one.branch.key] = replace(one, useful=useful, held=())
        left = {one.branch.key: one for one in self.relax_contents(list(whole.values()), coarse, listed)}
        slots = [one.slots for one in coarse]
        opened = []
        for one in branches:
            if one.branch.key in left:
                known = left[one.branch.key]
                useful = [
                    kept & known.useful[slots.index(group.slots)]
                    for group, kept in zip(groups, one.useful, strict=True)
                ]
                opened.append(replace(one, bound_s=max(one.bound_s, known.bound_s), useful=useful))
        return opened

    def relax_contents(
        self, branches: list[_Open], groups: list[Group], listed: dict[int, Contents]
    ) -> list[_Open]:
        """The branches that the relaxation over what is useful to each of them leaves open; less is useful
        then.

        Every branch has a model of its own: few of the contents are useful to several of them, and its layer
        bounds sharpen most rows.
        """
        opened = []
        for one in sorted(branches, key=lambda one: one.bound_s):
            if not _enough(one.useful):
                continue  # there is nothing a node could hold
            if time.monotonic() >= self.deadline:
                self.late = True
                opened.append(one)
                continue
            model, positions = self.pattern_model(one, groups, listed, priced=True)
            bound, solved = self._rounds(
                model,
                one.bound_s,
                lambda left, model=model: model.relax(time_limit_s=left),  # type: ignore[misc]
            )
            self.met = model.met
            if bound >= self.ceiling_s:
                continue
            useful = []
            for before, position, mask in zip(
                one.useful, positions, model.affordable(solved, self.ceiling_s), strict=True
            ):
                kept = np.zeros(len(before), dtype=bool)
                kept[position[mask]] = True
                useful.append(kept)
            opened.append(replace(one, bound_s=bound, useful=useful))
        self.settle(branches, opened)
        return opened

    def pattern_model(
        self, one: _Open, groups: list[Group], listed: dict[int, Contents], *, priced: bool
    ) -> tuple[PatternModel, list[IntArray]]:
        """The model of a branch with all cuts known, and per group which of the contents listed it has."""
        positions = [np.flatnonzero(kept) for kept in one.useful]
        chosen = [listed[group.slots].chosen(some) for group, some in zip(groups, positions, strict=True)]
        branch = one.branch
        model = self.with_pods(
            PatternModel(
                self.cuts.tables, self.ceiling_s, branch.low, branch.high, groups, chosen, priced=priced
            )
        )
        self.cuts.repeat(model)
        model.repeat_pairs(self.met)
        model.give(one.held)
        return model, positions

    def most_layers(self, model: SplitModel, low: IntArray, high: IntArray) -> IntArray:
        """[V] the most layers each virtual stage can have in a plan below the ceiling, by the relaxation."""
        tight = high.copy()
        for j in range(len(high)):
            while tight[j] >= low[j]:
                probe = low.copy()
                probe[j] = tight[j]
                model.restrict_layers(probe, tight)
                bound, _ = self._rounds(model, 0.0, lambda left: model.relax(time_limit_s=left))
                if bound < self.ceiling_s:
                    break
                tight[j] -= 1
        return tight

    def settle_splits(self, branches: list[Branch]) -> FamilyBound:
        """A few rounds of the relaxation of each branch, then whole layers, and pods that rings cross or not.

        With two layers on some stages and one on the others a relaxation has fractions that neither a longer
        hop nor a longer ring costs anything. The question whether whole numbers do is mostly answered in
        a second. Every branch has a model of its own with the cuts that the one before needed: with many
        stages those of all branches are thousands.
        """
        tables = self.cuts.tables
        floor = floor_bound_s(tables)
        opened: list[float] = []
        best: tuple[float, Relaxed, PodShape] | None = None
        before: Array | None = None
        for branch in branches:
            bound = self.proven.get(branch.key, floor)
            if bound >= self.ceiling_s:
                continue
            if time.monotonic() >= self.deadline:
                self.late = True
                self.proven[branch.key] = bound
                opened.append(bound)
                continue
            model = self.with_pods(SplitModel(tables, self.ceiling_s, branch.low, branch.high))
            self.cuts.repeat(model, near=before, seeds=True)
            bound, solved = self._rounds(
                model,
                bound,
                lambda rest, model=model: model.relax(time_limit_s=rest),  # type: ignore[misc]
                most=HURRIED_ROUNDS,
            )
            self.proven[branch.key] = bound
            if solved.x is not None:
                before = solved.x
            if bound < self.ceiling_s and solved.x is not None:
                model = self.with_pods(SplitModel(tables, self.ceiling_s, branch.low, branch.high))
                self.cuts.repeat(model, near=solved.x)
                until = time.monotonic() + MOST_OF_REST * (self.deadline - time.monotonic())
                bound, solved = self._rounds(
                    model,
                    bound,
                    lambda rest, model=model: model.minimise(  # type: ignore[misc]
                        time_limit_s=max(0.02, rest), gap=SPLIT_GAP
                    ),
                    until=until,
                )
                self.proven[branch.key] = bound
                if bound < self.ceiling_s and solved.x is not None and self.pod_columns is not None:
                    value = float(solved.x[model.total])
                    if best is None or value < best[0]:
                        shape = self.pod_columns.read(solved.x, tables.data)
                        best = value, Relaxed(model.layers_of(solved.x), []), shape
            if bound < self.ceiling_s:
                opened.append(bound)
        return self.least(opened) if best is None else self.least(opened, best[1], best[2])

    def minimise_all(
        self, opened: list[_Open], groups: list[Group], listed: dict[int, Contents]
    ) -> FamilyBound:
        """Whole layers and contents, the lowest branch first; the best solution found on the way."""
        left = sorted(opened, key=lambda one: one.bound_s)
        done: list[_Open] = []
        best: tuple[float, Relaxed] | None = None
        while left:
            one = left.pop(0)
            share = (self.deadline - time.monotonic()) / (len(left) + 1)
            if share <= 0.02:
                self.late = True
                done.append(one)
                continue
            if not _enough(one.useful):
                continue  # there is nothing a node could hold
            if max(kept.sum() for kept in one.useful) > MOST_WHOLE:
                done.append(one)
                continue
            model, _ = self.pattern_model(one, groups, listed, priced=False)
            until = time.monotonic() + 2 * share
            bound, solved = self._rounds(
                model,
                one.bound_s,
                lambda rest, model=model: model.minimise(  # type: ignore[misc]
                    time_limit_s=max(0.02, rest), gap=MIP_GAP
                ),
                whole=True,
                until=until,
            )
            if bound >= self.ceiling_s:
                continue
            if solved.x is not None:
                value = float(solved.x[model.total])
                if best is None or value < best[0]:
                    best = value, model.read(solved.x)
            done.append(replace(one, bound_s=bound))
        self.settle(opened, done)
        return self.answer(done, best[1] if best is not None else None)

    def _rounds(
        self,
        model: SplitModel,
        bound_s: float,
        solve: Callable[[float], Solved],
        *,
        whole: bool = False,
        until: float = math.inf,
        most: int = MOST_ROUNDS,
    ) -> tuple[float, Solved]:
        """Rounds of cuts; the bound is the ceiling if nothing below it is left.

        Args:
            whole: integer solutions.
            until: the monotonic clock's time to stop at, before the deadline of all.
            most: rounds.
        """
        solved, middle = NOTHING, None
        for _ in range(most):
            left = min(self.deadline, until) - time.monotonic()
            if left <= 0:
                self.late = True
                break
            latest = solve(left)
            if latest.infeasible:
                return self.ceiling_s, latest
            bound_s = min(self.ceiling_s, max(bound_s, latest.bound))
            if bound_s >= self.ceiling_s:
                return self.ceiling_s, latest
            if latest.x is None:
                self.late = True
                break
            solved = latest
            added = self.cuts.add_violated(model, latest.x)
            if isinstance(model, PatternModel):
                added += model.add_pairs(latest.x)
                added += model.add_cards(latest.x) if whole else 0
            if not added:
                break
            if not isinstance(model, PatternModel):
                # cuts from between the corners of the relaxation: from the last corner alone the rounds go to
                # and fro (measured with 64 stages: 3 rounds instead of 60 on some branches)
                here = self.cuts.place_of(model, latest.x)
                middle = here if middle is None else (middle + here) / 2
                self.cuts.add_at(model, (middle + here) / 2)
        return bound_s, solved
