"""Pictures of a comparison: who is near the best, how soon, what is proven, who wins.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; line styles and markers differ too,
so that a print without colours can be read. Needs matplotlib (extra ``plot``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_milp.experiments.log import Record
from pipette_milp.experiments.statistics import (
    best_known,
    duel,
    excess,
    instances_of,
    profile,
    solvers_of,
    time_to_excess_s,
    time_to_gap_s,
)
from pipette_milp.plots.style import LEGEND_POINTS, bare, canvas, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito, "Color Universal Design" (2008); yellow is left out, too pale on white."""
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BEST = 1e-4
"""Plans nearer to the best known one are drawn here, the left end of logarithmic scales."""
LEVELS = np.geomspace(BEST, 1.0, 200)
NEAR = 1e-3
FIRST_S = 0.1
PANEL_INCHES = (6.4, 3.9)


def performance_profile(records: Sequence[Record], axes: Axes | None = None) -> Figure:
    """Share of runs within some distance of the best known plan, over that distance; higher is better."""
    figure, axes = _panel(axes)
    best = best_known(records)
    for index, solver in enumerate(solvers_of(records)):
        values = [excess(record, best) for record in records if record["solver"] == solver]
        axes.step(LEVELS, profile(values, LEVELS.tolist()), where="post", label=solver, **_style(index))
    axes.set_xscale("log")
    axes.set_xlabel("slower than the best known plan by at most")
    _percent_axis(axes.xaxis)
    _share_axis(axes)
    _finish(axes, "Plans at the time limit")
    return figure


def time_to_target(records: Sequence[Record], axes: Axes | None = None, share: float = NEAR) -> Figure:
    """Share of runs that had a plan at most ``share`` above the best known one, over time."""
    best = best_known(records)
    times = {
        solver: [time_to_excess_s(r, best, share) for r in records if r["solver"] == solver]
        for solver in solvers_of(records)
    }
    return _shares_over_time(records, times, axes, f"A plan within {share:.1%} of the best known")


def time_to_proof(records: Sequence[Record], axes: Axes | None = None, gap: float = 0.01) -> Figure:
    """Share of runs that had proven a gap, over time; solvers that never prove are left out."""
    times = {
        solver: [time_to_gap_s(r, gap) for r in records if r["solver"] == solver]
        for solver in solvers_of(records)
    }
    return _shares_over_time(records, times, axes, f"A proven gap of at most {gap:.1%}")


def _shares_over_time(
    records: Sequence[Record], times: dict[str, list[float]], axes: Axes | None, title: str
) -> Figure:
    figure, axes = _panel(axes)
    last = max(record["time_limit_s"] for record in records)
    levels = np.geomspace(min(FIRST_S, last / 10), last * 1.05, 300)
    for index, (_, values) in enumerate(times.items()):
        if any(math.isfinite(value) for value in values):
            solver = list(times)[index]
            axes.step(levels, profile(values, levels.tolist()), where="post", label=solver, **_style(index))
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    _share_axis(axes)
    _finish(axes, title)
    return figure


def gap_over_time(records: Sequence[Record], instance_sha256: str, axes: Axes | None = None) -> Figure:
    """One instance: median distance of the plan, and of the bound, from the best known plan.

    Plans come down from above, bounds (thin lines) come up from below; where they meet, the plan is optimal.
    """
    figure, axes = _panel(axes)
    runs = [record for record in records if record["instance_sha256"] == instance_sha256]
    best = best_known(runs)[instance_sha256]
    last = max(record["time_limit_s"] for record in runs)
    moments = np.geomspace(min(FIRST_S, last / 10), last, 200)
    for index, solver in enumerate(solvers_of(records)):
        own = [run for run in runs if run["solver"] == solver and run.get("global_batch_size")]
        if not own:
            continue
        style = _style(index)
        above = _medians([_steps(run, 1, moments) / (best * run["global_batch_size"]) - 1 for run in own])
        if np.isfinite(above).any():  # else the only plan came after the time limit: nothing to draw
            axes.plot(moments, np.maximum(above, BEST), label=solver, **style)
        below = _medians([1 - _steps(run, 2, moments) / (best * run["global_batch_size"]) for run in own])
        if np.isfinite(below).any():
            axes.plot(moments, np.maximum(below, BEST), **{**style, "linewidth": 0.8, "alpha": 0.7})
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("from the best known plan")
    _percent_axis(axes.yaxis)
    _finish(axes, f"{instances_of(runs)[instance_sha256]}\n(thick: plan above, thin: bound below)")
    return figure


def wins_and_losses(
    records: Sequence[Record], axes: Axes | None = None, reference: str | None = None
) -> Figure:
    """Share of wins of each solver against the reference among decided runs, with its 95 % interval."""
    figure, axes = _panel(axes)
    solvers = solvers_of(records)
    reference = reference or solvers[0]
    others = [solver for solver in solvers if solver != reference]
    for row, solver in enumerate(others):
        result = duel(records, solver, reference)
        low, high = result.interval
        label = f"{result.wins} won, {result.ties} tied, {result.losses} lost"
        if result.decided:
            share = result.wins / result.decided
            axes.plot([low, high], [row, row], color="#555555", linewidth=2, solid_capstyle="butt")
            axes.plot(share, row, marker=MARKERS[0], color=COLORS[0], markersize=7)
        axes.annotate(
            label, (0.5, row), (0, 9), textcoords="offset points", ha="center", fontsize=LEGEND_POINTS
        )
    axes.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.set_yticks(range(len(others)), others)
    axes.set_xlabel(f"share of decided runs won against {reference}, 95 % interval")
    _percent_axis(axes.xaxis)
    _finish(axes, "Wins and losses", legend=False)
    return figure


def draw_all(records: Sequence[Record], directory: Path) -> list[Path]:
    """All pictures of a comparison as SVG files; the paths written."""
    drawn: dict[str, Figure] = {
        "performance_profile": performance_profile(records),
        "time_to_target": time_to_target(records),
    }
    if any(record.get("gap") is not None for record in records):
        drawn["time_to_proof"] = time_to_proof(records)
    if len(solvers_of(records)) > 1:
        drawn["wins_and_losses"] = wins_and_losses(records)
    for sha, name in instances_of(records).items():
        if math.isfinite(best_known(records)[sha]):
            drawn[f"gap_over_time_{name}_{sha[:8]}"] = gap_over_time(records, sha)
    paths = []
    for name, figure in drawn.items():
        path = directory / f"{name.replace('/', '_')}.svg"
        temporary = path.with_suffix(".svg.part")
        figure.savefig(temporary, format="svg", metadata={"Date": None})
        temporary.replace(path)
        paths.append(path)
    return paths


def _steps(record: Record, column: int, moments: np.ndarray) -> np.ndarray:
    """[len(moments)] the trace's value at each moment; nan before the first."""
    points = [(point[0], point[column]) for point in record["trace"] if point[column] is not None]
    if not points:
        return np.full(len(moments), math.nan)
    times, values = np.array(points).T
    index = np.searchsorted(times, moments, side="right") - 1
    return np.where(index >= 0, values[np.maximum(index, 0)], math.nan)


def _medians(rows: list[np.ndarray]) -> np.ndarray:
    """Median over runs; nan while less than half of them have a value."""
    stacked = np.where(np.isnan(rows), np.inf, rows)
    middle = np.sort(stacked, axis=0)[len(rows) // 2]
    return np.where(np.isinf(middle), math.nan, middle)


def _style(index: int) -> dict[str, Any]:
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markevery": 0.13,
        "markersize": 4,
        "linewidth": 1.8,
    }


def _panel(axes: Axes | None) -> tuple[Figure, Axes]:
    return canvas(axes, *PANEL_INCHES)


def _percent_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axis.set_minor_formatter(NullFormatter())


def _share_axis(axes: Axes) -> None:
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("share of runs")
    _percent_axis(axes.yaxis)


def _finish(axes: Axes, title: str, *, legend: bool = True) -> None:
    title_of(axes, title)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    bare(axes, "top", "right")
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=LEGEND_POINTS)
