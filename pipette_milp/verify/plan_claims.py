"""Claims about plans: legal, within memory, and everything that follows from them recomputed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import BaseModel

from pipette_milp.assessment import Assessment, assess
from pipette_milp.certificates.proof import family_key
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import PlanError
from pipette_milp.legality import illegalities
from pipette_milp.plans import cells_of_plan, default_cells
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.schema.result import RankedPlan, SolveResult
from pipette_milp.search_space import SearchSpace
from pipette_milp.verify.claims import TOLERANCE, Claim, close, differences, judged
from pipette_milp.verify.families import per_sequence_s

PARTS = ("durations", "order", "critical_path", "breakdown", "throughput", "memory", "uncertainty")
"""What a result says about a plan besides its time; left out means not claimed."""
ACCOUNTS = ("critical_path", "breakdown")
"""Shares of the iteration: their entries are differences of large numbers, so rounding counts against it."""


def plan_claims(costs: CostModel, space: SearchSpace, result: SolveResult) -> Iterator[Claim]:
    """The best plan, the next best, the baseline and the default rank order."""
    families = {family_key(tables.configuration): tables for tables in space.families}
    links = "measured" if costs.cluster.measured else "nominal"
    yield judged("links", differences(result.links, links))
    if result.plan is not None:
        yield from _best_plan_claims(costs, families, result.plan, result)
    for index, ranked in enumerate(result.plans):
        yield _ranked_claim(costs, families, ranked, f"plans[{index}]")
    if result.plans:
        yield judged("plans: best first, diverse, marked where indistinguishable", _ranking_faults(result))
    if result.baseline is not None:
        yield judged("baseline", _baseline_faults(costs, result))


def plan_faults(costs: CostModel, families: dict[str, CostTables], plan: Plan) -> list[str]:
    """What makes a plan malformed, illegal, or no member of the search space."""
    faults = [str(problem) for problem in illegalities(costs, plan.configuration)]
    if faults:
        return faults
    try:
        cells_of_plan(costs.cluster, plan)
    except PlanError as error:
        return [str(problem) for problem in error.problems]
    tables = families.get(family_key(plan.configuration))
    if tables is None:
        return ["the instance's search space has no such configuration"]
    layers = np.array(plan.configuration.layers_per_stage)
    if np.any(layers < tables.min_layers) or np.any(layers > tables.max_layers):
        return ["its layer split is outside of what search and memory allow"]
    return []


def memory_faults(assessment: Assessment) -> list[str]:
    """Stages that need more than is usable."""
    return [
        f"stage {index} needs {stage.peak_bytes:.6g} bytes per GPU, {stage.usable_bytes:.6g} are usable"
        for index, stage in enumerate(assessment.memory.per_stage)
        if stage.peak_bytes > stage.usable_bytes * (1 + TOLERANCE)
    ]


def _best_plan_claims(
    costs: CostModel, families: dict[str, CostTables], plan: Plan, result: SolveResult
) -> Iterator[Claim]:
    faults = plan_faults(costs, families, plan)
    yield judged("plan: well formed, legal, in the search space", faults)
    if faults:
        return
    found = assess(costs, plan.configuration, plan.placement)
    yield judged("plan: every stage within usable memory", memory_faults(found))
    yield judged("simulated_s", differences(result.simulated_s, found.simulated_s))
    for name in PARTS:
        if getattr(result, name) is not None:
            yield judged(name, _part_faults(getattr(result, name), name, found))
    default = _default_order_s(costs, plan.configuration)
    yield judged("default_order_s", differences(result.default_order_s, default))


def _ranked_claim(costs: CostModel, families: dict[str, CostTables], ranked: RankedPlan, name: str) -> Claim:
    plan = Plan(configuration=ranked.configuration, placement=ranked.placement)
    faults = plan_faults(costs, families, plan)
    if faults:
        return judged(name, faults)
    found = assess(costs, plan.configuration, plan.placement)
    faults = memory_faults(found)
    faults += differences(ranked.simulated_s, found.simulated_s, place="simulated_s")
    for part in PARTS:
        if getattr(ranked, part) is not None:
            faults += _part_faults(getattr(ranked, part), part, found)
    if ranked.lower_bound_s is not None and ranked.lower_bound_s > found.simulated_s * (1 + TOLERANCE):
        faults.append(f"lower_bound_s {ranked.lower_bound_s!r} is above its time {found.simulated_s!r}")
    return judged(name, faults)


def _part_faults(claimed: Any, name: str, found: Assessment) -> list[str]:
    absolute = TOLERANCE * found.simulated_s if name in ACCOUNTS else 0.0
    return differences(_plain(claimed), _plain(getattr(found, name)), absolute=absolute, place=name)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _ranking_faults(result: SolveResult) -> Iterator[str]:
    times = [per_sequence_s(ranked.simulated_s, ranked.configuration) for ranked in result.plans]
    for index, (before, after) in enumerate(itertools.pairwise(times)):
        if after < before * (1 - TOLERANCE):
            yield f"plans[{index + 1}] is faster than plans[{index}]"
    if result.plan is not None and result.simulated_s is not None:
        first = result.plans[0]
        if Plan(configuration=first.configuration, placement=first.placement) != result.plan:
            yield "plans[0] is another plan than plan"
    degrees = [
        (c.pipeline, c.virtual_stages, c.tensor, c.data)
        for c in (ranked.configuration for ranked in result.plans)
    ]
    if len(set(degrees)) < len(degrees):
        yield "two of them have the same degrees"
    error = result.settings.get("model_error")
    if not isinstance(error, int | float):
        if any(ranked.indistinguishable for ranked in result.plans):
            yield "some are marked indistinguishable without settings.model_error"
        return
    for index, ranked in enumerate(result.plans):
        ratio = times[index] / times[0] - 1
        if not close(ratio, error) and ranked.indistinguishable != (index > 0 and ratio < error):
            yield f"plans[{index}].indistinguishable is {str(ranked.indistinguishable).lower()}"


def _baseline_faults(costs: CostModel, result: SolveResult) -> list[str]:
    baseline = result.baseline
    if baseline is None:
        return []
    configuration = baseline.configuration
    faults = [str(problem) for problem in illegalities(costs, configuration)]
    if faults:
        return faults
    where = (
        baseline.placement if baseline.placement is not None else default_cells(costs.cluster, configuration)
    )
    if where is None:
        return ["its tensor groups cross nodes in the default rank order"]
    try:
        found = assess(costs, configuration, where)
    except PlanError as error:
        return [str(problem) for problem in error.problems]
    return [
        *differences(baseline.simulated_s, found.simulated_s, place="simulated_s"),
        *differences(baseline.fits, found.fits, place="fits"),
    ]


def _default_order_s(costs: CostModel, configuration: Configuration) -> float | None:
    cells = default_cells(costs.cluster, configuration)
    return None if cells is None else assess(costs, configuration, cells).simulated_s
