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
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.placement import stage_times
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import PathCounts, path_counts_batch
from pipette_milp.solvers.contents import Contents, TooManyPatternsError, node_contents
from pipette_milp.solvers.evaluation import Evaluator, balanced_split
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.groups import one_group
from pipette_milp.solvers.highs import NOTHING, SAFETY, Solved
from pipette_milp.solvers.lone_nodes import CardModel, Held, LoneNodes
from pipette_milp.solvers.pattern_model import PatternModel, Relaxed
from pipette_milp.solvers.patterns import Prices, useful_contents
from pipette_milp.solvers.pods import PodColumns, Pods, PodShape, add_pods
from pipette_milp.solvers.relaxed import BestLinks, best_hop_s, best_ring_s, tail_floor_s
from pipette_milp.solvers.runs import Lane
from pipette_milp.solvers.split_model import SplitModel
from pipette_milp.solvers.time_unit import in_unit

VIOLATION = 1e-6
"""Relative amount by which a cut must be missed to be added."""
MOST_ROUNDS = 25
"""Rounds of cuts per phase; the last model still is a relaxation, so stopping early costs only strength."""
MIP_GAP = 1e-4
SPLIT_GAP = 1e-3
"""The same for whole layers over pods: the next round of cuts moves the optimum by more."""
HURRIED_ROUNDS = 8
"""The same of a relaxation that whole numbers follow, which mostly settle it in one round."""
MOST_OF_REST = 0.2
"""Share of the time left that one branch may take for whole layers."""
NEAR = 1e-3
"""Share of the bound by which a cut may be slack in a branch's relaxation to be part of its integer model:
the slack ones make four fifths of the rows, and what is missed comes in rounds."""
LONE_REACH = 0.15
"""How far below the ceiling, as a share of it, the bound of a branch may be that is looked at case by case:
from farther below, hardly any case is out."""
LONE_SHARE = 0.5
"""Share of the time left that the cases of what lone nodes hold may take."""
MOST_WHOLE = 4_000
"""Contents per group that an integer model is built with: a few seconds of HiGHS per solve on one core."""
ROUNDING = 1e-9
"""Layers that a quotient of times may be off by."""


AnyModel = TypeVar("AnyModel", bound=SplitModel)
BranchKey = tuple[int, ...]
"""See `Branch.key`."""


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


def floor_bound_s(tables: CostTables) -> float:
    """Cheap bound from best links alone: every pipeline stage must do its own work, one after the other.

    ``max over s of [sum of F + B before s + M (F_s + B_s)] + ring + tail`` is a path of every schedule; for
    layers not yet decided the mean over stages, weighted so that only the total counts.
    """
    links = BestLinks.of(tables)
    micro_batches = tables.configuration.num_micro_batches
    per_layer, extra = _work(tables)
    chunks, pipeline = tables.configuration.virtual_stages, tables.pipeline
    low = tables.min_layers
    sent = tables.sync.bytes_per_layer * low.reshape(chunks, pipeline).sum(axis=0) + tables.sync.bytes_extra
    ring = best_ring_s(tables, links, tables.sync, sent)
    exposed = (
        ring
        if tables.sync_buckets == 1
        else np.where(np.arange(pipeline) == 0, ring / tables.sync_buckets, ring)
    )
    # M * C_s of the busiest stage: whole layers make it longer than the mean
    if chunks == 1:
        busiest = micro_batches * least_busiest_s(tables, tables.min_layers, tables.max_layers)
    else:
        busiest = micro_batches * (per_layer * tables.total_layers + float(extra.sum())) / pipeline
    # one micro-batch down and up, and the other M - 1 on the last stage; where the weight gradient is
    # separate it
    # may be put off beyond the last way up, so only the rest counts
    round_layer = tables.forward_layer_s + tables.backward_layer_s
    round_extra = tables.forward_extra_s + tables.backward_extra_s
    hop = best_hop_s(tables, links) if tables.num_virtual_stages > 1 else 0.0
    once = (
        round_layer * tables.total_layers
        + float(round_extra.sum())
        + 2 * (tables.num_virtual_stages - 1) * hop
    )
    last = tables.num_virtual_stages - 1
    last_busy = (round_layer * low[last] + round_extra[last]) * (micro_batches - 1)
    return (
        max(busiest + float(exposed.min()), once + last_busy + float(exposed.min())) + tail_floor_s(tables)
    ) * (1 - SAFETY)


def tightened_layers(tables: CostTables, ceiling_s: float) -> tuple[IntArray, IntArray] | None:
    """[V] layer bounds that any plan with T <= ceiling keeps; None if there is none.

    A pipeline stage works for ``M * C_s`` after one micro-batch came down to it and before the last one went
    up (a separate weight gradient may come after that).
    """
    separate = tables.weight_gradient_layer_s > 0
    per_layer, extra = _work(tables)
    micro_batches = tables.configuration.num_micro_batches
    links = BestLinks.of(tables)
    hop = best_hop_s(tables, links) if tables.num_virtual_stages > 1 else 0.0
    tail = tail_floor_s(tables)
    low, high = tables.min_layers.copy(), tables.max_layers.copy()
    pipeline, virtual = tables.pipeline, tables.num_virtual_stages
    for _ in range(3):
        if np.any(low > high):
            return None
        least = per_layer * low + extra
        sent = tables.sync.bytes_per_layer * low.reshape(-1, pipeline).sum(axis=0) + tables.sync.bytes_extra
        ring = best_ring_s(tables, links, tables.sync, sent)
        ring[0] /= tables.sync_buckets
        passing = tables.forward_layer_s * low + tables.forward_extra_s
        returning = tables.backward_layer_s * low + tables.backward_extra_s
        for j in range(virtual):
            stage = j % pipeline
            down = float(passing[:stage].sum()) + stage * hop
            up = 0.0 if separate else float(returning[:stage].sum()) + stage * hop
            # the stage's own ring follows, or the way up to stage 0 and the ring of that
            around = down + float(ring[stage] if separate else max(ring[stage], up + ring[0]))
            siblings = float(least[stage::pipeline].sum()) - least[j]
            room = (ceiling_s - tail - around) / micro_batches - siblings - extra[j]
            high[j] = min(high[j], int(np.floor(room / per_layer + ROUNDING)))
        if np.any(high < 0) or high.sum() < tables.total_layers:
            return None
        low = np.maximum(low, tables.total_layers - (high.sum() - high))
    return None if np.any(low > high) else (low, high)


@dataclass(frozen=True)
class Branch:
    """A part of the layer splits: virtual stage ``busiest`` is the first (or the last) to work as long as the
    best split's busiest stage must."""

    busiest: int
    key: BranchKey
    """The stage and the layers that it, and no stage before (after) it, must have: the same set of splits in
    every call for a family, whatever the ceiling."""
    low: IntArray
    high: IntArray


def least_busiest_s(tables: CostTables, low: IntArray, high: IntArray) -> float:
    """Work per micro-batch of the busiest virtual stage in the split that keeps it least busy."""
    per_layer, extra = _work(tables)
    values = np.unique(
        np.concatenate(
            [per_layer * np.arange(a, b + 1) + e for a, b, e in zip(low, high, extra, strict=True)]
        )
    )
    first, last = 0, len(values) - 1
    while first < last:
        middle = (first + last) // 2
        most = _most_within(tables, float(values[middle]), high)
        if np.all(most >= low) and most.sum() >= tables.total_layers:
            last = middle
        else:
            first = middle + 1
    return float(values[first])


def _work(tables: CostTables) -> tuple[float, Array]:
    """Seconds per micro-batch of one layer, and [V] of what a virtual stage has beside its layers."""
    per_layer = tables.forward_layer_s + tables.backward_layer_s + tables.weight_gradient_layer_s
    return per_layer, tables.forward_extra_s + tables.backward_extra_s + tables.weight_gradient_extra_s


def _most_within(tables: CostTables, work_s: float, high: IntArray) -> IntArray:
    """[V] most layers of each virtual stage within a given work."""
    per_layer, extra = _work(tables)
    fitting = np.floor((work_s - extra) / per_layer + ROUNDING)
    return np.asarray(np.minimum(high, fitting), dtype=np.int64)


def busy_layers(tables: CostTables, low: IntArray, high: IntArray) -> IntArray:
    """[V] layers from which a virtual stage works as long as the best split's busiest stage must."""
    per_layer, extra = _work(tables)
    quotient = (least_busiest_s(tables, low, high) - extra) / per_layer
    return np.asarray(np.ceil(quotient - ROUNDING), dtype=np.int64)


def busiest_branches(
    tables: CostTables, low: IntArray, high: IntArray, *, last: bool = False
) -> list[Branch]:
    """All splits within the bounds, by their first stage with at least the least busiest stage's work.

    Whole layers make the busiest stage longer than the mean, by 20 % with 4 layers a stage. A relaxation over
    fractional layers does not see that; in each branch it does.

    Args:
        last: by the last such stage. Early busy stages hide behind the way of the first micro-batch: where
            the last busy stage is early, all busy ones are, which leaves whole layers little choice; where it
            is late, the pipeline fills slowly. By the first one, the branch of stage 0 leaves all others
            open.
    """
    # most layers that stay below the least busiest work; what is less than ROUNDING below it counts as equal
    needed = busy_layers(tables, low, high)
    below = np.minimum(high, needed - 1)
    branches = []
    for j in range(tables.num_virtual_stages):
        others = slice(j + 1, None) if last else slice(0, j)
        branch_low, branch_high = low.copy(), high.copy()
        branch_low[j] = max(low[j], below[j] + 1)
        branch_high[others] = np.minimum(high[others], below[others])
        if np.all(branch_low <= branch_high):
            stage = -1 - j if last else j
            key = (stage, int(needed[j]), *(int(layers) for layers in needed[others]))
            branches.append(Branch(j, key, branch_low, branch_high))
    return branches


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
        _Cuts(evaluator, tables),
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
    cuts: _Cuts,
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
        cuts: _Cuts,
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


_Durations = tuple[Array, Array, Array | None, Array, Array]
"""Forward, backward and weight gradient [V], hops forward and backward [V-1] of one replica, seconds."""


class _Cuts:
    """Path cuts found so far, each once."""

    def __init__(self, evaluator: Evaluator, tables: CostTables) -> None:
        self.evaluator = evaluator
        self.tables = tables
        """Those of the evaluator in the unit of time of the models."""
        self.known: dict[bytes, tuple[PathCounts, int]] = {}
        self.inside: set[bytes] = set()
        """Keys of those in the model that was begun last, by `seed` or `repeat`."""
        self.seeds: set[bytes] = set()
        self.ends = np.arange(evaluator.tables.pipeline)

    def seed(self, model: SplitModel, low: IntArray, high: IntArray) -> None:
        """Paths at a balanced split with the best hops: plain, and with each stage in turn the busiest."""
        self.inside = set()
        tables = self.tables
        layers = balanced_split(tables)
        layers = np.clip(low if layers is None else layers, low, high)
        forward, backward, weight = stage_times(tables, layers)
        virtual = tables.num_virtual_stages
        hop = best_hop_s(tables, BestLinks.of(tables)) if virtual > 1 else 0.0
        busy = 1.0 + 0.5 * np.vstack([np.zeros(virtual), np.eye(virtual)])
        hops = np.full((virtual + 1, virtual - 1), hop)
        weights = None if weight is None else weight * busy
        counts = path_counts_batch(
            self.evaluator.graph, forward * busy, backward * busy, hops, hops, self.ends, weights
        )
        for k in range(virtual + 1):
            # the busiest stage shows in the way back to stage 0; the other ends matter once it is settled
            for end in self.ends if k == 0 else self.ends[:1]:
                self._add(model, _pick(counts, k, int(end)), int(end))
        self.seeds = set(self.known)

    def busiest(self, model: SplitModel, branch: Branch) -> None:
        """Into this model only: paths to every end with the branch's stage the busiest."""
        tables = self.tables
        forward, backward, weight = stage_times(tables, np.maximum(branch.low, 1))
        virtual = tables.num_virtual_stages
        hop = best_hop_s(tables, BestLinks.of(tables)) if virtual > 1 else 0.0
        hops = np.full(virtual - 1, hop)
        busy = 1.0 + (np.arange(virtual) == branch.busiest)
        weights = None if weight is None else weight * busy
        counts = self._longest((forward * busy, backward * busy, weights, hops, hops))
        for end in self.ends:
            model.add_cut(_pick(counts, 0, int(end)), int(end))

    def repeat(self, model: SplitModel, near: Array | None = None, *, seeds: bool = False) -> None:
        """All cuts known so far into another model of the family; with a solution of such a model only those
        that it keeps with next to no slack, and the ``seeds``."""
        self.inside = set(self.known)
        if near is not None:
            durations = self._durations(self.place_of(model, near))
            latest = float(near[model.step_start]) - NEAR - self._after_s(model, near)
            self.inside = {
                key
                for key, (counts, end) in self.known.items()
                if counts.length_s(*durations) > latest[end] or (seeds and key in self.seeds)
            }
        for key in self.known:
            if key in self.inside:
                model.add_cut(*self.known[key])

    def place_of(self, model: SplitModel, x: Array) -> Array:
        """[3V - 2] layers and hops of a solution."""
        return np.concatenate([np.maximum(0.0, x[model.layers]), *model.hops_of(x)])

    def _durations(self, place: Array, lane: Lane | None = None) -> _Durations:
        virtual = self.tables.num_virtual_stages
        layers: Any
        layers, forward, backward = np.split(place, [virtual, 2 * virtual - 1])
        if lane is not None:
            forward, backward = lane.forward_s, lane.backward_s
        return *stage_times(self.tables, layers), forward, backward

    def _after_s(self, model: SplitModel, x: Array) -> Array:
        """[p] what follows the last task of each stage before the step starts."""
        after = x[model.sync].copy()
        after[[0, -1]] += x[model.exchange]
        return np.asarray(after)

    def _longest(self, durations: _Durations) -> PathCounts:
        """The longest paths to every end."""
        forward, backward, weight, hop_forward, hop_backward = durations
        return path_counts_batch(
            self.evaluator.graph,
            forward[None],
            backward[None],
            hop_forward[None],
            hop_backward[None],
            self.ends,
            None if weight is None else weight[None],
        )

    def add_at(self, model: SplitModel, place: Array) -> None:
        """The longest paths at some layers and hops."""
        counts = self._longest(self._durations(place))
        for e in self.ends:
            self._add(model, _pick(counts, 0, int(e)), int(e))

    def add_violated(self, model: SplitModel, x: Array) -> int:
        """Cuts that the solution misses; how many were added."""
        place = self.place_of(model, x)
        most = float(x[model.step_start]) * (1 + VIOLATION) - self._after_s(model, x)
        added = 0
        for lane in (None, *model.lanes):
            durations = self._durations(place, lane)
            counts = self._longest(durations)
            for e in self.ends:
                one = _pick(counts, 0, int(e))
                if one.length_s(*durations) > most[e]:
                    added += self._add(model, one, int(e), lane)
        return added

    def _add(self, model: SplitModel, counts: PathCounts, end: int, lane: Lane | None = None) -> bool:
        key = counts.key(end)
        inside = key if lane is None else key + lane.key
        if inside in self.inside:
            return False
        self.inside.add(inside)
        if lane is None:  # the paths of a lane are those of few other models
            self.known[key] = (counts, end)
        model.add_cut(counts, end, lane)
        return True


def _pick(counts: PathCounts, k: int, e: int) -> PathCounts:
    return PathCounts(
        counts.forward[k, e],
        counts.backward[k, e],
        counts.weight_gradient[k, e],
        counts.hop_forward[k, e],
        counts.hop_backward[k, e],
    )
