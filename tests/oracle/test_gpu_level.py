"""Placement of tensor groups on the GPUs of nodes that are wired as meshes, against enumeration of ranks."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.gpu_placement import gpu_placement_durations
from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import branch_and_bound, solve
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.exhaustive import candidate_count, candidates, layer_splits
from pipette_milp.verify import verify
from tests.oracle.mesh_instances import all_rank_orders, mesh_instance

SAME = 1e-9
RANK_SEEDS = range(8)
SEEDS = {"branch-and-bound": (0, 3, 5, 7), "auto": (8, 11)}
SLOW_SEEDS = range(300)
LIMIT_S = 600.0
"""Far above what any needs: nothing here is about speed."""


def families(instance: Instance, most: int) -> list[CostTables]:
    """Those with GPUs to choose and few enough plans."""
    found = enumerate_space(CostModel.of(instance)).families
    return [t for t in found if t.gpu_level is not None and candidate_count(t) <= most]


def check_arrangements(seed: int) -> int:
    """Dominated arrangements left out change nothing: the best plan is that of all assignments of ranks."""
    checked = 0
    for tables in families(mesh_instance(seed), 400)[:3]:
        evaluator = Evaluator(tables)
        splits = [layers for layers in layer_splits(tables) if evaluator.fits(layers)]
        if not splits or tables.pipeline * tables.data * tables.tensor > 4:
            continue
        kept = min(evaluator.simulated_s(candidate) for candidate in candidates(evaluator))
        every = min(
            evaluator.simulated_s(Candidate(layers, nodes, gpus))
            for layers in splits
            for nodes, gpus in all_rank_orders(tables)
        )
        assert kept == pytest.approx(every, rel=SAME)
        checked += 1
    return checked


def test_no_assignment_of_ranks_beats_the_arrangements_kept() -> None:
    assert sum(check_arrangements(seed) for seed in RANK_SEEDS) > 5


def test_nodes_alone_are_the_best_case() -> None:
    """Every duration by nodes is at most that by GPUs."""
    rng = np.random.default_rng(0)
    checked = 0
    for seed in range(30):
        for tables in families(mesh_instance(seed), 20_000)[:4]:
            evaluator = Evaluator(tables)
            for candidate in list(candidates(evaluator))[:: int(rng.integers(7, 23))][:5]:
                best = placement_durations(tables, candidate.layers, candidate.node_of_cell)
                assert candidate.gpus_of_cell is not None
                own = gpu_placement_durations(
                    tables, candidate.layers, candidate.node_of_cell, candidate.gpus_of_cell
                )
                for name in ("forward_s", "backward_s", "hop_forward_s", "hop_backward_s", "gradient_sync_s"):
                    assert np.all(getattr(best, name) <= getattr(own, name) * (1 + SAME)), name
                assert np.all(best.parameter_gather_s <= own.parameter_gather_s * (1 + SAME))
                assert best.embedding_sync_s <= own.embedding_sync_s * (1 + SAME)
                checked += 1
    assert checked > 50


@cache
def oracle(seed: int) -> tuple[Instance, SolveResult]:
    instance = mesh_instance(seed)
    return instance, solve(instance, solver="exhaustive", gap=0.0, threads=1, time_limit_s=LIMIT_S)


def check_solver(seed: int, solver: str) -> None:
    instance, best = oracle(seed)
    result = solve(instance, solver=solver, gap=0.0, threads=1, time_limit_s=LIMIT_S)
    assert result.termination == best.termination, result.warnings
    assert verify(instance, SolveResult.from_json(result.to_json())).failed == ()
    if best.plan is None or best.simulated_s is None:
        assert result.termination == Termination.INFEASIBLE
        return
    assert result.plan is not None
    assert result.simulated_s is not None
    assert result.lower_bound_s is not None
    batches = [r.plan.configuration.global_batch_size for r in (best, result) if r.plan is not None]
    best_s = best.simulated_s / batches[0]
    assert result.simulated_s / batches[1] == pytest.approx(best_s, rel=1e-6)
    assert result.lower_bound_s / batches[1] <= best_s * (1 + SAME)
    for known, record in zip(best.configurations, result.configurations, strict=True):
        if known.best_s is not None and record.lower_bound_s is not None:
            assert record.lower_bound_s <= known.best_s * (1 + SAME), record.configuration


@pytest.mark.parametrize(("solver", "seed"), [(solver, seed) for solver in SEEDS for seed in SEEDS[solver]])
def test_solvers_find_the_optimum_of_enumeration(solver: str, seed: int) -> None:
    check_solver(seed, solver)


def test_a_question_that_its_time_limit_ended_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an enumeration was cut short at every depth; the search gave up with time left."""
    monkeypatch.setattr(branch_and_bound, "DEPTH_LIMITS_S", (1e-3,) * len(branch_and_bound.DEPTH_LIMITS_S))
    instance, best = oracle(39)
    result = solve(instance, solver="branch-and-bound", gap=0.0, threads=1, time_limit_s=LIMIT_S)
    assert result.termination == best.termination == Termination.OPTIMAL


@pytest.mark.slow
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_solvers_find_the_optimum_of_enumeration_on_many(seed: int) -> None:
    check_solver(seed, "branch-and-bound")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 150))
def test_no_assignment_of_ranks_beats_the_arrangements_kept_on_many(seed: int) -> None:
    check_arrangements(seed)


def test_the_instances_cover_what_they_should() -> None:
    instances = [mesh_instance(seed) for seed in range(30)]
    found = [tables for instance in instances for tables in families(instance, 20_000)]
    assert any(len(t.gpu_level.group_bytes_per_s) > 1 for t in found if t.gpu_level is not None)
    assert any(t.tensor == 2 and t.pipeline > 1 and t.data > 1 for t in found)
    assert any(not instance.search.use_all_gpus for instance in instances)
    assert any(
        t.pipeline * t.data * t.tensor < sum(t.gpu_level.wiring(n).gpus for n in range(t.num_nodes))
        for t in found
        if t.gpu_level
    )
    assert any(instance.cluster.exclude.gpus for instance in instances)
    assert any(t.embedding_bytes > 0 and t.pipeline > 1 for t in found)
