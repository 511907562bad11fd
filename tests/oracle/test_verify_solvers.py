"""What every solver says about the shipped tiny instances is accepted by `verify`."""

from __future__ import annotations

import pytest

from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.solvers import SOLVERS, solve
from pipette_milp.verify import verify
from tests.conftest import INSTANCES

TINY = "tiny-3x1-a100-flat"
ITERATIONS = 20


@pytest.mark.parametrize("solver", SOLVERS)
def test_results_of_every_solver_are_accepted(solver: str) -> None:
    instance = load_instance(INSTANCES / f"{TINY}.json")
    result = solve(instance, solver=solver, threads=1, iteration_limit=ITERATIONS, time_limit_s=60.0)
    report = verify(instance, SolveResult.from_json(result.to_json()))
    assert report.failed == ()


@pytest.mark.parametrize("name", sorted(path.stem for path in INSTANCES.glob("tiny-*.json")))
def test_results_on_every_tiny_instance_are_accepted(name: str) -> None:
    instance = load_instance(INSTANCES / f"{name}.json")
    result = solve(instance, threads=1, iteration_limit=ITERATIONS, time_limit_s=60.0)
    report = verify(instance, SolveResult.from_json(result.to_json()))
    assert report.failed == ()
    assert result.plan is not None
