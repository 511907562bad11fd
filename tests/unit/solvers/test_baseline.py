"""What runs today is judged by the rules and the simulator that judge plans."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.estimate import estimate, simulate_plan
from pipette_milp.schema.plan import Placement, Plan
from pipette_milp.solvers import solve
from tests.instance_cases import configuration, instance

FEW = {"search": {"micro_batch": 4, "tensor": 2}}
TODAY = configuration((5, 1), data=2, num_micro_batches=8)


def test_a_configuration_runs_in_default_rank_order() -> None:
    result = solve(instance(**FEW), solver="exhaustive", threads=1, baseline=TODAY)
    assert result.baseline is not None
    assert result.baseline.configuration == TODAY
    assert result.baseline.simulated_s == estimate(instance(**FEW), TODAY)["simulated_s"]
    assert result.baseline.fits


def test_a_plan_runs_where_it_says_and_need_not_fit() -> None:
    small = instance({"cluster/gpu_types/gpu/memory": "3.9 GiB"}, **FEW)
    plan = Plan(configuration=TODAY, placement=Placement(gpu_of_rank=(0, 2, 1, 3)))
    result = solve(small, solver="exhaustive", threads=1, baseline=plan)
    assert result.baseline is not None
    assert result.baseline.simulated_s == simulate_plan(small, plan)["simulated_s"]
    assert not result.baseline.fits


@pytest.mark.parametrize("fields", [{"layers": (5, 2)}, {"layers": (5, 1), "num_micro_batches": 7}])
def test_an_illegal_one_is_refused(fields: dict[str, Any]) -> None:
    wrong = configuration(**{"data": 2, "num_micro_batches": 8, **fields})
    with pytest.raises(IllegalConfigurationError):
        solve(instance(**FEW), solver="exhaustive", threads=1, baseline=wrong)
