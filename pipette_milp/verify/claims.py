"""What a verification says: claims, how each was checked, whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipette_milp.errors import VerificationError

TOLERANCE = 1e-9
"""Relative. Numbers are recomputed by the same formulas, so only the order of additions may differ: a longest
path over a million tasks rounds to some 1e-10."""
MOST_NAMED = 3
"""Faults spelled out in one claim."""

How = Literal["recomputed", "re-checked", "solver"]


@dataclass(frozen=True)
class Claim:
    """One thing a result says."""

    claim: str
    """The field of the result, or what is claimed about it."""
    how: How
    """recomputed: from instance and plan; re-checked: a bound derived again; solver: a solver's word."""
    ok: bool
    detail: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of bounds: how many configurations stand on which ground."""


@dataclass(frozen=True)
class Report:
    """All claims of one result."""

    claims: tuple[Claim, ...]

    @property
    def ok(self) -> bool:
        """Whether none failed."""
        return all(claim.ok for claim in self.claims)

    @property
    def failed(self) -> tuple[Claim, ...]:
        """Those that do not hold."""
        return tuple(claim for claim in self.claims if not claim.ok)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ok": self.ok,
            "claims": [
                {
                    "claim": claim.claim,
                    "how": claim.how,
                    "ok": claim.ok,
                    "detail": claim.detail,
                    "counts": dict(claim.counts),
                }
                for claim in self.claims
            ],
        }

    def require(self) -> None:
        """Refuse a result that claims something wrong.

        Raises:
            VerificationError: names every claim that failed.
        """
        if not self.ok:
            raise VerificationError("; ".join(f"{claim.claim}: {claim.detail}" for claim in self.failed))


def judged(claim: str, faults: Iterable[str], detail: str = "", *, how: How = "recomputed") -> Claim:
    """A claim that holds if there is no fault; a few faults are spelled out, the others counted."""
    found = list(faults)
    if not found:
        return Claim(claim, how, True, detail)
    text = "; ".join(found[:MOST_NAMED])
    if len(found) > MOST_NAMED:
        text += f"; and {len(found) - MOST_NAMED} more"
    return Claim(claim, how, False, text)


def close(left: float, right: float, absolute: float = 0.0) -> bool:
    """Equal up to `TOLERANCE` relative, or up to ``absolute``."""
    return abs(left - right) <= max(TOLERANCE * max(abs(left), abs(right)), absolute)


def differences(claimed: Any, recomputed: Any, *, absolute: float = 0.0, place: str = "") -> list[str]:
    """Where two JSON values differ. Numbers may differ by rounding, everything else must be equal."""
    if isinstance(claimed, Mapping) and isinstance(recomputed, Mapping):
        return [
            text
            for key in dict.fromkeys([*recomputed, *claimed])
            for text in differences(
                claimed.get(key),
                recomputed.get(key),
                absolute=absolute,
                place=f"{place}.{key}" if place else key,
            )
        ]
    if isinstance(claimed, list | tuple) and isinstance(recomputed, list | tuple):
        if len(claimed) != len(recomputed):
            return [f"{place} has {len(claimed)} entries, recomputed {len(recomputed)}".lstrip()]
        return [
            text
            for index, (left, right) in enumerate(zip(claimed, recomputed, strict=True))
            for text in differences(left, right, absolute=absolute, place=f"{place}[{index}]")
        ]
    if _number(claimed) and _number(recomputed):
        same = close(claimed, recomputed, absolute)
    else:
        same = type(claimed) is type(recomputed) and claimed == recomputed
    return [] if same else [f"{place} says {claimed!r}, recomputed {recomputed!r}".lstrip()]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
