"""Lower bounds of families derived again, the cheapest argument first.

A target is a time that every plan of a family is claimed to take at least. These grounds can carry it:

arithmetic      `floor_bound_s`, or `tightened_layers`: within the target there is no room for all layers
enumeration     all plans of a tiny family simulated
dual values     a proof (`pipette_milp.certificates.proof`), given or written here, whose value is computed
                without a solver

What none of them reaches is left to the word of the solver that claimed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pipette_milp.certificates.check import UnprovenError, check_proof
from pipette_milp.certificates.produce import prove
from pipette_milp.certificates.proof import Proof
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.exhaustive import candidate_count, candidates
from pipette_milp.solvers.layer_branches import floor_bound_s, tightened_layers

NO_PLAN_S = 1e9
"""Target that stands for "there is no plan", seconds: longer than any iteration (30 years)."""
PROVEN_TASKS = 20_000
"""Proofs are written here, of families with few tasks (virtual stages x micro-batches) first, up to this many
tasks together."""
PROOF_LIMIT_S = 5.0
"""For one family."""
ENUMERATED_PLANS = 5_000
"""Plans simulated in all, families with few plans first: about 1 s for tiny instances."""
ROUNDING = 1e-9
"""Relative. A bound that misses its target by this much reaches it."""


class Ground(StrEnum):
    """What carries a bound."""

    ARITHMETIC = "closed form"
    DUALS = "dual values"
    ENUMERATION = "enumeration"
    NONE = "a solver's word"
    REFUTED = "refuted"
    """A plan of the family is faster than the target."""
    UNPROVEN = "unproven"
    """The certificate has a proof, which does not show it."""


@dataclass(frozen=True)
class Recheck:
    """One family's target, looked at again."""

    ground: Ground
    refuting_s: float | None = None
    """Time of the plan that refutes it."""
    fault: str = ""
    """What is wrong with its proof."""


def recheck_bounds(
    families: list[CostTables],
    targets_s: list[float],
    proofs: Mapping[int, Proof] | None = None,
    *,
    proven_tasks: int = PROVEN_TASKS,
    enumerated_plans: int = ENUMERATED_PLANS,
) -> list[Recheck]:
    """The ground on which each family's target stands.

    Args:
        targets_s: seconds of the family's own iteration; `NO_PLAN_S` claims that the family has no plan.
        proofs: by index of the family.
        proven_tasks, enumerated_plans: how much of the dearer grounds may be tried in all.
    """
    found = [
        Recheck(Ground.ARITHMETIC if reached_by_arithmetic(tables, target) else Ground.NONE)
        for tables, target in zip(families, targets_s, strict=True)
    ]
    counts = [candidate_count(tables) for tables in families]
    for index in _cheapest(found, counts, enumerated_plans):
        found[index] = _enumerate(families[index], targets_s[index])
    for index, proof in (proofs or {}).items():
        if found[index].ground is Ground.NONE:
            found[index] = _checked(families[index], targets_s[index], proof)
    tasks = [float(tables.num_virtual_stages * tables.configuration.num_micro_batches) for tables in families]
    for index in _cheapest(found, tasks, proven_tasks):
        written = prove(families[index], targets_s[index], time_limit_s=PROOF_LIMIT_S)
        if written is not None:
            found[index] = _checked(families[index], targets_s[index], written)
    return found


def _checked(tables: CostTables, target_s: float, proof: Proof) -> Recheck:
    try:
        check_proof(tables, target_s, proof)
    except UnprovenError as error:
        return Recheck(Ground.UNPROVEN, fault=str(error))
    return Recheck(Ground.DUALS)


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
