"""Figures about runs: how far above the best known plan, how soon, who wins how often.

Plans of an instance are compared per sequence, because their global batches may differ. The *best known* plan
of an instance is the best of all runs given, whichever solver found it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipette_milp.experiments.log import Record

TIE = 1e-3
"""Plans closer than this are as good as each other: a tenth of a per cent, the tolerance of our goals."""
Z_95 = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""


def per_sequence_s(record: Record) -> float:
    """Seconds per sequence of a run's plan; inf without one."""
    if record.get("simulated_s") is None:
        return math.inf
    return float(record["simulated_s"]) / float(record["global_batch_size"])


def best_known(records: Iterable[Record]) -> dict[str, float]:
    """Seconds per sequence of the best plan of each instance, by its hash; inf if no run has one."""
    best: dict[str, float] = {}
    for record in records:
        name = record["instance_sha256"]
        best[name] = min(best.get(name, math.inf), per_sequence_s(record))
    return best


def excess(record: Record, best: dict[str, float]) -> float:
    """By what share a run's plan is slower than the best known one; inf without a plan."""
    value = per_sequence_s(record)
    return value / best[record["instance_sha256"]] - 1.0 if math.isfinite(value) else math.inf


def time_to_excess_s(record: Record, best: dict[str, float], share: float) -> float:
    """When a run first had a plan at most ``share`` slower than the best known one; inf if never."""
    if record.get("global_batch_size") is None:
        return math.inf
    limit = best[record["instance_sha256"]] * record["global_batch_size"] * (1 + share) * (1 + 1e-12)
    for time_s, incumbent_s, _ in record["trace"]:
        if incumbent_s is not None and incumbent_s <= limit:
            return float(time_s)
    return math.inf


def time_to_gap_s(record: Record, gap: float) -> float:
    """When a run had first *proven* that no plan is more than ``gap`` faster than its own; inf if never."""
    for time_s, incumbent_s, bound_s in record.get("trace", ()):
        if incumbent_s and bound_s is not None and 1 - bound_s / incumbent_s <= gap * (1 + 1e-12):
            return float(time_s)
    return math.inf


def median(values: Sequence[float]) -> float:
    """The middle value; the upper one of two where the lower is finite and the upper is not, so that half of
    the runs never hides that the other half failed. nan without values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return high if math.isinf(high) else (low + high) / 2


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson 1927, score interval); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share, squared = successes / trials, Z_95 * Z_95
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    half = Z_95 * math.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials))
    half /= 1 + squared / trials
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True)
class Duel:
    """One solver against another, on the runs both made of the same instance and seed."""

    solver: str
    against: str
    wins: int
    ties: int
    losses: int

    @property
    def decided(self) -> int:
        """Runs that are no tie."""
        return self.wins + self.losses

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the share of wins among decided runs."""
        return wilson_interval(self.wins, self.decided)


def duel(records: Iterable[Record], solver: str, against: str) -> Duel:
    """Wins, ties (within `TIE`) and losses. No plan loses to any plan."""
    pairs: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        pair = pairs.setdefault((record["instance_sha256"], record["seed"]), {})
        pair[record["solver"]] = per_sequence_s(record)
    wins = ties = losses = 0
    for pair in pairs.values():
        if solver not in pair or against not in pair:
            continue
        one, other = pair[solver], pair[against]
        if one == other or max(one, other) <= min(one, other) * (1 + TIE):
            ties += 1
        elif one < other:
            wins += 1
        else:
            losses += 1
    return Duel(solver, against, wins, ties, losses)


def profile(values: Iterable[float], levels: Sequence[float]) -> list[float]:
    """Share of the values at or below each level."""
    values = list(values)
    return [sum(value <= level for value in values) / len(values) if values else 0.0 for level in levels]


def solvers_of(records: Iterable[Record]) -> list[str]:
    """In the order of first appearance."""
    return list(dict.fromkeys(record["solver"] for record in records))


def instances_of(records: Iterable[Record]) -> dict[str, str]:
    """Hash to name, in the order of first appearance."""
    return {record["instance_sha256"]: record["instance"] for record in records}
