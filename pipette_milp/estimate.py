"""One configuration or one plan, judged: what the commands ``estimate`` and ``simulate`` answer."""

from __future__ import annotations

from typing import Any

from pipette_milp.assessment import Assessment, assess
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.legality import check_legal
from pipette_milp.plans import default_cells
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan


def estimate(instance: Instance, configuration: Configuration) -> dict[str, Any]:
    """Time, throughput and memory of a configuration in the default rank order.

    A legal configuration that does not fit is no error: its ``fits`` is False.

    Raises:
        IllegalConfigurationError: it breaks a rule, or its default rank order would spread a tensor group
            over nodes.
        InputError: the instance has unmeasured links.
    """
    costs = CostModel.of(instance)
    check_legal(costs, configuration)
    cells = default_cells(costs.cluster, configuration)
    if cells is None:
        raise IllegalConfigurationError(
            Problem(
                "tensor",
                f"in the default rank order a tensor group of {configuration.tensor} crosses nodes, because "
                "their usable GPUs are no multiple of it: not supported yet; simulate takes a placement",
            )
        )
    return _answer(costs, assess(costs, configuration, cells))


def simulate_plan(instance: Instance, plan: Plan) -> dict[str, Any]:
    """The same for a plan with its own placement.

    Raises:
        IllegalConfigurationError: the configuration breaks a rule.
        PlanError: the placement is malformed.
        InputError: the instance has unmeasured links.
    """
    costs = CostModel.of(instance)
    check_legal(costs, plan.configuration)
    return _answer(costs, assess(costs, plan.configuration, plan.placement))


def _answer(costs: CostModel, judged: Assessment) -> dict[str, Any]:
    warnings = [*costs.instance.warnings, *costs.warnings([judged.configuration])]
    return {**judged.to_dict(), "warnings": warnings}
