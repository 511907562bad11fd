"""The joint search: limits, statuses, and solvers that fail."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.cost.tables import CostTables
from pipette_milp.formulations.problem import ModelPlan
from pipette_milp.solvers import joint
from pipette_milp.solvers.joint import JointProgress, solve_joint
from pipette_milp.solvers.solver_call import SolveReport
from tests.oracle.tiny_tables import SHAPES, exhaustive, random_tables
from tests.unit.solvers.hard_tables import hard_tables

BACKENDS = ("milp", "cpsat")


def tables(seed: int = 16) -> CostTables:
    """Three stages by two replicas on three nodes, with room in memory."""
    return replace(random_tables(np.random.default_rng(seed), SHAPES[15]), memory_usable_bytes=1e3)


def optimum_s(family: CostTables) -> float:
    best = exhaustive(family)
    assert best is not None
    return best.simulated_s


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_split_fits_into_memory(backend: str) -> None:
    family = replace(tables(), memory_usable_bytes=0.5)
    outcome = solve_joint([family], backend=backend, in_process=True)  # type: ignore[arg-type]
    assert outcome.status == "INFEASIBLE"
    assert outcome.plan is None
    assert outcome.gap is None


def test_no_room_on_the_nodes() -> None:
    family = replace(tables(), slots=np.array([1, 1, 1]))
    assert solve_joint([family], in_process=True).status == "INFEASIBLE"


def tables_of_several_rounds() -> CostTables:
    """The first instance whose bound and simulation do not meet in one round."""
    for seed in range(30):
        family = tables(seed)
        if exhaustive(family) and len(solve_joint([family], backend="cpsat", in_process=True).rounds) >= 3:
            return family
    raise AssertionError("every instance closes at once")


def test_iteration_limit() -> None:
    family = tables_of_several_rounds()
    outcome = solve_joint([family], iteration_limit=1, in_process=True)
    assert outcome.status == "LIMIT"
    assert len(outcome.rounds) == 1
    assert outcome.simulated_s is not None
    assert outcome.lower_bound_s <= optimum_s(family) <= outcome.simulated_s
    none = solve_joint([family], iteration_limit=0, in_process=True)
    assert (none.status, len(none.rounds)) == ("LIMIT", 0)
    assert none.lower_bound_s > 0


def test_gap_that_is_good_enough() -> None:
    family = tables()
    outcome = solve_joint([family], gap=0.2, in_process=True)
    assert outcome.status in ("GAP_REACHED", "OPTIMAL")
    assert outcome.gap is not None
    assert outcome.gap <= 0.2 + 1e-5
    assert outcome.lower_bound_s <= optimum_s(family)


@pytest.mark.parametrize("backend", BACKENDS)
def test_cutoff_below_the_optimum_is_refuted_and_above_it_met(backend: str) -> None:
    family = tables()
    best_s = optimum_s(family)
    below = solve_joint([family], backend=backend, cutoff_s=0.99 * best_s, in_process=True)  # type: ignore[arg-type]
    assert below.lower_bound_s == pytest.approx(0.99 * best_s, rel=1e-5)
    assert below.family_bounds_s[0] <= best_s
    above = solve_joint([family], backend=backend, cutoff_s=1.01 * best_s, in_process=True)  # type: ignore[arg-type]
    assert above.simulated_s == pytest.approx(best_s, rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_incumbent_is_kept_or_beaten(backend: str) -> None:
    family = tables()
    best = exhaustive(family)
    assert best is not None
    start = ModelPlan(0, best.layers, best.placement)
    outcome = solve_joint([family], backend=backend, incumbent=start, in_process=True)  # type: ignore[arg-type]
    assert outcome.plan == start
    assert outcome.status == "OPTIMAL"


def test_bounds_of_the_caller_drop_families() -> None:
    """A family whose known bound reaches the incumbent never enters a model."""
    families = [tables(), tables(33)]
    best_s = optimum_s(families[0])
    outcome = solve_joint(families, bounds_s=[0.0, 10.0], in_process=True)
    assert outcome.simulated_s == pytest.approx(best_s, rel=1e-6) or optimum_s(families[1]) < best_s
    assert all(r.families == 1 for r in outcome.rounds)


def test_families_too_large_for_a_model_keep_their_own_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "MAX_ARCS", 10)
    family = tables()
    outcome = solve_joint([family], in_process=True)
    assert outcome.status == "LIMIT"
    assert 0 < outcome.lower_bound_s <= optimum_s(family)
    assert any("arcs" in message for message in outcome.messages)


def nonsense(problem: object, kind: str) -> SolveReport:
    family = tables()
    best = exhaustive(family)
    assert best is not None
    plan = ModelPlan(0, best.layers, best.placement)
    return {
        "raises": SolveReport("error", message="segmentation fault"),
        "claims too little": SolveReport("optimal", plan, 1e-3, 1e-3),
        "bound above its plan": SolveReport("optimal", plan, 10.0, 11.0),
        "bound and claim above its plan": SolveReport("optimal", plan, 10.0, 10.0),
        "no such node": SolveReport("optimal", ModelPlan(0, best.layers, ((0, 1), (7, 1), (2, 2))), 1.0, 1.0),
        "no such family": SolveReport("optimal", ModelPlan(3, best.layers, best.placement), 1.0, 1.0),
        "one node overfull": SolveReport("optimal", ModelPlan(0, best.layers, ((0, 0),) * 3), 1.0, 1.0),
        "too many layers": SolveReport("optimal", ModelPlan(0, (9, 9, 9), best.placement), 1.0, 1.0),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "raises",
        "claims too little",
        "bound above its plan",
        "bound and claim above its plan",
        "no such node",
        "no such family",
        "one node overfull",
        "too many layers",
    ],
)
def test_a_solver_that_fails_or_returns_nonsense(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Reported and survived: plan and bound are those from before the call."""
    monkeypatch.setattr(joint, "solve", lambda problem, options, listener: nonsense(problem, kind))
    family = tables()
    outcome = solve_joint([family], in_process=True)
    assert outcome.status == "ERROR"
    assert outcome.messages
    assert outcome.simulated_s is not None
    assert outcome.lower_bound_s <= optimum_s(family) * (1 + 1e-12) <= outcome.simulated_s * (1 + 1e-9)


def test_a_claim_that_a_gap_left_above_its_plan_is_not_held_against_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HiGHS may stop within the gap with its objective above what the plan needs."""
    family = tables()
    best = exhaustive(family)
    assert best is not None
    plan, low_s, high_s = ModelPlan(0, best.layers, best.placement), 1e-3, best.simulated_s * 1.01
    monkeypatch.setattr(joint, "solve", lambda *_: SolveReport("optimal", plan, high_s, low_s))
    outcome = solve_joint([family], in_process=True, gap=0.05, iteration_limit=1)
    assert outcome.status != "ERROR"
    assert outcome.simulated_s == pytest.approx(best.simulated_s)
    assert (outcome.claimed_s, outcome.recomputed_s) == (None, None)


def test_time_out_without_any_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "solve", lambda problem, options, listener: SolveReport("unknown"))
    monkeypatch.setattr(joint, "first_plan", lambda tables, family: None)
    outcome = solve_joint([tables()], iteration_limit=2, in_process=True)
    assert outcome.status == "NO_PLAN_FOUND"
    assert outcome.lower_bound_s > 0


def test_interrupt_keeps_plan_and_bound() -> None:
    def interrupt(progress: JointProgress) -> None:
        if progress.lower_bound_s > 0:
            raise KeyboardInterrupt

    outcome = solve_joint([tables()], listener=interrupt, in_process=True)
    assert outcome.status == "INTERRUPTED"
    assert outcome.plan is not None
    assert outcome.lower_bound_s > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_inside_a_solver_call(backend: str) -> None:
    began = time.monotonic()
    outcome = solve_joint(
        [hard_tables()],
        backend=backend,  # type: ignore[arg-type]
        stop=lambda: time.monotonic() - began > 4.0,
    )
    assert outcome.status == "INTERRUPTED"
    assert time.monotonic() - began < 4.0 + 2.0
    assert outcome.plan is not None
    assert outcome.simulated_s is not None
    assert 0 < outcome.lower_bound_s < outcome.simulated_s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": [1.0, 1.0]}, "scales"),
        ({"bounds_s": []}, "bounds"),
        ({"time_limit_s": -1.0}, "negative"),
        ({"incumbent": ModelPlan(1, (2, 2, 2), ((0, 0),) * 3)}, "incumbent"),
    ],
)
def test_wrong_arguments(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve_joint([tables()], **changes)


def test_no_families() -> None:
    with pytest.raises(ValueError, match="no families"):
        solve_joint([])


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_seed_same_rounds(backend: str) -> None:
    first, second = (solve_joint([tables()], backend=backend, seed=3, in_process=True) for _ in range(2))  # type: ignore[arg-type]
    assert first.plan == second.plan
    assert [r.claimed_s for r in first.rounds] == [r.claimed_s for r in second.rounds]
