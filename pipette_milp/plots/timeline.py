"""One iteration as rows of bars, one row per pipeline stage."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pipette_milp.assessment import timeline_of
from pipette_milp.errors import InputError, Problem
from pipette_milp.plots.style import (
    INK,
    LABEL_POINTS,
    PAPER,
    RED,
    bare,
    canvas,
    legend_below,
    title_of,
    width_of,
)
from pipette_milp.schedules.base import EXCHANGE, Exchange
from pipette_milp.schema.result import RankedPlan, SolveResult
from pipette_milp.simulator import Timeline
from pipette_milp.simulator.graph import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "forward": "#a8d8f8",
    "backward": "#e08a1e",
    "weight_gradient": "#00735c",
    "exchange": "#7f7f7f",
    "gradient_sync": "#5b3f8c",
    "embedding_sync": "#c77fb5",
    "optimizer": "#b9aed6",
    "parameter_gather": "#dcd6ea",
}
"""Lightness tells kinds that follow each other apart in print."""
DARK = frozenset({"weight_gradient"})
"""Numbers on these are white."""
CHARACTER_INCHES = 0.06
"""Width of a digit at :data:`LABEL_POINTS`; narrower bars stay without a number."""
ROW_INCHES = 0.45
BAR_INCHES = 0.22
"""Width given to a mean task, so that 32 micro-batches can be told apart."""
WIDEST_INCHES = 60.0
VECTOR_BARS = 4000
"""More bars than this become pixels in a vector file, which would be too large to open otherwise."""


def timeline(
    source: Timeline | SolveResult | RankedPlan,
    replica: int | None = None,
    title: str = "",
    *,
    window_s: tuple[float, float] | None = None,
    axes: Axes | None = None,
) -> Figure:
    """One row per pipeline stage of one replica, numbers are micro-batches, the critical path outlined.

    Without ``axes`` the width grows with the number of micro-batches. With virtual stages the shade tells
    the chunk. Grey is time in an exchange; white is waiting. ``fixed_s`` at the end is not drawn.

    Args:
        source: a simulated iteration, or a result or one of its plans, which is simulated again.
        replica: the one of the critical path if left out.
        window_s: draw this part of the iteration only.

    Raises:
        InputError: no such replica, an empty window, or a result without plan or durations.
    """
    run = source if isinstance(source, Timeline) else _simulated_again(source)
    count = run.finish_s.shape[1]
    if replica is None:
        replica = next(step.replica for step in run.path if step.replica is not None)
    if not 0 <= replica < count:
        raise InputError(Problem("replica", f"{replica}: expected 0 to {count - 1}"))
    graph = run.graph
    shown = (0.0, run.simulated_s - run.durations.fixed_s) if window_s is None else window_s
    if not shown[0] < shown[1]:
        raise InputError(Problem("window_s", f"{shown[0]:g} to {shown[1]:g} s: expected start before end"))
    tasks_per_stage = graph.num_tasks / graph.pipeline
    width = min(WIDEST_INCHES, max(8.0, BAR_INCHES * tasks_per_stage * 1.3))
    figure, axes = canvas(axes, width, 1.4 + ROW_INCHES * graph.pipeline)
    bars = _Bars(axes, shown)
    for stage in range(graph.pipeline):
        _add_stage(bars, run, stage, replica)
        _add_tail(bars, run, stage)
    bars.draw()
    axes.set_yticks(range(graph.pipeline), [f"stage {stage}" for stage in range(graph.pipeline)])
    axes.set_ylim(graph.pipeline - 0.4, -0.6)
    axes.set_xlim(*shown)
    axes.set_xlabel("seconds")
    title_of(
        axes, title or f"{graph.schedule}, {graph.transfers}: {run.simulated_s:.4g} s, replica {replica}"
    )
    legend_below(axes, _legend(run))
    bare(axes, "top", "right", "left")
    return figure


def _simulated_again(source: SolveResult | RankedPlan) -> Timeline:
    configuration = source.configuration if isinstance(source, RankedPlan) else None
    if isinstance(source, SolveResult) and source.plan is not None:
        configuration = source.plan.configuration
    if configuration is None or source.durations is None:
        raise InputError("a timeline needs a plan with its durations, this result has none")
    return timeline_of(configuration, source.durations)


class _Bars:
    """Bars inside the window, gathered by look, so that each look is one artist."""

    def __init__(self, axes: Axes, window_s: tuple[float, float]) -> None:
        self.axes = axes
        self.window_s = window_s
        self.inches_per_s = width_of(axes) / (window_s[1] - window_s[0])
        self.corners: dict[tuple[str, float, bool], list[list[tuple[float, float]]]] = defaultdict(list)
        self.labels: list[tuple[float, int, str, str]] = []

    def add(
        self,
        kind: str,
        stage: int,
        start_s: float,
        end_s: float,
        *,
        half_height: float = 0.4,
        alpha: float = 1.0,
        critical: bool = False,
        label: str = "",
    ) -> None:
        start_s, end_s = max(start_s, self.window_s[0]), min(end_s, self.window_s[1])
        if end_s <= start_s:
            return
        low, high = stage - half_height, stage + half_height
        corners = [(start_s, low), (end_s, low), (end_s, high), (start_s, high)]
        self.corners[kind, alpha, critical].append(corners)
        if label and (end_s - start_s) * self.inches_per_s > CHARACTER_INCHES * len(label):
            ink = PAPER if kind in DARK else "#000000"
            self.labels.append(((start_s + end_s) / 2, stage, label, ink))

    def draw(self) -> None:
        from matplotlib.collections import PolyCollection

        many = sum(map(len, self.corners.values())) > VECTOR_BARS
        for (kind, alpha, critical), corners in self.corners.items():
            self.axes.add_collection(
                PolyCollection(
                    corners,
                    facecolors=COLORS[kind],
                    alpha=alpha,
                    edgecolors=RED if critical else PAPER,
                    linewidths=1.1 if critical else 0.3,
                    zorder=3 if critical else 2,
                    rasterized=many,
                ),
                autolim=False,
            )
        for middle_s, stage, label, ink in self.labels:
            self.axes.text(
                middle_s, stage, label, ha="center", va="center", fontsize=LABEL_POINTS, color=ink, zorder=4
            )


def _add_stage(bars: _Bars, run: Timeline, stage: int, replica: int) -> None:
    graph = run.graph
    critical = {(step.kind, step.position, step.micro_batch) for step in run.path if step.replica == replica}
    for step in graph.program[stage]:
        if isinstance(step, Exchange):
            nodes = [graph.node(member) for member in step.members]
            keys = {
                (KINDS[graph.kind[node]], graph.position[node], graph.micro_batch[node]) for node in nodes
            }
            bars.add(
                "exchange",
                stage,
                float(run.start_s[nodes, replica].min()),
                float(run.end_s[nodes, replica].max()),
                half_height=0.18,
                critical=bool(keys & critical),
            )
            continue
        node = graph.node(step)
        kind = KINDS[graph.kind[node]]
        chunk = step.virtual_stage // graph.pipeline
        bars.add(
            kind,
            stage,
            float(run.start_s[node, replica]),
            float(run.end_s[node, replica]),
            alpha=1.0 - 0.55 * chunk / graph.virtual_stages,
            critical=(kind, step.virtual_stage, step.micro_batch) in critical,
            label=str(step.micro_batch),
        )


def _add_tail(bars: _Bars, run: Timeline, stage: int) -> None:
    durations = run.durations
    sync_start = float(run.finish_s[stage].max())
    parts = [("gradient_sync", sync_start, durations.gradient_sync_s[stage])]
    if stage in (0, run.graph.pipeline - 1):
        both = float(np.max(run.sync_end_s[[0, -1]]))
        parts.append(("embedding_sync", both, durations.embedding_sync_s))
    optimizer_s = durations.optimizer_s[stage]
    parts.append(("optimizer", run.step_start_s, optimizer_s))
    parts.append(("parameter_gather", run.step_start_s + optimizer_s, durations.parameter_gather_s[stage]))
    for kind, start_s, length_s in parts:
        bars.add(kind, stage, start_s, start_s + float(length_s))


def _legend(run: Timeline) -> list[object]:
    """A mark for every kind of time that this iteration has."""
    from matplotlib.patches import Patch

    durations = run.durations
    drawn = {
        "forward": True,
        "backward": True,
        "weight_gradient": run.graph.separates_weight_gradient,
        "exchange": run.graph.transfers == EXCHANGE and run.graph.pipeline > 1,
        "gradient_sync": durations.gradient_sync_s.any(),
        "embedding_sync": durations.embedding_sync_s > 0.0,
        "optimizer": durations.optimizer_s.any(),
        "parameter_gather": durations.parameter_gather_s.any(),
    }
    patches = [Patch(color=COLORS[kind], label=kind.replace("_", " ")) for kind in COLORS if drawn[kind]]
    patches.append(Patch(facecolor=PAPER, edgecolor=RED, label="critical path"))
    return [*patches, Patch(facecolor=PAPER, edgecolor=INK, linewidth=0.4, label="waiting")]
