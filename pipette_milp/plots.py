"""Pictures. Needs matplotlib (extra ``plot``), imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipette_milp.errors import InputError, Problem
from pipette_milp.schedules.base import EXCHANGE, Exchange
from pipette_milp.simulator import Timeline
from pipette_milp.simulator.graph import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "forward": "#9ecae1",
    "backward": "#fdae6b",
    "weight_gradient": "#a1d99b",
    "exchange": "#969696",
    "gradient_sync": "#bcbddc",
    "embedding_sync": "#9e9ac8",
    "optimizer": "#dadaeb",
    "parameter_gather": "#c7c7e8",
}
CRITICAL_COLOR = "#d62728"
CHARACTER_INCHES = 0.055
"""Width of a digit at :data:`LABEL_POINTS`; narrower bars stay without a number."""
LABEL_POINTS = 6.0
LEGEND_ENTRY_INCHES = 1.8
ROW_INCHES = 0.45
BAR_INCHES = 0.22
"""Width given to a mean task, so that 32 micro-batches can be told apart."""


def timeline(timeline: Timeline, replica: int | None = None, title: str = "") -> Figure:
    """One row per pipeline stage of one replica, numbers are micro-batches, the critical path outlined.

    The width grows with the number of micro-batches. With virtual stages the shade tells the chunk. Grey
    is time in an exchange; white is waiting. ``fixed_s`` at the end is not drawn.

    Args:
        replica: the one of the critical path if left out.

    Raises:
        InputError: no such replica.
    """
    from matplotlib.figure import Figure

    count = timeline.finish_s.shape[1]
    if replica is None:
        replica = next(step.replica for step in timeline.path if step.replica is not None)
    if not 0 <= replica < count:
        raise InputError(Problem("replica", f"{replica}: expected 0 to {count - 1}"))
    graph = timeline.graph
    shown_s = timeline.simulated_s - timeline.durations.fixed_s
    tasks_per_stage = graph.num_tasks / graph.pipeline
    width = min(60.0, max(8.0, BAR_INCHES * tasks_per_stage * 1.3))
    figure = Figure(figsize=(width, 1.4 + ROW_INCHES * graph.pipeline), layout="constrained")
    axes = figure.add_subplot()
    inches_per_s = 0.95 * width / shown_s if shown_s > 0.0 else 0.0
    for stage in range(graph.pipeline):
        _draw_stage(axes, timeline, stage, replica, inches_per_s)
    axes.set_yticks(range(graph.pipeline), [f"stage {stage}" for stage in range(graph.pipeline)])
    axes.set_ylim(graph.pipeline - 0.4, -0.6)
    axes.set_xlim(0.0, shown_s)
    axes.set_xlabel("seconds")
    axes.set_title(
        title or f"{graph.schedule}, {graph.transfers}: {timeline.simulated_s:.4g} s, replica {replica}"
    )
    _legend(figure, timeline)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return figure


def _draw_stage(axes: Axes, timeline: Timeline, stage: int, replica: int, inches_per_s: float) -> None:
    graph = timeline.graph
    critical = {
        (step.kind, step.position, step.micro_batch) for step in timeline.path if step.replica == replica
    }
    for step in graph.program[stage]:
        if isinstance(step, Exchange):
            nodes = [graph.node(member) for member in step.members]
            start_s, end_s = timeline.start_s[nodes, replica].min(), timeline.end_s[nodes, replica].max()
            keys = {
                (KINDS[graph.kind[node]], graph.position[node], graph.micro_batch[node]) for node in nodes
            }
            edge = CRITICAL_COLOR if keys & critical else "none"
            axes.barh(stage, end_s - start_s, 0.35, start_s, color=COLORS["exchange"], edgecolor=edge)
            continue
        node = graph.node(step)
        start_s, end_s = timeline.start_s[node, replica], timeline.end_s[node, replica]
        kind = KINDS[graph.kind[node]]
        on_path = (kind, step.virtual_stage, step.micro_batch) in critical
        chunk = step.virtual_stage // graph.pipeline
        axes.barh(
            stage,
            end_s - start_s,
            0.8,
            start_s,
            color=COLORS[kind],
            alpha=1.0 - 0.55 * chunk / graph.virtual_stages,
            edgecolor=CRITICAL_COLOR if on_path else "white",
            linewidth=1.2 if on_path else 0.4,
            zorder=3 if on_path else 2,
        )
        label = str(step.micro_batch)
        if (end_s - start_s) * inches_per_s > CHARACTER_INCHES * len(label):
            middle = (start_s + end_s) / 2
            axes.text(middle, stage, label, ha="center", va="center", fontsize=LABEL_POINTS, zorder=4)
    _draw_tail(axes, timeline, stage)


def _draw_tail(axes: Axes, timeline: Timeline, stage: int) -> None:
    durations = timeline.durations
    sync_start = timeline.finish_s[stage].max()
    parts = [("gradient_sync", sync_start, durations.gradient_sync_s[stage])]
    if stage in (0, timeline.graph.pipeline - 1):
        both = max(timeline.sync_end_s[0], timeline.sync_end_s[-1])
        parts.append(("embedding_sync", both, durations.embedding_sync_s))
    optimizer_s = durations.optimizer_s[stage]
    parts.append(("optimizer", timeline.step_start_s, optimizer_s))
    parts.append(
        ("parameter_gather", timeline.step_start_s + optimizer_s, durations.parameter_gather_s[stage])
    )
    for kind, start_s, length_s in parts:
        if length_s > 0.0:
            axes.barh(stage, length_s, 0.8, start_s, color=COLORS[kind])


def _legend(figure: Figure, timeline: Timeline) -> None:
    """Names of what the picture shows, in rows that fit its width."""
    from matplotlib.patches import Patch

    durations = timeline.durations
    drawn = {
        "forward": True,
        "backward": True,
        "weight_gradient": timeline.graph.separates_weight_gradient,
        "exchange": timeline.graph.transfers == EXCHANGE and timeline.graph.pipeline > 1,
        "gradient_sync": durations.gradient_sync_s.any(),
        "embedding_sync": durations.embedding_sync_s > 0.0,
        "optimizer": durations.optimizer_s.any(),
        "parameter_gather": durations.parameter_gather_s.any(),
    }
    patches = [Patch(color=COLORS[kind], label=kind.replace("_", " ")) for kind in COLORS if drawn[kind]]
    patches.append(Patch(facecolor="white", edgecolor=CRITICAL_COLOR, label="critical path"))
    columns = max(1, min(len(patches), int(figure.get_figwidth() / LEGEND_ENTRY_INCHES)))
    figure.legend(handles=patches, loc="outside lower center", ncols=columns, frameon=False)
