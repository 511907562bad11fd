"""Where the time of an iteration goes, a bar for each of the best plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pipette_milp.errors import InputError
from pipette_milp.plots.style import INK, LABEL_POINTS, bare, canvas, legend_below, title_of, width_of
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import SolveResult
from pipette_milp.schema.wording import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[str, tuple[str, str]] = {
    "compute_s": ("#0b4f8a", ""),
    "tensor_comm_s": ("#f0e442", "////"),
    "pipeline_comm_s": ("#7f7f7f", ""),
    "bubble_s": ("#ffffff", ""),
    "gradient_sync_s": ("#d55e00", ""),
    "optimizer_s": ("#cc79a7", "\\\\\\\\"),
    "fixed_s": ("#dddddd", "xxx"),
}
"""Colour and pattern of each part; M. Okabe and K. Ito's palette, darkened where two are equally light."""
LEAST_SHARE = 1e-3
"""Parts of less than this share of every bar are too thin to need a name."""
CHARACTER_INCHES = 0.065


def breakdown(
    result: SolveResult,
    *,
    of: Literal["breakdown", "critical_path"] = "breakdown",
    axes: Axes | None = None,
) -> Figure:
    """Stacked bars of seconds: the best plan first, then those that came next.

    Args:
        of: the timeline of the GPU with least idle time, or the longest path.

    Raises:
        InputError: a result without plans.
    """
    from matplotlib.patches import Patch

    rows = [(_label(plan.configuration), getattr(plan, of), plan.simulated_s) for plan in result.plans]
    if not rows and result.plan is not None and result.simulated_s is not None:
        rows = [(_label(result.plan.configuration), getattr(result, of), result.simulated_s)]
    known = [(label, parts.model_dump(), total) for label, parts, total in rows if parts is not None]
    if not known:
        raise InputError("this result has no plan whose time is broken down")
    figure, axes = canvas(axes, 7.0, 1.1 + 0.36 * len(known))
    longest = max(total for _, _, total in known)
    room_inches = width_of(axes)
    drawn = []
    for row, (_, parts, total) in enumerate(known):
        left = 0.0
        for key, (color, pattern) in LOOKS.items():
            seconds = parts.get(key, 0.0)
            if seconds <= 0.0:
                continue
            if seconds > LEAST_SHARE * total:
                drawn.append(key)
            axes.barh(row, seconds, 0.66, left, color=color, hatch=pattern, edgecolor=INK, linewidth=0.4)
            left += seconds
        text = f" {total:.4g} s"
        axes.text(left, row, text, va="center", fontsize=LABEL_POINTS + 0.5, color=INK)
    axes.set_yticks(range(len(known)), [label for label, _, _ in known])
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlim(0.0, longest * (1.0 + CHARACTER_INCHES * 9 / room_inches))
    axes.set_xlabel("seconds per iteration")
    title_of(axes, "Busiest GPU" if of == "breakdown" else "Longest path")
    legend_below(
        axes,
        [
            Patch(facecolor=color, hatch=pattern, edgecolor=INK, linewidth=0.4, label=PARTS[key])
            for key, (color, pattern) in LOOKS.items()
            if key in drawn
        ],
    )
    bare(axes, "top", "right")
    return figure


def _label(configuration: Configuration) -> str:
    parts: list[Any] = [f"p{configuration.pipeline}", f"t{configuration.tensor}", f"d{configuration.data}"]
    return " ".join([*parts, f"b{configuration.micro_batch}"])
