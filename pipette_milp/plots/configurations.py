"""All configurations of a search as a heat map, with the reason for every empty cell."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipette_milp.errors import InputError
from pipette_milp.plots.style import INK, LABEL_POINTS, RED, canvas, ink_on, legend_below, title_of
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import ConfigurationRecord, SolveResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Degree = Literal["pipeline", "tensor", "data", "micro_batch", "virtual_stages"]
SLOWEST_SHADE = 3.0
"""Times beyond this multiple of the best one share the last colour."""
LEAST_SHADES = 1.2
"""Smaller differences than this do not spread over all colours."""
MOST_LETTERS = 400
"""More cells than this stay without text."""
MEMORY = "M"
NOT_ALL_GPUS = "no such grid uses the GPUs there are"
LEGEND_CHARACTERS = 62


@dataclass(frozen=True)
class Cell:
    """What is known of all configurations with one pair of degrees."""

    best_s: float | None = None
    """Of the best plan found."""
    lower_bound_s: float | None = None
    """Least bound, where no plan was sought."""
    reason: str = ""
    """Why there is neither."""
    winner: bool = False


def grid(
    result: SolveResult, rows: Degree, columns: Degree
) -> tuple[list[int], list[int], dict[tuple[int, int], Cell]]:
    """Values of both degrees, and the cell of each pair.

    Values that occur in refusals of several at once only, such as all that divide nothing, get no cell.
    """
    records = [(_degrees(record), record) for record in result.configurations]
    row_values = sorted({degrees[rows] for degrees, _ in records if isinstance(degrees.get(rows), int)})
    column_values = sorted(
        {degrees[columns] for degrees, _ in records if isinstance(degrees.get(columns), int)}
    )
    groups: dict[tuple[Any, Any], list[ConfigurationRecord]] = {}
    for degrees, record in records:
        for row in _each(degrees.get(rows)):
            for column in _each(degrees.get(columns)):
                groups.setdefault((row, column), []).append(record)
    cells = {}
    for row in row_values:
        for column in column_values:
            # what was refused for one of the two degrees alone holds for all values of the other
            matching = [
                record
                for key in ((row, column), (row, None), (None, column), (None, None))
                for record in groups.get(key, [])
            ]
            cells[row, column] = _cell(matching)
    return row_values, column_values, cells


def configurations(
    result: SolveResult,
    *,
    rows: Degree = "pipeline",
    columns: Degree = "tensor",
    axes: Axes | None = None,
) -> Figure:
    """The best time of every pair of degrees over all else that may be chosen.

    A cell shows the seconds of its best plan, or ``≥ bound`` where the bound alone ruled it out, or a letter
    that stands for why there is nothing. The winner is framed.

    Raises:
        InputError: a result without configurations.
    """
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Patch, Rectangle

    row_values, column_values, cells = grid(result, rows, columns)
    if not row_values or not column_values:
        raise InputError("this result lists no configurations")
    figure, axes = canvas(axes, max(3.6, 1.2 + 0.55 * len(column_values)), 1.8 + 0.3 * len(row_values))
    letters = _letters(cells)
    times = [cell.best_s for cell in cells.values() if cell.best_s]
    norm = None
    if times:
        slowest = np.clip(max(times) / min(times), LEAST_SHADES, SLOWEST_SHADE)
        norm = LogNorm(min(times), slowest * min(times), clip=True)
    image = np.ones((len(row_values), len(column_values), 4))
    written = len(cells) <= MOST_LETTERS
    for (row, column), cell in cells.items():
        i, j = row_values.index(row), column_values.index(column)
        text, color = "", (0.94, 0.94, 0.94, 1.0)
        if cell.best_s is not None and norm is not None:
            color = colormaps["cividis"](float(norm(cell.best_s)))
            text = f"{cell.best_s:.3g}"
        elif cell.lower_bound_s is not None:
            text = f"≥ {cell.lower_bound_s:.3g}"
        else:
            text, color = letters[_kind(cell.reason)], (1.0, 1.0, 1.0, 1.0)
        image[i, j] = color
        if written:
            axes.text(j, i, text, ha="center", va="center", fontsize=LABEL_POINTS, color=ink_on(color))
        if cell.winner:
            axes.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=RED, linewidth=2.0, zorder=5)
            )
    axes.imshow(image, aspect="auto", interpolation="nearest")
    for edge in np.arange(0.5, len(row_values) - 1):
        axes.axhline(edge, color="#ffffff", linewidth=0.8)
    for edge in np.arange(0.5, len(column_values) - 1):
        axes.axvline(edge, color="#ffffff", linewidth=0.8)
    axes.set_xticks(range(len(column_values)), list(map(str, column_values)))
    axes.set_yticks(range(len(row_values)), list(map(str, row_values)))
    axes.set_xlabel(columns.replace("_", " "))
    axes.set_ylabel(rows.replace("_", " "))
    title_of(axes, "Seconds of the best plan")
    handles: list[Any] = []
    if any(cell.winner for cell in cells.values()):
        handles.append(Patch(facecolor="#ffffff", edgecolor=RED, linewidth=1.5, label="the best plan"))
    if any(cell.best_s is None and cell.lower_bound_s is not None for cell in cells.values()):
        handles.append(
            Patch(facecolor="#f0f0f0", edgecolor=INK, linewidth=0.4, label="≥ bound: ruled out by it")
        )
    handles += [_letter_mark(letter, _sentence(kind, cells)) for kind, letter in letters.items()]
    if handles:
        legend_below(axes, handles)
    return figure


def _degrees(record: ConfigurationRecord) -> Mapping[str, Any]:
    if isinstance(record.configuration, Configuration):
        return record.configuration.model_dump(include={*Degree.__args__})  # type: ignore[attr-defined]
    return record.configuration


def _each(value: Any) -> list[Any]:
    """A refusal may name several values of a degree."""
    return value if isinstance(value, list) else [value]


def _cell(records: list[ConfigurationRecord]) -> Cell:
    found = [record.best_s for record in records if record.best_s is not None]
    winner = any(record.status == "solved" and record.reason == "the best plan" for record in records)
    if found:
        return Cell(best_s=min(found), winner=winner)
    bounds = [
        record.lower_bound_s
        for record in records
        if record.status in ("bounded_out", "open") and record.lower_bound_s is not None
    ]
    if bounds:
        return Cell(lower_bound_s=min(bounds))
    if not records:
        return Cell(reason=NOT_ALL_GPUS)
    # one reason stands for all: memory says most, because the configuration is legal otherwise
    reasons = [record.reason for record in records]
    return Cell(reason=next((reason for reason in reasons if _is_memory(reason)), reasons[0]))


def _is_memory(reason: str) -> bool:
    return "memory" in reason


def _kind(reason: str) -> str:
    """Reasons that differ in their figures only are of one kind."""
    return "memory" if _is_memory(reason) else re.sub(r"\d+(, (\d+|\.\.\.))*", "n", reason)


def _letters(cells: dict[tuple[int, int], Cell]) -> dict[str, str]:
    """A letter for every kind of reason, M for memory."""
    kinds = dict.fromkeys(
        _kind(cell.reason) for cell in cells.values() if cell.best_s is None and cell.lower_bound_s is None
    )
    others = iter(letter for letter in "ABCDEFGHIJKLNOPQRSTUVWXYZ")
    return {kind: MEMORY if kind == "memory" else next(others, "?") for kind in sorted(kinds)}


def _sentence(kind: str, cells: dict[tuple[int, int], Cell]) -> str:
    """The reasons of a kind: the one there is, or the first with a word that there are others."""
    if kind == "memory":
        return "does not fit into memory"
    reasons = list(dict.fromkeys(cell.reason for cell in cells.values() if _kind(cell.reason) == kind))
    text = reasons[0] if len(reasons) == 1 else f"{reasons[0]}, and alike"
    return textwrap.fill(text, LEGEND_CHARACTERS)


def _letter_mark(letter: str, text: str) -> Any:
    from matplotlib.lines import Line2D

    mark = f"$\\mathrm{{{letter}}}$"
    return Line2D([], [], linestyle="none", marker=mark, color=INK, markersize=5.5, label=text)
