"""Proofs of lower bounds that need no solver to be checked, and grounds of bounds without one."""

from __future__ import annotations

from pipette_milp.certificates.certify import certify
from pipette_milp.certificates.grounds import (
    NO_PLAN_S,
    PROVEN_TASKS,
    Ground,
    Recheck,
    reached_by_arithmetic,
    recheck_bounds,
)
from pipette_milp.certificates.proof import Certificate, Proof

__all__ = [
    "NO_PLAN_S",
    "PROVEN_TASKS",
    "Certificate",
    "Ground",
    "Proof",
    "Recheck",
    "certify",
    "reached_by_arithmetic",
    "recheck_bounds",
]
