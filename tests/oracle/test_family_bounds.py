"""Every bound of a family against exhaustive search: none may exceed the best plan, none may lose it.

A ceiling above the optimum must leave the family open and the optimal plan within every filter; below it, any
answer is right that is not above the ceiling.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.simulator import PathCounts
from pipette_milp.solvers import content_columns
from pipette_milp.solvers.contents import Contents, node_contents
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.family_bound import FamilyBound, bound_family
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.highs import Solved
from pipette_milp.solvers.interval_cuts import interval_cuts
from pipette_milp.solvers.layer_branches import (
    Branch,
    BranchKey,
    busiest_branches,
    floor_bound_s,
    least_busiest_s,
    tightened_layers,
)
from pipette_milp.solvers.pattern_model import PatternModel
from pipette_milp.solvers.patterns import Prices, useful_contents
from pipette_milp.solvers.split_model import SplitModel
from pipette_milp.solvers.time_unit import in_unit
from tests.oracle.tiny_tables import Optimum, exhaustive, layer_splits, random_tables, with_uplinks
from tests.oracle.varied_tables import (
    Feature,
    busy_cards,
    large_embedding,
    long_hops,
    long_rings,
    mixed_inside,
    pods,
    slow_inside,
    varied_tables,
)

ROUNDING = 1e-9
"""What a bound may lie above the optimum: order of additions."""
DISTINCT = 1e-6
"""Relative distance from which a ceiling is above the optimum for the solvers too."""
CEILINGS = (0.5, 0.9, 0.999, 1.0 + 1e-7, 1.0 + 2e-6, 1.001, 1.1, 2.0, 1e9)
"""In optima."""
INSTANCES = 150
SLOW_INSTANCES = 2000
UPLINK_INSTANCES = 32
QUESTIONS = 3
"""Pairs of partition and ceiling asked of each instance in the normal run."""
LIMIT_S = 60.0
TOGETHER: tuple[tuple[Feature, ...], ...] = (
    (slow_inside, long_rings),
    (pods, large_embedding),
    (busy_cards, long_rings),
    (mixed_inside, long_hops),
)
SHARED_SHAPES = (
    # a stage fits on one node, and need not be there
    (1, 2, 1, 3, (2, 1, 2)),
    (1, 3, 1, 3, (3, 1, 2)),
    (2, 2, 1, 3, (2, 2, 2)),
    (2, 2, 1, 2, (4, 4)),
    (2, 2, 1, 4, (1, 1, 1, 1)),
    (2, 3, 1, 2, (4, 4)),
)


@pytest.fixture(autouse=True)
def _few_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny nodes have few contents; they are priced in all the same."""
    monkeypatch.setattr(content_columns, "ALL_AT_ONCE", 2)
    monkeypatch.setattr(content_columns, "FIRST", 2)
    monkeypatch.setattr(content_columns, "ENTERING", 1)


def random_partition(tables: CostTables, rng: np.random.Generator) -> list[Group]:
    """Any groups of nodes of equal room."""
    groups = []
    for slots in np.unique(tables.slots):
        nodes = np.flatnonzero(tables.slots == slots).astype(np.int64)
        label = rng.integers(0, len(nodes), len(nodes))
        groups += [Group(nodes[label == one], int(slots)) for one in np.unique(label)]
    return groups


def partitions(tables: CostTables, rng: np.random.Generator) -> list[list[Group]]:
    """The depths of branch and bound, and one that no solver would choose."""
    return [[], one_group(tables), find_groups(tables), random_partition(tables, rng)]


def check_layers(tables: CostTables, best: Optimum) -> None:
    """The bounds of the layers keep the best split for every ceiling it is below; so do the branches."""
    layers = np.array(best.layers)
    for factor in (1.0 + ROUNDING, 1.001, 1.1, 2.0, 1e9):
        kept = tightened_layers(tables, best.simulated_s * factor)
        assert kept is not None, factor
        low, high = kept
        assert np.all((low <= layers) & (layers <= high)), (factor, low, high, layers)
        for last in (False, True):
            branches = busiest_branches(tables, low, high, last=last)
            inside = [bool(np.all((one.low <= layers) & (layers <= one.high))) for one in branches]
            assert sum(inside) == 1, (factor, layers, branches)


def check_answer(
    tables: CostTables,
    best: Optimum,
    groups: list[Group],
    factor: float,
    known_s: dict[BranchKey, float] | None = None,
) -> FamilyBound:
    """Ask one question."""
    ceiling_s = factor * best.simulated_s
    answer = bound_family(Evaluator(tables), groups, ceiling_s, time_limit_s=LIMIT_S, known_s=known_s)
    assert answer.bound_s <= ceiling_s
    if factor > 1.0:
        assert answer.bound_s <= best.simulated_s * (1.0 + ROUNDING), (groups, factor)
    if factor > 1.0 + DISTINCT:
        assert not answer.closed, (groups, factor)
    assert answer.exhausted or answer.closed
    return answer


def check_contents(tables: CostTables, best: Optimum, groups: list[Group]) -> None:
    """What the nodes of the best plan hold passes the filters of a ceiling just above it."""
    tables, ceiling_s = in_unit(tables, best.simulated_s), 1.001
    kept = tightened_layers(tables, ceiling_s)
    assert kept is not None
    layers = np.array(best.layers)
    branch = next(one for one in busiest_branches(tables, *kept) if within(layers, one.low, one.high))
    split = SplitModel(tables, ceiling_s, *kept)
    cuts = interval_cuts(tables)
    solved = relaxed(split, cuts, branch)
    prices = Prices.of(split, solved, branch.low, branch.high)
    if split.load_rows:
        room_s = [split.most(int(load), time_limit_s=LIMIT_S) for load in split.load]
        prices = replace(prices, room_s=np.array(room_s))
    listed = {group.slots: node_contents(tables, group.slots) for group in groups}
    masks = useful_contents(split, groups, listed, [prices], ceiling_s)[0]
    useful = [listed[group.slots].chosen(mask) for group, mask in zip(groups, masks, strict=True)]
    check_held(best, groups, useful)
    bounds = []
    for priced in (False, True):
        model = PatternModel(tables, ceiling_s, branch.low, branch.high, groups, useful, priced=priced)
        solved = relaxed(model, cuts, branch)
        assert solved.bound <= 1.0
        affordable = model.affordable(solved, ceiling_s)
        check_held(best, groups, [one.chosen(mask) for one, mask in zip(useful, affordable, strict=True)])
        bounds.append(solved.bound)
    # columns priced in one after the other end where all columns at once do, or at the ceiling
    whole, priced_in = (min(bound, ceiling_s) for bound in bounds)
    assert priced_in == pytest.approx(whole, rel=1e-5)


def relaxed(model: SplitModel, cuts: list[PathCut], branch: Branch) -> Solved:
    model.restrict_layers(branch.low, branch.high)
    for cut in cuts:
        rows = (cut.forward, cut.backward, cut.weight_gradient, cut.hop_forward, cut.hop_backward)
        model.add_cut(PathCounts(*(np.array(row, dtype=np.int64) for row in rows)), cut.end_stage)
    solved = model.relax(time_limit_s=LIMIT_S)
    assert not solved.infeasible
    return solved


def check_held(best: Optimum, groups: list[Group], contents: list[Contents]) -> None:
    for group, listed in zip(groups, contents, strict=True):
        known = {tuple(int(count) for count in row) for row in listed.held}
        for node in group.nodes:
            held = tuple(stage.count(int(node)) for stage in best.placement)
            assert held in known, (group, held)


def check(seed: int, questions: int | None) -> None:
    """All bounds of one instance, or some of the questions."""
    rng = np.random.default_rng(seed)
    check_tables(varied_tables(rng), rng, questions)


def check_tables(tables: CostTables, rng: np.random.Generator, questions: int | None) -> None:
    best = exhaustive(tables)
    if best is None:
        return
    assert floor_bound_s(tables) <= best.simulated_s
    check_layers(tables, best)
    for groups in partitions(tables, rng)[1:]:
        check_contents(tables, best, groups)
    asked = [(groups, factor) for groups in partitions(tables, rng) for factor in CEILINGS]
    if questions is not None:
        asked = [asked[i] for i in rng.choice(len(asked), questions, replace=False)]
    for groups, factor in asked:
        check_answer(tables, best, groups, factor)
    # one question after the other, with what the answers before proved
    known_s: dict[BranchKey, float] = {}
    for index in rng.permutation(len(asked)):
        groups, factor = asked[int(index)]
        known_s = check_answer(tables, best, groups, factor, known_s).branches_s


@pytest.mark.parametrize("first", range(0, INSTANCES, 10))
def test_bounds(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed, QUESTIONS)


@pytest.mark.parametrize("first", range(0, UPLINK_INSTANCES, 8))
def test_bounds_hold_with_uplinks(first: int) -> None:
    """No bound counts them: every one must stay below the best plan, which they only make slower."""
    for seed in range(first, first + 8):
        rng = np.random.default_rng(20_000 + seed)
        check_tables(with_uplinks(varied_tables(rng), seed), rng, QUESTIONS)


@pytest.mark.parametrize("features", TOGETHER, ids=lambda those: "_and_".join(one.__name__ for one in those))
def test_features_that_decide_together(features: tuple[Feature, ...]) -> None:
    for seed, shape in enumerate(SHARED_SHAPES):
        rng = np.random.default_rng(seed)
        tables = random_tables(rng, shape)
        for feature in features:
            tables = feature(tables, rng)
        check_tables(tables, rng, QUESTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(INSTANCES, SLOW_INSTANCES, 50))
def test_many_bounds(first: int) -> None:
    for seed in range(first, min(first + 50, SLOW_INSTANCES)):
        check(seed, None)


# cases that were once wrong


def equal_stages(seed: int) -> CostTables:
    """Two stages of one layer each, nothing beside the layers; 2 x 3 cells on two nodes."""
    tables = varied_tables(np.random.default_rng(seed))
    assert (tables.pipeline, tables.total_layers) == (2, 2)
    zero = np.zeros(2)
    return replace(tables, forward_extra_s=zero, backward_extra_s=zero, weight_gradient_extra_s=zero)


def test_one_layer_each_is_not_below_the_least_busiest() -> None:
    """A quotient of 1 - 1e-9 layers is one layer."""
    tables = equal_stages(8)
    low, high = tables.min_layers, tables.max_layers
    work_s = tables.forward_layer_s + tables.backward_layer_s + tables.weight_gradient_layer_s
    assert least_busiest_s(tables, low, high) == pytest.approx(work_s)
    covered = [
        split
        for split in layer_splits(tables)
        if any(within(np.array(split), b.low, b.high) for b in busiest_branches(tables, low, high))
    ]
    assert covered == list(layer_splits(tables))


def within(layers: IntArray, low: IntArray, high: IntArray) -> bool:
    return bool(np.all((low <= layers) & (layers <= high)))


@pytest.mark.parametrize("seed", [140, 334, 466, 927, 1070])
def test_a_late_stage_with_a_long_ring_keeps_its_layers(seed: int) -> None:
    """Its ring starts when its own work is done, not when the last micro-batch is back at stage 0."""
    check(seed, QUESTIONS)


def test_another_unit_of_time_divides_every_time() -> None:
    """The models' unit: a plan takes as many units as it takes seconds divided by the unit."""
    for seed in range(20):
        tables = varied_tables(np.random.default_rng(seed))
        best = exhaustive(tables)
        if best is not None:
            scaled = exhaustive(in_unit(tables, 0.02))
            assert scaled is not None
            assert scaled.simulated_s == pytest.approx(best.simulated_s / 0.02, rel=1e-12)
