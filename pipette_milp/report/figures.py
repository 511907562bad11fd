"""Figures of a report: drawn narrow enough for a phone, as SVG in the address of an image.

SVG in an image cannot load or run anything, scales without loss, and follows the reader's light or dark
scheme by itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipette_milp import plots
from pipette_milp.assessment import timeline_of
from pipette_milp.errors import InputError
from pipette_milp.plots.configurations import grid
from pipette_milp.plots.placement import NODES_NAMED
from pipette_milp.plots.style import INK, PAPER
from pipette_milp.plots.traffic import plan_of
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.schema.wording import describe_configuration, peak_memory, percent, proof, shares
from pipette_milp.simulator import Timeline
from pipette_milp.units import Dimension, format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROW_INCHES = 3.9
"""374 CSS pixels at 96 an inch: what a screen of 400 leaves beside the margins."""
WIDE_INCHES = 9.6
PIXELS_PER_INCH = 150.0
"""Of what is stored as pixels inside a drawing: heat maps, very many bars."""
SCHEMES = (
    f"<style>:root{{--ink:{INK};--paper:{PAPER}}}"
    "@media (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#16191d}}</style>"
)
"""Colours of text, lines and empty areas; those of the dark scheme are the page's."""
NARROW_BATCHES, WIDE_BATCHES = 12, 48
"""Micro-batches that a timeline of either width can show; with more it shows the start and the end."""


Draw = Callable[[Instance, SolveResult], "Picture"]


@dataclass(frozen=True)
class Picture:
    """One figure as the template needs it."""

    source: str
    """``data:`` address"""
    alternative: str
    """What it shows, for those who cannot see it."""
    width: int
    """CSS pixels"""
    height: int
    wide_source: str = ""
    """Another drawing of the same for wide screens."""


def pictures(instance: Instance, result: SolveResult) -> dict[str, Picture | str]:
    """All figures by name; instead of one that the result has nothing for, the reason."""
    draws: dict[str, Draw] = {
        "breakdown": _breakdown,
        "placement": _placement,
        "memory": _memory,
        "timeline": _timeline,
        "links": _links,
        "convergence": _convergence,
        "configurations": _configurations,
    }
    made: dict[str, Picture | str] = {}
    for name, draw in draws.items():
        try:
            made[name] = draw(instance, result)
        except InputError as error:
            made[name] = str(error)
    return made


def _canvas(height_inches: float, width_inches: float = NARROW_INCHES) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def svg_address(figure: Figure) -> str:
    """A drawing as the address of an image; the same drawing gives the same address."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "pipette_milp", "svg.fonttype": "path"}):
        figure.savefig(
            text,
            format="svg",
            dpi=PIXELS_PER_INCH,
            facecolor="none",
            metadata={"Date": None, "Creator": None, "Type": None, "Format": None},
        )
    drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    start = drawing.index(">") + 1
    coloured = drawing[start:].replace(INK, "var(--ink)").replace(PAPER, "var(--paper)")
    whole = drawing[:start] + SCHEMES + coloured
    return "data:image/svg+xml;base64," + base64.b64encode(whole.encode()).decode()


def _picture(figure: Figure, alternative: str, wide: Figure | None = None) -> Picture:
    width, height = figure.get_size_inches()
    return Picture(
        source=svg_address(figure),
        alternative=alternative,
        width=round(96 * width),
        height=round(96 * height),
        wide_source="" if wide is None else svg_address(wide),
    )


def _convergence(instance: Instance, result: SolveResult) -> Picture:
    figure, axes = _canvas(2.9)
    plots.convergence(result, axes=axes)
    return _picture(figure, f"Incumbent and bound over the search; at the end: {proof(result)}.")


def _configurations(instance: Instance, result: SolveResult) -> Picture:
    rows, _, cells = grid(result, "pipeline", "tensor")
    figure, axes = _canvas(2.3 + 0.24 * len(rows))
    plots.configurations(result, axes=axes)
    known = [(cell.best_s, degrees) for degrees, cell in cells.items() if cell.best_s is not None]
    text = "Best time by pipeline and tensor degree."
    if known:
        best_s, (pipeline, tensor) = min(known)
        text += f" Least: {best_s:.4g} s at pipeline {pipeline}, tensor {tensor}."
    return _picture(figure, text)


def _breakdown(instance: Instance, result: SolveResult) -> Picture:
    figure, axes = _canvas(1.55 + 0.3 * max(1, len(result.plans)))
    plots.breakdown(result, axes=axes)
    parts = "" if result.breakdown is None else shares(result.breakdown.model_dump(), result.simulated_s or 1)
    return _picture(figure, f"Time of the busiest GPU of each plan. The best plan: {parts}.")


def _placement(instance: Instance, result: SolveResult) -> Picture:
    plan = plan_of(result)
    nodes = len(instance.cluster.nodes)
    figure, axes = _canvas(3.8 if nodes > NODES_NAMED else 1.1 + 0.2 * max(nodes, 2))
    plots.placement(instance, result, axes=axes)
    text = f"Stage and replica of every GPU on {nodes} nodes: {describe_configuration(plan.configuration)}."
    return _picture(figure, text)


def _memory(instance: Instance, result: SolveResult) -> Picture:
    if result.memory is None:
        raise InputError("this result has no memory of its plan")
    figure, axes = _canvas(1.6 + min(7.0, 0.26 * len(result.memory.per_stage)))
    plots.memory(result, axes=axes)
    return _picture(figure, f"Memory by stage: {peak_memory(result.memory)}.")


def _timeline(instance: Instance, result: SolveResult) -> Picture:
    plan = plan_of(result)
    if result.durations is None:
        raise InputError("this result has no durations of its plan")
    run = timeline_of(plan.configuration, result.durations)
    stages = plan.configuration.pipeline
    batches = plan.configuration.num_micro_batches
    figure = _timeline_figure(run, NARROW_INCHES, NARROW_BATCHES)
    wide = _timeline_figure(run, WIDE_INCHES, WIDE_BATCHES)
    path = "" if result.critical_path is None else shares(result.critical_path.model_dump(), run.simulated_s)
    text = f"Timeline of {stages} stages and {batches} micro-batches. Longest path: {path}."
    return _picture(figure, text, wide)


def _timeline_figure(run: Timeline, width_inches: float, most_batches: int) -> Figure:
    """The whole iteration, or its start and its end where it has too many micro-batches for the width."""
    from matplotlib.figure import Figure

    row_inches = 0.3 if run.graph.pipeline <= 8 else 0.2
    rows_inches = row_inches * run.graph.pipeline
    if run.graph.num_micro_batches <= 1.5 * most_batches:
        figure, axes = _canvas(1.4 + rows_inches, width_inches)
        plots.timeline(run, axes=axes)
        return figure
    end_s = run.simulated_s - run.durations.fixed_s
    part_s = end_s * most_batches / run.graph.num_micro_batches
    figure = Figure(figsize=(width_inches, 2.3 + 2 * rows_inches), layout="constrained")
    first, last = figure.subplots(2, 1)
    plots.timeline(run, title=f"The start of {run.simulated_s:.4g} s", window_s=(0.0, part_s), axes=first)
    first.get_legend().remove()
    first.set_xlabel("")
    plots.timeline(run, title="The end", window_s=(end_s - part_s, end_s), axes=last)
    return figure


def _links(instance: Instance, result: SolveResult) -> Picture:
    facts = link_facts(instance)
    if facts is None:
        raise InputError("one node: no links between nodes")
    figure, axes = _canvas(3.9)
    plots.links(instance, result, axes=axes)
    return _picture(figure, f"Bandwidth of all node pairs with the links of the plan: {facts}.")


def link_facts(instance: Instance) -> str | None:
    """Slowest, middle and fastest link with their spread; None on one node."""
    import numpy as np

    from pipette_milp.cluster import Cluster

    cluster = Cluster.of(instance)
    if cluster.num_nodes == 1:
        return None
    values = cluster.pair_bytes_per_s[~np.eye(cluster.num_nodes, dtype=bool)]
    low, middle, high = (
        format_quantity(float(value), Dimension.BANDWIDTH)
        for value in (values.min(), np.median(values), values.max())
    )
    if low == high:
        return f"all node pairs attain {low}"
    spread = percent(cluster.link_spread)
    return f"{low} to {high}, median {middle}, spread (deviation by mean) {spread}"
