"""Claims about the search space: every configuration accounted for, and the lower bound over all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipette_milp.certificates import NO_PLAN_S, PROVEN_TASKS, Certificate, Ground, Recheck, recheck_bounds
from pipette_milp.certificates.proof import family_key
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.legality import illegalities
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import OPTIMAL_GAP, ConfigurationRecord, SolveResult
from pipette_milp.search_space import SearchSpace
from pipette_milp.verify.claims import MOST_NAMED, TOLERANCE, Claim, close, judged
from pipette_milp.verify.families import per_sequence_s, short_name

CARRYING = (Ground.ARITHMETIC, Ground.DUALS, Ground.ENUMERATION)
"""Grounds that need nobody's word."""


class Entry(NamedTuple):
    """A legal configuration of the space with its record in the result."""

    tables: CostTables
    configuration: Configuration
    record: ConfigurationRecord


def space_claims(
    costs: CostModel, space: SearchSpace, result: SolveResult, certificate: Certificate | None
) -> Iterator[Claim]:
    """Records against the space enumerated again, then the bounds."""
    if not result.configurations and result.plan is None and result.lower_bound_s is None and space.families:
        return  # interrupted before the search began: nothing is claimed about the space
    faults = _membership_faults(costs, space, result)
    legal = f"{len(space.families)} legal ones, each once"
    yield judged("configurations: every legal one is listed", faults, legal)
    refused = f"{len(space.refusals)} of them"
    yield judged("configurations: refusals", _refusal_faults(space, result), refused)
    if faults:
        return
    by_key = {family_key(tables.configuration): tables for tables in space.families}
    entries = [
        Entry(by_key[family_key(record.configuration)], record.configuration, record)
        for record in result.configurations
        if isinstance(record.configuration, Configuration)
    ]
    yield judged("configurations: status, bound and best plan agree", _status_faults(entries, result))
    possible = [entry for entry in entries if entry.record.status != "infeasible"]
    infeasible = [entry for entry in entries if entry.record.status == "infeasible"]
    if result.lower_bound_s is not None:
        targets = _targets_s(possible, result)
        lower = _least_bound_faults(possible, targets)
        yield judged("lower_bound_s: no configuration has a lower one", lower)
        yield from _bound_claims(possible, targets, certificate)
    if infeasible:
        found = recheck_bounds(
            [entry.tables for entry in infeasible], [NO_PLAN_S] * len(infeasible), proven_tasks=0
        )
        yield _grounds_claim("infeasible configurations have no plan", infeasible, found)


def _bound_claims(
    entries: list[Entry], targets_s: list[float], certificate: Certificate | None
) -> Iterator[Claim]:
    """Each configuration's own bound, then the bound over all, which may be far lower."""
    keys = [family_key(entry.configuration) for entry in entries]
    given = {} if certificate is None else {proof.key: proof for proof in certificate.proofs}
    proofs = {index: given[key] for index, key in enumerate(keys) if key in given}
    families = [entry.tables for entry in entries]
    own = recheck_bounds(
        families, [entry.record.lower_bound_s or 0.0 for entry in entries], proofs, proven_tasks=0
    )
    # a proof may be one of the lower bound over all only
    lenient = [Recheck(Ground.NONE) if one.ground is Ground.UNPROVEN else one for one in own]
    yield _grounds_claim("configurations: lower_bound_s of each", entries, lenient)
    left = [index for index, one in enumerate(lenient) if one.ground not in CARRYING]
    found = recheck_bounds(
        [families[index] for index in left],
        [targets_s[index] for index in left],
        {position: proofs[index] for position, index in enumerate(left) if index in proofs},
        proven_tasks=PROVEN_TASKS if certificate is None else 0,
    )
    rechecks = list(lenient)
    for index, recheck in zip(left, found, strict=True):
        rechecks[index] = recheck
    several = Counter(proof.key for proof in (certificate.proofs if certificate else ()))
    repeated = [f"{count} proofs of one configuration" for count in several.values() if count > 1]
    yield _grounds_claim("lower_bound_s: no plan of any configuration is faster", entries, rechecks, repeated)


def _membership_faults(costs: CostModel, space: SearchSpace, result: SolveResult) -> list[str]:
    listed: Counter[str] = Counter()
    named: dict[str, Configuration] = {}
    faults = []
    for record in result.configurations:
        configuration = record.configuration
        if not isinstance(configuration, Configuration):
            continue
        key = family_key(configuration)
        listed[key] += 1
        named[key] = configuration
        faults += [
            f"{short_name(configuration)}: {problem}" for problem in illegalities(costs, configuration)
        ]
    expected = {family_key(tables.configuration): tables.configuration for tables in space.families}
    faults += [f"{short_name(expected[key])} is missing" for key in expected if key not in listed]
    faults += [f"{short_name(named[key])} is no part of the space" for key in listed if key not in expected]
    faults += [
        f"{short_name(named[key])} is listed {count} times" for key, count in listed.items() if count > 1
    ]
    return faults


def _refusal_faults(space: SearchSpace, result: SolveResult) -> list[str]:
    def key(degrees: object, reason: str) -> tuple[str, str]:
        return json.dumps(degrees, sort_keys=True), reason

    listed = Counter(
        key(record.configuration, record.reason)
        for record in result.configurations
        if not isinstance(record.configuration, Configuration)
    )
    expected = Counter(key(refusal.degrees, refusal.reason) for refusal in space.refusals)
    faults = [f"{degrees} ({reason}) is missing" for degrees, reason in (expected - listed)]
    faults += [f"{degrees} ({reason}) does not hold" for degrees, reason in (listed - expected)]
    faults += [
        f"{json.dumps(record.configuration)} has status {record.status}, expected refused"
        for record in result.configurations
        if not isinstance(record.configuration, Configuration) and record.status != "refused"
    ]
    return faults


def _status_faults(entries: list[Entry], result: SolveResult) -> Iterator[str]:
    winner = None if result.plan is None else family_key(result.plan.configuration)
    ranked = {family_key(plan.configuration): plan.simulated_s for plan in result.plans}
    for _, configuration, record in entries:
        name, key = short_name(configuration), family_key(configuration)
        best_s, bound = record.best_s, record.lower_bound_s
        if record.status == "refused":
            yield f"{name} is legal and fits, but refused"
        if (key == winner) != (record.status == "solved"):
            yield f"{name} has status {record.status}"
        if record.status == "infeasible" and best_s is not None:
            yield f"{name} is infeasible and has a plan"
        if best_s is not None and bound is not None and bound > best_s * (1 + TOLERANCE):
            yield f"{name}: lower_bound_s {bound!r} is above best_s {best_s!r}"
        if key in ranked and (best_s is None or not close(best_s, ranked[key])):
            yield f"{name}: best_s is {best_s!r}, its plan takes {ranked[key]!r}"
        yield from _incumbent_faults(configuration, record, result)


def _incumbent_faults(
    configuration: Configuration, record: ConfigurationRecord, result: SolveResult
) -> Iterator[str]:
    """A record against the plan reported as best."""
    if result.plan is None or result.simulated_s is None:
        return
    name, best_s, bound = short_name(configuration), record.best_s, record.lower_bound_s
    wanted = result.settings.get("gap")
    gap = max(OPTIMAL_GAP, wanted if isinstance(wanted, int | float) else 0.0)
    incumbent = per_sequence_s(result.simulated_s, result.plan.configuration)
    if best_s is not None and per_sequence_s(best_s, configuration) < incumbent * (1 - TOLERANCE):
        yield f"{name}: best_s {best_s!r} beats the plan reported as best"
    if record.status == "bounded_out" and (
        bound is None or per_sequence_s(bound, configuration) < incumbent * (1 - gap) * (1 - TOLERANCE)
    ):
        yield f"{name} is bounded out by {bound!r}, which leaves room for a better plan"


def _least_bound_faults(entries: list[Entry], targets_s: list[float]) -> Iterator[str]:
    for (_, configuration, record), target in zip(entries, targets_s, strict=True):
        if record.lower_bound_s is None or record.lower_bound_s < target * (1 - TOLERANCE):
            yield f"{short_name(configuration)} has the bound {record.lower_bound_s!r}, needed is {target!r}"


def _grounds_claim(
    claim: str, entries: list[Entry], rechecks: list[Recheck], faults: Sequence[str] = ()
) -> Claim:
    """Every target with the ground it stands on."""
    faults = list(faults)
    unproven: list[str] = []
    carried: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for entry, recheck in zip(entries, rechecks, strict=True):
        name = short_name(entry.configuration)
        if recheck.ground is Ground.REFUTED:
            faults.append(f"{name} has a plan of {recheck.refuting_s!r} s")
        elif recheck.ground is Ground.UNPROVEN:
            faults.append(f"{name}: its proof fails, {recheck.fault}")
        elif recheck.ground is Ground.NONE:
            unproven.append(name)
            words[f"the word of {entry.record.bound_by or 'a solver'}"] += 1
        else:
            carried[str(recheck.ground)] += 1
    parts = [f"{count} by {ground}" for ground, count in carried.items()]
    parts += [f"{count} on {word}" for word, count in words.items()]
    detail = "; ".join(parts)
    if unproven:
        more = f" and {len(unproven) - MOST_NAMED} more" if len(unproven) > MOST_NAMED else ""
        detail += f": {', '.join(unproven[:MOST_NAMED])}{more}"
    judgement = judged(claim, faults, detail, how="solver" if words else "re-checked")
    return replace(judgement, counts={**carried, **words})


def _targets_s(entries: list[Entry], result: SolveResult) -> list[float]:
    """The result's bound in seconds of each family's own batch."""
    bound = result.lower_bound_s or 0.0
    batches = [entry.configuration.global_batch_size for entry in entries]
    # without a plan there is no batch to compare with: the instance's only one
    stated = batches[0] if result.plan is None else result.plan.configuration.global_batch_size
    return [bound * batch / stated for batch in batches]
