"""Writes the certificate of a result: a proof for every configuration that no closed form settles."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipette_milp.certificates.grounds import reached_by_arithmetic
from pipette_milp.certificates.produce import prove
from pipette_milp.certificates.proof import Certificate, Proof, family_key
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import SolveResult
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.workers import Job, Pool

FAMILY_LIMIT_S = 60.0
"""For the proof of one configuration."""
POLL_S = 0.2

Listener = Callable[[int, int], None]
"""(configurations looked at, of how many)"""


def certify(
    instance: Instance,
    result: SolveResult,
    *,
    time_limit_s: float = 600.0,
    threads: int = 1,
    listener: Listener | None = None,
) -> Certificate:
    """Proofs that no configuration has a plan below its own lower bound in the result.

    Whatever solver found the bounds, proofs are looked for anew. Where a configuration's own bound is not
    reached, that of the result over all configurations is tried; what does not reach that is left out and
    counted.

    Args:
        threads: worker processes.

    Raises:
        InputError: a result without a plan or a lower bound, or of another instance.
    """
    digest = instance.sha256()
    if digest != result.instance_sha256:
        raise InputError(f"the result names {result.instance_sha256[:12]}, this instance is {digest[:12]}")
    if result.lower_bound_s is None or result.plan is None:
        raise InputError("this result proves nothing: it has no lower bound")
    batch = result.plan.configuration.global_batch_size
    own_s = {
        family_key(record.configuration): record.lower_bound_s
        for record in result.configurations
        if isinstance(record.configuration, Configuration) and record.lower_bound_s is not None
    }
    families: list[CostTables] = []
    targets: list[tuple[float, ...]] = []
    needed: list[bool] = []
    for tables in enumerate_space(CostModel.of(instance)).families:
        whole_s = result.lower_bound_s * tables.configuration.global_batch_size / batch
        wanted = {own_s.get(family_key(tables.configuration), whole_s), whole_s}
        open_ = tuple(sorted((t for t in wanted if not reached_by_arithmetic(tables, t)), reverse=True))
        if open_:
            families.append(tables)
            targets.append(open_)
            needed.append(whole_s in open_)
    proofs = _prove_all(families, targets, time_limit_s, threads, listener)
    found = tuple(proof for proof in proofs if proof is not None)
    return Certificate(
        instance_sha256=digest,
        lower_bound_s=result.lower_bound_s,
        global_batch_size=batch,
        proofs=found,
        unproven=sum(proof is None and need for proof, need in zip(proofs, needed, strict=True)),
    )


def prove_highest(tables: CostTables, targets_s: tuple[float, ...], *, time_limit_s: float) -> Proof | None:
    """A proof of the first of some targets that has one; falling."""
    deadline = time.monotonic() + time_limit_s
    for number, target_s in enumerate(targets_s):
        share = (deadline - time.monotonic()) / (len(targets_s) - number)
        proof = prove(tables, target_s, time_limit_s=share)
        if proof is not None:
            return proof
    return None


def _prove_all(
    families: list[CostTables],
    targets_s: list[tuple[float, ...]],
    time_limit_s: float,
    threads: int,
    listener: Listener | None,
) -> list[Proof | None]:
    """By family, None where no proof was found in time."""
    deadline = time.monotonic() + time_limit_s
    proofs: list[Proof | None] = [None] * len(families)
    waiting = sorted(range(len(families)), key=lambda k: -families[k].num_virtual_stages)
    looked = 0
    if not families:
        return proofs
    with Pool(families, max(1, min(threads, len(families)))) as pool:
        while True:
            left = deadline - time.monotonic()
            while waiting and pool.idle and left > 0:
                family = waiting.pop()  # short pipelines first
                limit = min(FAMILY_LIMIT_S, left)
                arguments = {"targets_s": targets_s[family], "time_limit_s": limit}
                pool.submit(Job(prove_highest, family, arguments, limit))
            if not pool.running or left <= 0:
                return proofs
            for done in pool.poll(min(POLL_S, max(0.01, left))):
                proofs[done.job.family] = done.value
                looked += 1
                if listener is not None:
                    listener(looked, len(families))


__all__ = ["Listener", "certify"]
