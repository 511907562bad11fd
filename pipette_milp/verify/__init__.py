"""Checks what a result claims, from the instance and the plans alone.

Nothing that a solver said is taken over: plans are simulated again, the search space is enumerated again,
and the bounds of its families are derived again as far as that is cheap (`pipette_milp.certificates`). What
is left is named as resting on a solver's word.
"""

from __future__ import annotations

import sys
from types import ModuleType

from pipette_milp.certificates import Certificate
from pipette_milp.cost.build import CostModel
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.search_space import enumerate_space
from pipette_milp.verify.claims import TOLERANCE, Claim, Report
from pipette_milp.verify.plan_claims import plan_claims
from pipette_milp.verify.proof_claims import proof_claims
from pipette_milp.verify.space_claims import space_claims

__all__ = ["TOLERANCE", "Claim", "Report", "verify"]


def verify(instance: Instance, result: SolveResult, certificate: Certificate | None = None) -> Report:
    """Check every claim of a result.

    A result of another instance fails with that one claim: nothing else in it could be judged.

    Args:
        instance: with unmeasured pairs filled as they were for the solve (``settings``).
        certificate: proofs of the lower bound (`pipette_milp.certificates.certify`). Without one, proofs of
            the smaller configurations are written here, as far as that is quick, and checked all the same.
    """
    digest = instance.sha256()
    same = digest == result.instance_sha256
    named = Claim(
        "instance_sha256",
        "recomputed",
        same,
        "" if same else f"the result names {result.instance_sha256[:12]}, this instance is {digest[:12]}",
    )
    if not same:
        return Report((named,))
    if certificate is not None and certificate.instance_sha256 != digest:
        fault = f"it names {certificate.instance_sha256[:12]}, this instance is {digest[:12]}"
        return Report((named, Claim("certificate: of this instance", "recomputed", False, fault)))
    costs = CostModel.of(instance)
    space = enumerate_space(costs)
    return Report(
        (
            named,
            *plan_claims(costs, space, result),
            *proof_claims(costs, result),
            *space_claims(costs, space, result, certificate),
        )
    )


class _CallableModule(ModuleType):
    """Calling the package calls its function: the public name ``pipette_milp.verify`` is the function, but
    Python binds it to the package as soon as that has been imported."""

    def __call__(
        self, instance: Instance, result: SolveResult, certificate: Certificate | None = None
    ) -> Report:
        return verify(instance, result, certificate)


sys.modules[__name__].__class__ = _CallableModule
