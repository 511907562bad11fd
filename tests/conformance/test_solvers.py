"""What every registered solver must keep."""

from __future__ import annotations

import time
from functools import cache

import pytest

from pipette_milp.baselines import BASELINES
from pipette_milp.calibration.parameters import with_values
from pipette_milp.errors import InputError
from pipette_milp.schema.constants import default_constants
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.solvers import SOLVERS, solve
from pipette_milp.verify import verify
from tests.conftest import INSTANCES
from tests.instance_cases import instance

PUBLISHED = tuple(BASELINES)
HEURISTICS = ("greedy", "local-search", "annealing", *PUBLISHED)
EXACT = tuple(name for name in SOLVERS if name not in HEURISTICS)
ALL = (*EXACT, *HEURISTICS)
LIMITED = tuple(
    name for name in SOLVERS if name != "exhaustive" and (name not in PUBLISHED or name == "pipette")
)
"""Solvers that take an instance of any size, and of the published methods the one that searches."""
SHORT_S = 4.0
MUCH_S = 120.0
"""A time limit that no test here comes near."""


@cache
def tiny() -> Instance:
    """With a host that needs no time: else every layer lasts as long as the host needs to issue it, whatever
    its size."""
    found = load_instance(INSTANCES / "tiny-3x1-a100-flat.json")
    names = [f"frameworks.{profile}.launch_s" for profile in default_constants().frameworks]
    constants = with_values(default_constants(), names, [0.0] * len(names))
    return found.model_copy(update={"compute": found.compute.model_copy(update={"constants": constants})})


@cache
def full_size() -> Instance:
    return load_instance(INSTANCES / "gpt-8.1b-16x8-a100-flat.json")


@cache
def best_s() -> float:
    """The optimum of the tiny instance."""
    result = solve(tiny(), solver="exhaustive", gap=0.0, threads=1, time_limit_s=MUCH_S)
    assert result.termination == Termination.OPTIMAL
    assert result.simulated_s is not None
    return result.simulated_s


@cache
def run(name: str, iterations: int | None = None, seed: int = 0) -> SolveResult:
    """A solver on the tiny instance; the listener's events are those of the result's trace."""
    return solve(
        tiny(), solver=name, gap=0.01, threads=1, seed=seed, iteration_limit=iterations, time_limit_s=MUCH_S
    )


def test_every_solver_is_tested_here() -> None:
    assert {name.partition(":")[0] for name in ALL} == set(SOLVERS)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_method_finds_a_plan_that_fits(name: str) -> None:
    result = run(name, 40)
    assert verify(tiny(), SolveResult.from_json(result.to_json())).failed == ()
    assert result.solver == name
    assert result.simulated_s is not None
    assert best_s() * (1 - 1e-9) <= result.simulated_s


@pytest.mark.parametrize("name", [name for name in ALL if name not in PUBLISHED])
def test_finds_a_good_plan(name: str) -> None:
    result = run(name, None if name in EXACT else 40)
    assert verify(tiny(), SolveResult.from_json(result.to_json())).failed == ()
    assert result.solver == name
    assert result.simulated_s is not None
    assert best_s() * (1 - 1e-9) <= result.simulated_s <= 1.05 * best_s()


@pytest.mark.parametrize("name", EXACT)
def test_proves_its_gap(name: str) -> None:
    result = run(name)
    assert result.termination in (Termination.OPTIMAL, Termination.GAP_REACHED)
    assert result.lower_bound_s is not None
    assert result.simulated_s is not None
    assert 0.99 * result.simulated_s <= result.lower_bound_s * (1 + 1e-9)
    assert result.lower_bound_s <= best_s() * (1 + 1e-9)


@pytest.mark.parametrize("name", HEURISTICS)
def test_a_heuristic_states_no_bound(name: str) -> None:
    result = run(name, 40)
    assert result.lower_bound_s is None
    assert all(point.bound_s is None for point in result.trace)
    assert all(record.lower_bound_s is None for record in result.configurations)
    assert result.termination == Termination.LIMIT


@pytest.mark.parametrize("name", ALL)
def test_bound_never_falls_and_incumbent_never_rises(name: str) -> None:
    trace = run(name, None if name in EXACT else 40).trace
    bounds = [point.bound_s for point in trace if point.bound_s is not None]
    incumbents = [point.incumbent_s for point in trace if point.incumbent_s is not None]
    times = [point.time_s for point in trace]
    assert incumbents
    assert bounds == sorted(bounds)
    assert incumbents == sorted(incumbents, reverse=True)
    assert times == sorted(times)


@pytest.mark.parametrize("name", ALL)
def test_iteration_limit(name: str) -> None:
    """One iteration proves no optimum here, and fewer iterations never give a better plan."""
    few, many = run(name, 1), run(name, 20)
    assert few.termination in (Termination.LIMIT, Termination.NO_PLAN_FOUND, Termination.GAP_REACHED)
    assert few.settings["iteration_limit"] == 1
    if few.simulated_s is not None:
        assert many.simulated_s is not None
        assert many.simulated_s <= few.simulated_s
    if few.lower_bound_s is not None:
        assert few.lower_bound_s <= best_s() * (1 + 1e-9)


@pytest.mark.parametrize("name", LIMITED)
def test_time_limit(name: str) -> None:
    """Within 5 % and 2 s, the time to build the search space included."""
    full_size()
    start = time.monotonic()
    result = solve(full_size(), solver=name, gap=0.0, threads=1, time_limit_s=SHORT_S)
    assert time.monotonic() - start <= 1.05 * SHORT_S + 2.0
    assert result.termination == Termination.LIMIT
    assert result.plan is not None


@pytest.mark.parametrize("name", HEURISTICS)
def test_same_seed_same_plan(name: str) -> None:
    first = run(name, 30, seed=7)
    again = solve(tiny(), solver=name, gap=0.01, threads=1, seed=7, iteration_limit=30, time_limit_s=MUCH_S)
    assert again.plan == first.plan
    assert again.simulated_s == first.simulated_s


@pytest.mark.parametrize("name", ALL)
def test_infeasible_for_memory(name: str) -> None:
    small = instance({"cluster/gpu_types/gpu/memory": "2 GiB"})
    result = solve(small, solver=name, threads=1, time_limit_s=MUCH_S)
    assert result.termination == Termination.INFEASIBLE
    assert result.plan is None
    assert "GiB" in result.warnings[0]
    assert "memory" in result.warnings[0].lower()


@pytest.mark.parametrize("name", ALL)
def test_infeasible_for_the_batch(name: str) -> None:
    odd = instance(training={"global_batch_size": 3}, search={"fix": {"data": 2}})
    result = solve(odd, solver=name, threads=1, time_limit_s=MUCH_S)
    assert result.termination == Termination.INFEASIBLE
    assert "batch" in result.warnings[0]


@pytest.mark.parametrize(
    "name", ["simplex", "", "greedy:fast", "exhaustive:all", "annealing:slow", "amp:new", "pipette:new"]
)
def test_unknown_solver(name: str) -> None:
    with pytest.raises(InputError, match="there is no solver"):
        solve(tiny(), solver=name)


def test_enumeration_of_a_large_instance_is_refused() -> None:
    with pytest.raises(InputError, match="exhaustive would evaluate"):
        solve(full_size(), solver="exhaustive", threads=1)
