"""Runs through nodes and the cases of what lone nodes hold, against hops and optima that are enumerated."""

from __future__ import annotations

import numpy as np
import pytest

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.contents import Contents, node_contents
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.highs import Solved
from pipette_milp.solvers.interval_cuts import interval_cuts
from pipette_milp.solvers.layer_branches import busiest_branches, tightened_layers
from pipette_milp.solvers.lone_nodes import CardModel, LoneNodes
from pipette_milp.solvers.runs import Lane, Runs
from pipette_milp.solvers.time_unit import in_unit
from tests.oracle.test_family_bounds import relaxed, within
from tests.oracle.tiny_tables import Optimum, Placement, exhaustive, hop_times, random_tables
from tests.oracle.varied_tables import busy_cards, long_hops, long_rings, slow_node, varied_tables

SEEDS = 150
PLACEMENTS = 6
SLACK = 1e-12
LIMIT_S = 60.0
SHAPES = (
    # pipeline, data, virtual stages, nodes, slots of each node
    (4, 2, 1, 3, (3, 3, 2)),
    (3, 3, 1, 3, (4, 3, 2)),
    (4, 3, 1, 2, (7, 5)),
    (2, 4, 1, 3, (3, 3, 2)),
    (3, 3, 2, 3, (4, 3, 2)),
)
"""Nodes with runs of every kind."""


def alone(tables: CostTables) -> list[Group]:
    """Every node a group of its own."""
    return [Group(np.array([n]), int(slots)) for n, slots in enumerate(tables.slots)]


def random_placement(tables: CostTables, rng: np.random.Generator) -> Placement:
    places = rng.permutation(np.repeat(np.arange(tables.num_nodes), tables.slots))
    cells = places[: tables.pipeline * tables.data].reshape(tables.pipeline, tables.data)
    return tuple(tuple(int(node) for node in row) for row in cells)


def hops_of_replicas(tables: CostTables, placement: Placement) -> list[tuple[Array, Array]]:
    """Per replica [V-1] forward and backward."""
    each = [hop_times(tables, placement, j) for j in range(tables.num_virtual_stages - 1)]
    return [
        (np.array([forward[r] for forward, _ in each]), np.array([backward[r] for _, backward in each]))
        for r in range(tables.data)
    ]


def has(hops: tuple[Array, Array], lane: Lane) -> bool:
    return bool(np.all(hops[0] >= lane.forward_s - SLACK) and np.all(hops[1] >= lane.backward_s - SLACK))


def held_by(tables: CostTables, placement: Placement, node: int) -> IntArray:
    return np.array([stage.count(node) for stage in placement], dtype=np.int64)


def test_some_replica_has_every_lane() -> None:
    found = 0
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        tables = random_tables(rng, SHAPES[seed % len(SHAPES)])
        tables = (long_hops, slow_node, busy_cards)[seed % 3](tables, rng)
        links = GroupLinks(tables, alone(tables))
        for _ in range(PLACEMENTS):
            placement = random_placement(tables, rng)
            hops = hops_of_replicas(tables, placement)
            for node in range(tables.num_nodes):
                held = held_by(tables, placement, node)
                contents = Contents(held[None].astype(np.int16), tables.data, int(tables.slots[node]))
                runs = Runs(tables, links, node, contents)
                lanes = runs.lanes(held)
                found += sum(one[0].forward_s.max() > runs.floor_s for one in lanes)
                for alternatives in lanes:
                    assert any(has(one, lane) for one in hops for lane in alternatives), (seed, node)
                check_lift(tables, runs, contents, hops, rng)
    assert found > SEEDS  # lanes say something


def check_lift(
    tables: CostTables,
    runs: Runs,
    contents: Contents,
    hops: list[tuple[Array, Array]],
    rng: np.random.Generator,
) -> None:
    """At any prices some replica pays the lift."""
    prices = [rng.random(tables.num_virtual_stages - 1) for _ in range(2)]
    lift = float(runs.lift(contents, *prices)[0])
    paid = max(
        float(prices[0] @ (forward - runs.floor_s) + prices[1] @ (backward - runs.floor_s))
        for forward, backward in hops
    )
    assert lift <= paid + SLACK


def test_a_run_pays_for_coming_in_and_for_leaving() -> None:
    tables = random_tables(np.random.default_rng(0), (4, 2, 1, 3, (3, 3, 2)))
    runs = Runs(tables, GroupLinks(tables, alone(tables)), 2, node_contents(tables, 2))

    def longer(lane: Lane) -> list[int]:
        return np.flatnonzero(lane.forward_s > runs.floor_s).tolist()

    # both cells of a stage: in and out, sharing the card
    ((both,),) = runs.lanes(np.array([0, 2, 0, 0]))
    assert longer(both) == [0, 1]
    # one cell each of two stages: one run, or two of one cell
    ends = [sorted(longer(lane) for lane in lanes) for lanes in runs.lanes(np.array([0, 1, 1, 0]))]
    assert sorted(ends) == [[[0, 1], [0, 2]], [[0, 2], [1, 2]]]
    one = runs.lanes(np.array([0, 1, 0, 1]))[0][0]
    assert both.forward_s[0] >= one.forward_s[0]
    # the pipeline's own ends cost nothing
    assert [longer(lane) for lanes in runs.lanes(np.array([2, 0, 0, 0])) for lane in lanes] == [[0]]


def best_case_is_kept(tables: CostTables, best: Optimum, ceiling: float) -> int:
    """Whether what the best plan holds is one of the cases; returns how many contents are left out."""
    tables = in_unit(tables, best.simulated_s)
    groups = alone(tables)
    kept = tightened_layers(tables, ceiling)
    assert kept is not None
    layers = np.array(best.layers)
    branch = next(one for one in busiest_branches(tables, *kept) if within(layers, one.low, one.high))
    listed = {group.slots: node_contents(tables, group.slots) for group in groups}
    cuts = interval_cuts(tables)

    def ask(model: CardModel) -> tuple[float, Solved]:
        solved = model.relax(time_limit_s=LIMIT_S)
        return (ceiling if solved.infeasible else min(ceiling, solved.bound)), solved

    lone = LoneNodes(tables, groups, listed, ceiling, ask, np.inf)
    model = CardModel(tables, ceiling, branch.low, branch.high, lone.cards)
    relaxed(model, cuts, branch)
    useful = [np.ones(len(listed[group.slots]), dtype=bool) for group in groups]
    cases, left = lone.cases(model, useful)
    held = [held_by(tables, best.placement, node) for node in range(tables.num_nodes)]
    positions = [
        int(np.flatnonzero((listed[group.slots].held == one).all(axis=1))[0])
        for group, one in zip(groups, held, strict=True)
    ]
    assert all(left[g][position] for g, position in enumerate(positions))
    those = [case for case in cases if all(positions[one.group] == one.position for one in case.held)]
    assert len(those) == 1
    assert those[0].bound_s <= 1.0 + 1e-6
    return sum(int((~mask).sum()) for mask in left)


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_the_best_plan_is_one_of_the_cases(first: int) -> None:
    out = 0
    for seed in range(first, first + 30):
        rng = np.random.default_rng(seed)
        tables = varied_tables(rng)
        if seed % 3 == 1:
            tables = long_rings(slow_node(tables, rng), rng)
        elif seed % 15 == 2:  # runs with several ends
            tables = long_hops(random_tables(rng, SHAPES[0]), rng)
        best = exhaustive(tables)
        if best is not None:
            out += best_case_is_kept(tables, best, 1.001)
    assert out > 0
