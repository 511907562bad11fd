"""Incumbent and bound over the time of a search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipette_milp.errors import InputError
from pipette_milp.plots.style import INK, bare, canvas, legend_below, title_of
from pipette_milp.schema.result import SolveResult
from pipette_milp.schema.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCUMBENT = "#d55e00"
BOUND = "#0072b2"
LOG_FROM = 30.0
"""Searches whose last moment is this many times the first one get a logarithmic time axis."""


def convergence(result: SolveResult, *, axes: Axes | None = None) -> Figure:
    """The best plan known and the best bound proven, at every moment; the gap is what lies between.

    A heuristic has an incumbent only.

    Raises:
        InputError: a result without a trace.
    """
    incumbent = [(point.time_s, point.incumbent_s) for point in result.trace if point.incumbent_s is not None]
    bound = [(point.time_s, point.bound_s) for point in result.trace if point.bound_s is not None]
    if not incumbent and not bound:
        raise InputError("this result has no trace of its search")
    figure, axes = canvas(axes, 7.0, 3.2)
    handles = []
    if incumbent:
        (line,) = axes.step(*zip(*incumbent, strict=True), where="post", color=INCUMBENT, linewidth=1.6)
        line.set_label("best plan (simulated)")
        handles.append(line)
    if bound:
        (line,) = axes.step(
            *zip(*bound, strict=True), where="post", color=BOUND, linewidth=1.6, linestyle=(0, (4, 1.2))
        )
        line.set_label("lower bound (proven)")
        handles.append(line)
    both = [p for p in result.trace if p.incumbent_s is not None and p.bound_s is not None]
    if both:
        axes.fill_between(
            [point.time_s for point in both],
            [point.bound_s or 0.0 for point in both],
            [point.incumbent_s or 0.0 for point in both],
            step="post",
            color=INK,
            alpha=0.08,
            linewidth=0.0,
        )
    times = [point.time_s for point in result.trace]
    first, last = min(times), max(times)
    if first > 0.0 and last / first > LOG_FROM:
        axes.set_xscale("log")
    if last > first:
        axes.set_xlim(first, last)
    else:  # a single moment is a dot, not a line
        for line in axes.lines:
            line.set_marker("o")
    axes.set_xlabel("seconds of search")
    axes.set_ylabel("seconds per iteration")
    closed = "" if result.gap is None else f": gap {percent(result.gap, 2)} at the end"
    title_of(axes, f"Search{closed}")
    legend_below(axes, handles)
    bare(axes, "top", "right")
    return figure
