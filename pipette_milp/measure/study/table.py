"""The study's figures, table and picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PICK_TOLERANCE = 0.02
"""The optimiser's plan may be this much slower than the fastest one measured, beyond the noise of both."""


@dataclass(frozen=True)
class Outcome:
    """One plan, predicted and measured."""

    cluster: str
    number: int
    origin: str
    placement: str
    label: str
    predicted_s: float
    measured_s: float
    spread: float
    """(largest - smallest) / median over the iterations."""
    shares_egress: bool
    rings_share_node: bool

    @property
    def error(self) -> float:
        """measured / predicted - 1"""
        return self.measured_s / self.predicted_s - 1.0


@dataclass(frozen=True)
class Figures:
    """What the plans of a study (or of one cluster) come to."""

    plans: int
    mape: float
    """Mean of \\|predicted - measured\\| / measured."""
    worst: float
    spearman: float
    pick_behind: float
    """How much slower than the fastest measured plan the optimiser's is, relative; of the worst cluster."""
    pick_behind_beyond_noise: float
    speed_up: dict[str, float]
    """By cluster: measured time of the default rank order over that of the optimiser's plan."""
    factor: float
    """Largest over smallest predicted time."""


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Accuracy, ranking and choice."""
    predicted = np.array([outcome.predicted_s for outcome in outcomes])
    measured = np.array([outcome.measured_s for outcome in outcomes])
    errors = np.abs(predicted - measured) / measured
    behind, beyond, speed_up = 0.0, 0.0, {}
    for cluster in dict.fromkeys(outcome.cluster for outcome in outcomes):
        own = [outcome for outcome in outcomes if outcome.cluster == cluster]
        fastest = min(own, key=lambda outcome: outcome.measured_s)
        pick = next((outcome for outcome in own if outcome.origin == "optimiser"), None)
        if pick is None:
            continue
        late = pick.measured_s / fastest.measured_s - 1.0
        behind = max(behind, late)
        beyond = max(beyond, late - (pick.spread + fastest.spread) / 2)
        default = next((outcome for outcome in own if outcome.origin == "its default order"), None)
        if default is not None:
            speed_up[cluster] = default.measured_s / pick.measured_s
    return Figures(
        plans=len(outcomes),
        mape=float(errors.mean()),
        worst=float(errors.max()),
        spearman=spearman(predicted, measured),
        pick_behind=behind,
        pick_behind_beyond_noise=max(0.0, beyond),
        speed_up=speed_up,
        factor=float(predicted.max() / predicted.min()),
    )


def spearman(left: np.ndarray, right: np.ndarray) -> float:
    """Rank correlation; ties get their mean rank; 1.0 for a single pair."""
    if len(left) < 2:
        return 1.0
    ranks = []
    for values in (left, right):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranks.append((last - (counts - 1) / 2)[inverse])
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def misses(found: Figures, network_error: float | None) -> list[str]:
    """Targets that were not met, with the figure."""
    said = []
    if found.mape > 0.04:
        said.append(f"MAPE {found.mape:.2%} > 4 %")
    if found.worst > 0.10:
        said.append(f"worst plan {found.worst:.2%} > 10 %")
    if found.spearman < 0.97:
        said.append(f"Spearman {found.spearman:.3f} < 0.97")
    if found.pick_behind_beyond_noise > PICK_TOLERANCE:
        said.append(f"the optimiser's plan is {found.pick_behind:.2%} behind the fastest measured")
    if network_error is not None and network_error > 0.08:
        said.append(f"a measured link is {network_error:.2%} off its goodput, more than 8 %")
    return said


def markdown(outcomes: Sequence[Outcome]) -> str:
    """All plans, and a row of figures per cluster and in all."""
    lines = [
        "| cluster | plan | placement | predicted s | measured s | error | spread | egress | rings |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        placement = outcome.placement if outcome.origin == "drawn" else outcome.origin
        lines.append(
            f"| {outcome.cluster} | {outcome.label} | {placement} | {outcome.predicted_s:.3f} | "
            f"{outcome.measured_s:.3f} | {outcome.error:+.2%} | {outcome.spread:.2%} | "
            f"{'shared' if outcome.shares_egress else ''} | {'shared' if outcome.rings_share_node else ''} |"
        )
    lines += [
        "",
        "| cluster | plans | MAPE | worst | Spearman | behind fastest | default / optimiser |",
        "|---|---|---|---|---|---|---|",
    ]
    clusters = list(dict.fromkeys(outcome.cluster for outcome in outcomes))
    for name in [*clusters, "all"]:
        own = [outcome for outcome in outcomes if name in ("all", outcome.cluster)]
        found = figures(own)
        gain = f"{found.speed_up[name]:.3f}" if name in found.speed_up else ""
        lines.append(
            f"| {name} | {found.plans} | {found.mape:.2%} | {found.worst:.2%} | {found.spearman:.3f} | "
            f"{found.pick_behind:.2%} | {gain} |"
        )
    return "\n".join(lines) + "\n"


def plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Measured against predicted, one colour a cluster. Needs matplotlib (extra ``plot``)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.0), layout="constrained")
    axes: Any = figure.add_subplot()
    times = [time for outcome in outcomes for time in (outcome.predicted_s, outcome.measured_s)]
    low, high = 0.95 * min(times), 1.05 * max(times)
    axes.plot([low, high], [low, high], color="#636363", linewidth=0.8)
    axes.fill_between(
        [low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#d9d9d9", alpha=0.4, linewidth=0
    )
    markers = {"exchange": "o", "async": "^"}
    for index, cluster in enumerate(dict.fromkeys(outcome.cluster for outcome in outcomes)):
        for mode, marker in markers.items():
            own = [o for o in outcomes if o.cluster == cluster and mode in o.label]
            axes.scatter(
                [o.predicted_s for o in own],
                [o.measured_s for o in own],
                s=22,
                marker=marker,
                color=f"C{index}",
                label=f"{cluster}, {mode}",
            )
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("predicted iteration time, s")
    axes.set_ylabel("measured on the emulated network, s")
    axes.set_title("Replayed plans; grey band: 10 %")
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
