"""What all pictures share: axes or a new figure, colours, legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipette_milp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1b1b"
"""Text and lines."""
PAPER = "#ffffff"
RED = "#d62728"
"""What the reader must not miss: critical path, usable memory."""
STAGE_MAP = "cividis"
"""Perceptually even, for colour-blind readers too: C. Nunez et al., PLoS ONE 13(7), 2018."""
LABEL_POINTS = 6.5
LEGEND_POINTS = 7.5
TITLE_POINTS = 9.5
MARGINS_INCHES = 0.75
"""What labels left of the axes usually take."""
LEGEND_MARK_INCHES = 0.38
"""Room for the mark of an entry of a legend and the gap to the next one."""
LEGEND_CHARACTER_INCHES = 0.055
"""Mean width of a character at :data:`LEGEND_POINTS`."""


def canvas(axes: Axes | None, width_inches: float, height_inches: float) -> tuple[Figure, Axes]:
    """The axes to draw on and their figure; a new figure of the size asked for where none are given.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError("pictures need matplotlib: pip install 'pipette_milp[plot]'") from None
    if axes is None:
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        axes = figure.add_subplot()
    else:
        figure = figure_of(axes)
    axes.tick_params(labelsize=LABEL_POINTS + 0.5, colors=INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(fontsize=LABEL_POINTS + 1, color=INK)
    for spine in axes.spines.values():
        spine.set_edgecolor(INK)
    return figure, axes


def figure_of(axes: Axes) -> Figure:
    """The whole figure that axes are part of.

    Raises:
        InputError: they were taken out of it.
    """
    figure = axes.get_figure(root=True)
    if figure is None:
        raise InputError("these axes belong to no figure")
    return figure


def width_of(axes: Axes) -> float:
    """Inches from the left to the right end of axes, estimated before the layout has set its margins."""
    figure, place = figure_of(axes), axes.get_subplotspec()
    if figure.get_layout_engine() is None or place is None:
        return float(axes.get_window_extent().width / figure.dpi)
    share = len(place.colspan) / place.get_gridspec().ncols
    return max(1.0, float(figure.get_figwidth()) * share - MARGINS_INCHES)


def title_of(axes: Axes, text: str) -> None:
    """A title that starts where the axes start."""
    axes.set_title(text, fontsize=TITLE_POINTS, loc="left", color=INK)


def bare(axes: Axes, *sides: str) -> None:
    """Takes lines around the axes away."""
    for side in sides:
        axes.spines[side].set_visible(False)


def legend_below(axes: Axes, handles: Sequence[Any], *, more_points: float = 0.0) -> None:
    """A legend under the axes and their label, in as many columns as fit.

    Args:
        more_points: how much longer the tick labels are than one line of text.
    """
    from matplotlib.transforms import ScaledTranslation

    figure = figure_of(axes)
    below_points = more_points + (28.0 if axes.get_xlabel() else 16.0)
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
    entry_inches = LEGEND_MARK_INCHES + LEGEND_CHARACTER_INCHES * longest
    columns = max(1, min(len(handles), int((width_of(axes) + MARGINS_INCHES / 2) / entry_inches)))
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, -below_points / 72.0, figure.dpi_scale_trans),
        borderaxespad=0.0,
        ncols=columns,
        frameon=False,
        fontsize=LEGEND_POINTS,
        labelcolor=INK,
        columnspacing=1.2,
        handlelength=1.4,
    )


def color_bar(figure: Figure, axes: Axes, mappable: Any, label: str) -> None:
    """A colour bar right of the axes, as high as what is drawn in them."""
    bar = figure.colorbar(mappable, cax=axes.inset_axes((1.03, 0.1, 0.035, 0.8)))
    bar.set_label(label, fontsize=LABEL_POINTS + 1, color=INK)
    bar.ax.tick_params(labelsize=LABEL_POINTS, which="both", colors=INK)
    bar.outline.set_edgecolor(INK)


def stage_colors(stages: int) -> list[tuple[float, float, float, float]]:
    """A colour for each stage, from dark to light."""
    from matplotlib import colormaps

    steps = max(stages - 1, 1)
    return [colormaps[STAGE_MAP](0.08 + 0.87 * stage / steps) for stage in range(stages)]


def ink_on(color: tuple[float, float, float, float]) -> str:
    """Black or white, whichever reads better on a colour."""
    red, green, blue, _ = color
    # relative luminance as in WCAG 2.1, with its exponent rounded
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "#000000" if light > 0.18 else "#fefefe"
