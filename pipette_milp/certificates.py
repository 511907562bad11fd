"""Lower bounds of families derived again, the cheapest argument first.

A target is a time that every plan of a family is claimed to take at least. Three grounds can carry it:

arithmetic      `floor_bound_s`, or `tightened_layers`: within the target there is no room for all layers
linear program  `bound_family` without node groups: layer splits, best links, path cuts. HiGHS solves the LPs,
                so this ground trusts an LP solver, though not the search that claimed the bound
enumeration     all plans of a tiny family simulated

What none of them reaches is left to the word of the solver that claimed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.exhaustive import candidate_count, candidates
from pipette_milp.solvers.family_bound import bound_family, floor_bound_s, tightened_layers

NO_PLAN_S = 1e9
"""Target that stands for "there is no plan", seconds: longer than any iteration (30 years)."""
LINEAR_PROGRAM_TASKS = 20_000
"""Linear programs are tried, families with few tasks (virtual stages x micro-batches) first, up to this many
tasks together: 2 to 5 s on one core on the 16-node instances, where arithmetic leaves 60 to 266 of 845
families and this takes in all but 48 of them at worst."""
LINEAR_PROGRAM_LIMIT_S = 2.0
"""For one family; 10 times the slowest measured."""
ENUMERATED_PLANS = 5_000
"""Plans simulated in all, families with few plans first: about 1 s for tiny instances."""
ROUNDING = 1e-9
"""Relative. A bound that misses its target by this much reaches it."""


class Ground(StrEnum):
    """What carries a bound."""

    ARITHMETIC = "arithmetic"
    LINEAR_PROGRAM = "linear program (HiGHS)"
    ENUMERATION = "enumeration"
    NONE = "the solver's word"
    REFUTED = "refuted"
    """A plan of the family is faster than the target."""


@dataclass(frozen=True)
class Recheck:
    """One family's target, looked at again."""

    ground: Ground
    refuting_s: float | None = None
    """Time of the plan that refutes it."""


def recheck_bounds(
    families: list[CostTables],
    targets_s: list[float],
    *,
    linear_program_tasks: int = LINEAR_PROGRAM_TASKS,
    enumerated_plans: int = ENUMERATED_PLANS,
) -> list[Recheck]:
    """The ground on which each family's target stands.

    Args:
        targets_s: seconds of the family's own iteration; `NO_PLAN_S` claims that the family has no plan.
        linear_program_tasks, enumerated_plans: how much of the dearer grounds may be tried in all.
    """
    found = [
        Recheck(Ground.ARITHMETIC if reached_by_arithmetic(tables, target) else Ground.NONE)
        for tables, target in zip(families, targets_s, strict=True)
    ]
    counts = [candidate_count(tables) for tables in families]
    for index in _cheapest(found, counts, enumerated_plans):
        found[index] = _enumerate(families[index], targets_s[index])
    tasks = [float(tables.num_virtual_stages * tables.configuration.num_micro_batches) for tables in families]
    for index in _cheapest(found, tasks, linear_program_tasks):
        target = targets_s[index]
        bound = bound_family(Evaluator(families[index]), [], target, time_limit_s=LINEAR_PROGRAM_LIMIT_S)
        if bound.bound_s >= target * (1 - ROUNDING):
            found[index] = Recheck(Ground.LINEAR_PROGRAM)
    return found


def reached_by_arithmetic(tables: CostTables, target_s: float) -> bool:
    """Whether best links and the work of the stages alone show that no plan is below the target."""
    if floor_bound_s(tables) >= target_s * (1 - ROUNDING):
        return True
    return tightened_layers(tables, target_s * (1 - ROUNDING)) is None


def _cheapest(found: list[Recheck], costs: list[float], budget: float) -> list[int]:
    """Families without a ground, cheapest first, as many as the budget takes."""
    chosen = []
    for index in np.argsort(costs, kind="stable"):
        if found[index].ground is not Ground.NONE:
            continue
        budget -= costs[index]
        if budget < 0:
            break
        chosen.append(int(index))
    return chosen


def _enumerate(tables: CostTables, target_s: float) -> Recheck:
    evaluator = Evaluator(tables)
    best_s = np.inf
    for candidate in candidates(evaluator):
        best_s = min(best_s, evaluator.simulated_s(candidate))
    if best_s < target_s * (1 - ROUNDING):
        return Recheck(Ground.REFUTED, best_s)
    return Recheck(Ground.ENUMERATION)
