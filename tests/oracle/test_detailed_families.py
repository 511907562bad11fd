"""Families with unlike layers, unlike GPUs or collectives inside tasks: bounds against enumeration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.schema.result import Termination
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.exhaustive import layer_splits, placements
from pipette_milp.solvers.family_bound import bound_family
from pipette_milp.solvers.greedy import starting_plan
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.layer_branches import floor_bound_s
from pipette_milp.solvers.local_search import local_search
from pipette_milp.verify import verify
from tests.detail_cases import mixture, two_types

ROUNDING = 1e-9
SMALL = {"layers": 4, "hidden_size": 512, "attention_heads": 8, "ffn_hidden_size": 2048, "vocab_size": 2000}
SLOW_LINKS = {"cluster/network/inter_node/bandwidth": "2 GB/s"}
BATCH = {"global_batch_size": 4}


def models() -> dict[str, CostModel]:
    """Small enough to enumerate, each with another reason for a detail."""
    every = {"data_sharding": ["none", "optimizer", "gradients", "parameters"], **BATCH}
    search: dict[str, Any] = {"micro_batch": [1]}
    return {
        "experts": mixture(
            model=SMALL, changes=SLOW_LINKS, training=BATCH, search={**search, "expert": [1, 2, 4]}
        ),
        "kinds": mixture(dense_first=2, model=SMALL, changes=SLOW_LINKS, training=BATCH, search=search),
        "types": two_types(SLOW_LINKS, model=SMALL, training=BATCH, search=search),
        "small gpus": two_types(
            {**SLOW_LINKS, "cluster/gpu_types/old/memory": "2.6 GiB"},
            model=SMALL,
            training={**BATCH, "precision": "bf16"},
            search=search,
        ),
        "sharded": mixture(model=SMALL, changes=SLOW_LINKS, training=every, search=search),
    }


def optimum_s(tables: CostTables) -> float:
    """Of all plans of a family, each evaluated in full."""
    evaluator, best = Evaluator(tables), np.inf
    for layers in layer_splits(tables):
        for cells in placements(tables):
            if evaluator.fits(layers, cells):
                best = min(best, evaluator.simulated_s(Candidate(layers, cells)))
    return float(best)


@pytest.mark.parametrize("name", list(models()))
def test_no_bound_exceeds_the_best_plan(name: str) -> None:
    """Floor, layer splits with best links, node contents in one group and in the groups of the links."""
    families = [tables for tables in enumerate_space(models()[name]).families if tables.detail is not None]
    assert families
    for tables in families[:: max(1, len(families) // 6)]:
        best_s = optimum_s(tables)
        assert floor_bound_s(tables) <= best_s * (1 + ROUNDING)
        ceiling_s = 3 * best_s if np.isfinite(best_s) else 1.0
        for groups in ([], one_group(tables), find_groups(tables)):
            bound = bound_family(Evaluator(tables), groups, ceiling_s, time_limit_s=5.0)
            assert min(bound.bound_s, ceiling_s) <= best_s * (1 + ROUNDING)


@pytest.mark.parametrize("name", list(models()))
def test_searches_stay_within_memory_and_reach_the_best_plan(name: str) -> None:
    families = [tables for tables in enumerate_space(models()[name]).families if tables.detail is not None]
    for tables in families[:: max(1, len(families) // 2)]:
        evaluator, best_s = Evaluator(tables), optimum_s(tables)
        start = starting_plan(evaluator)
        if start is None:
            assert not np.isfinite(best_s) or evaluator.memory_depends_on_placement
            continue
        assert evaluator.fits(start.layers, start.node_of_cell)
        time_s, found = local_search(evaluator, start, np.random.default_rng(1), iterations=120)
        assert evaluator.fits(found.layers, found.node_of_cell)
        assert time_s == evaluator.simulated_s(found)
        assert best_s * (1 - ROUNDING) <= time_s <= best_s * 1.25


def test_auto_answers_and_its_answer_verifies() -> None:
    instance = models()["types"].instance
    result = solve(instance, threads=1)
    assert result.termination == Termination.OPTIMAL
    assert verify(instance, result).failed == ()


@pytest.mark.parametrize("solver", ["joint-milp", "joint-cpsat"])
def test_the_joint_models_refuse_what_they_cannot_express(solver: str) -> None:
    with pytest.raises(InputError, match=rf"not supported by {solver}: .*several GPU types"):
        solve(models()["types"].instance, solver=solver)
