"""All exact solvers from instance to result: one best time, bounds below it, results that verify accepts.

Times are compared per sequence, because instances may leave the global batch open.
"""

from __future__ import annotations

from functools import cache

import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.schema.instance import Instance, parse_instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from pipette_milp.verify import verify
from tests.oracle.random_instances import random_instance

SAME = 1e-6
"""Relative difference of simulated times that count as equal."""
ROUNDING = 1e-9
SEEDS = {"branch-and-bound": range(8), "joint-cpsat": range(8, 20), "joint-milp": range(20, 32)}
SEEN = range(32)
SLOW_SEEDS = range(100, 200)
EXACT = tuple(SEEDS)
LIMIT_S = 120.0
BOUND_ABOVE_CUTS = 150
"""An instance whose known bound is above all cuts of the model at its best plan: the bound is a row too."""
UPLINK_SEEDS = (204, 209)


@cache
def oracle(seed: int) -> tuple[Instance, SolveResult]:
    """A random instance and what enumeration says."""
    instance = random_instance(seed)
    return instance, solve(instance, solver="exhaustive", gap=0.0, threads=1, time_limit_s=LIMIT_S)


def per_sequence_s(result: SolveResult) -> float:
    assert result.plan is not None
    assert result.simulated_s is not None
    return result.simulated_s / result.plan.configuration.global_batch_size


def check(seed: int, solver: str) -> None:
    """One solver on one instance."""
    instance, best = oracle(seed)
    result = solve(instance, solver=solver, gap=0.0, threads=1, time_limit_s=LIMIT_S)
    assert result.termination == best.termination, result.warnings
    assert verify(instance, SolveResult.from_json(result.to_json())).failed == ()
    if best.plan is None:
        assert result.termination == Termination.INFEASIBLE
        return
    assert result.termination == Termination.OPTIMAL
    best_s = per_sequence_s(best)
    assert per_sequence_s(result) == pytest.approx(best_s, rel=SAME)
    assert result.plan is not None
    batch = result.plan.configuration.global_batch_size
    assert result.lower_bound_s is not None
    assert result.lower_bound_s / batch <= best_s * (1 + ROUNDING)
    bounds = [point.bound_s for point in result.trace if point.bound_s is not None]
    assert max(bounds) / batch <= best_s * (1 + ROUNDING)
    if result.claimed_s is not None and result.simulated_s is not None:
        assert result.claimed_s <= result.simulated_s * (1 + SAME), "not in the plan's own seconds"
    _check_families(best, result)


def _check_families(best: SolveResult, result: SolveResult) -> None:
    """Bounds of single configurations do not exceed what enumeration found for them."""
    for known, record in zip(best.configurations, result.configurations, strict=True):
        if known.best_s is not None and record.lower_bound_s is not None:
            assert record.lower_bound_s <= known.best_s * (1 + ROUNDING), record.configuration


@pytest.mark.parametrize(("solver", "seed"), [(solver, seed) for solver in SEEDS for seed in SEEDS[solver]])
def test_solvers_agree(solver: str, seed: int) -> None:
    check(seed, solver)


@pytest.mark.parametrize("solver", ["joint-cpsat", "joint-milp"])
def test_a_claim_that_rests_on_a_known_bound(solver: str) -> None:
    check(BOUND_ABOVE_CUTS, solver)


@pytest.mark.slow
@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("seed", SLOW_SEEDS)
def test_solvers_agree_on_many(solver: str, seed: int) -> None:
    check(seed, solver)


@pytest.mark.slow
@pytest.mark.parametrize("solver", EXACT)
@pytest.mark.parametrize("seed", UPLINK_SEEDS)
def test_solvers_agree_with_uplinks(solver: str, seed: int) -> None:
    """Half of the nodes behind a narrow way out each; bounds leave it out, exact models count it."""
    data = random_instance(seed).model_dump(mode="json")
    names = [node["name"] for node in data["cluster"]["nodes"]]
    half = len(names) // 2
    data["cluster"]["network"]["uplinks"] = [
        {"name": name, "nodes": nodes, "bandwidth": 3e9}
        for name, nodes in (("a", names[:half]), ("b", names[half:]))
    ]
    instance = parse_instance(data)
    best = solve(instance, solver="exhaustive", gap=0.0, threads=1, time_limit_s=LIMIT_S)
    result = solve(instance, solver=solver, gap=0.0, threads=1, time_limit_s=LIMIT_S)
    assert verify(instance, SolveResult.from_json(result.to_json())).failed == ()
    assert result.termination == best.termination == Termination.OPTIMAL, result.warnings
    assert per_sequence_s(result) == pytest.approx(per_sequence_s(best), rel=SAME)


def test_results_of_enumeration_are_accepted() -> None:
    for seed in SEEN:
        instance, best = oracle(seed)
        assert verify(instance, SolveResult.from_json(best.to_json())).failed == ()


def test_the_instances_cover_what_they_should() -> None:
    """Each feature appears among the instances of the normal run, with a plan."""
    instances = [oracle(seed) for seed in SEEN]
    spaces = [enumerate_space(CostModel.of(instance)) for instance, _ in instances]
    families = [tables for space in spaces for tables in space.families]
    reasons = [refusal.memory_short_bytes for space in spaces for refusal in space.refusals]
    assert {t.configuration.pipeline_transfers for t in families} == {"exchange", "async"}
    assert {"1f1b", "gpipe", "zb-h1"} <= {t.configuration.schedule for t in families}
    assert any(t.num_virtual_stages > t.pipeline for t in families)
    assert any(t.pipeline > 1 and t.data > 1 for t in families)
    assert any(t.slots.max() >= 2 and t.num_nodes > 1 for t in families)
    assert any(t.embedding_bytes > 0 for t in families)
    assert any(t.sync_buckets > 1 for t in families)
    assert any(t.gather.bytes_per_layer > 0 for t in families)
    assert any(short for short in reasons), "memory refuses nothing"
    assert any(len(i.training.global_batch_size) > 1 for i, _ in instances)
    assert any(not i.search.use_all_gpus for i, _ in instances)
    assert any(i.cluster.exclude.gpus or i.cluster.exclude.nodes for i, _ in instances)
    terminations = {best.termination for _, best in instances}
    assert terminations == {Termination.OPTIMAL, Termination.INFEASIBLE}
