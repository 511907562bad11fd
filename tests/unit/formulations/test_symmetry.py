"""What the symmetry rows leave out always has an equal that they keep."""

from __future__ import annotations

import numpy as np
import pytest
from ortools.sat.python import cp_model

from pipette_milp.cost.tables import CostTables
from pipette_milp.formulations import cpsat, milp
from pipette_milp.formulations.problem import JointProblem, ModelPlan
from pipette_milp.formulations.symmetry import canonical_placement, replica_symmetry
from pipette_milp.solvers.interval_cuts import interval_cuts
from tests.oracle.tiny_tables import SHAPES, evaluate_durations, layer_splits, random_tables, simulate_all

SEEDS = range(120)


def as_placement(nodes: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in row) for row in nodes)


def random_case(seed: int) -> tuple[CostTables, tuple[int, ...] | None, np.ndarray]:
    """Cost tables (uniform links in a third of the cases), a split and a random placement."""
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, SHAPES[seed % len(SHAPES)])
    places = np.repeat(np.arange(tables.num_nodes), tables.slots)
    nodes = rng.permutation(places)[: tables.pipeline * tables.data].reshape(tables.pipeline, tables.data)
    return tables, next(layer_splits(tables), None), nodes


def test_the_canonical_placement_takes_as_long() -> None:
    changed = 0
    for seed in SEEDS:
        tables, split, nodes = random_case(seed)
        if split is None:
            continue
        canonical = canonical_placement(tables, nodes)
        plans = [evaluate_durations(tables, split, as_placement(each)) for each in (nodes, canonical)]
        before, after = simulate_all(tables, plans)
        assert after == pytest.approx(before, rel=1e-12), (seed, replica_symmetry(tables))
        changed += not np.array_equal(nodes, canonical)
    assert changed > 20


def test_the_symmetry_rows_keep_it() -> None:
    """Checked with CP-SAT on a complete hint that is fixed: also the test that hints are solutions."""
    only = (
        "one_family",
        "cell_on_one_node",
        "node_slots",
        "layer_split",
        "replica_symmetry",
        "node_symmetry",
    )
    for seed in SEEDS:
        tables, split, nodes = random_case(seed)
        if split is None:
            continue
        start = ModelPlan(0, split, as_placement(nodes))
        built = cpsat.build(JointProblem((tables,), (1.0,), 1.0, start=start), only)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        solver.parameters.fix_variables_to_their_hinted_value = True
        assert solver.solve(built.model) == cp_model.OPTIMAL, seed


def test_a_start_satisfies_every_row_of_the_milp() -> None:
    from pyomo.contrib.appsi.solvers.highs import Highs

    for seed in range(0, 36, 2):
        tables, split, nodes = random_case(seed)
        if split is None:
            continue
        start = ModelPlan(0, split, as_placement(nodes))
        cuts = tuple(interval_cuts(tables))
        built = milp.build(JointProblem((tables,), (1.0,), 1.0, cuts, start=start))
        for variable in built.plan_variables():
            variable.fix(variable.value)
        solver = Highs()
        solver.config.load_solution = False
        assert solver.solve(built.model).best_feasible_objective is not None, seed
