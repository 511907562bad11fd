"""Which GPU of which node runs what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pipette_milp.plots.style import (
    INK,
    LABEL_POINTS,
    canvas,
    color_bar,
    ink_on,
    legend_below,
    stage_colors,
    title_of,
    width_of,
)
from pipette_milp.plots.traffic import GpuPlaces, Source, node_of_rank, plan_of, tick_names
from pipette_milp.schema.instance import Instance

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODES_NAMED = 40
"""Larger clusters are wrapped into columns, with a name at the top of each."""
STAGES_NAMED = 8
"""More stages get a colour bar."""
SHAPE = 1.2
"""Width by height of the wrapped picture."""
CHARACTER_INCHES = 0.062
IDLE = (1.0, 1.0, 1.0, 1.0)
EXCLUDED = (0.45, 0.45, 0.45, 1.0)


def placement(instance: Instance, source: Source, *, axes: Axes | None = None) -> Figure:
    """A row of squares for each node, a square for each GPU: its colour is the stage, its text
    ``stage:replica``.

    White GPUs are idle, grey ones excluded. With many nodes the text is left out.

    Raises:
        InputError: a result without plan.
        PlanError: the plan does not belong to this instance.
    """
    from matplotlib.patches import Patch

    plan = plan_of(source)
    node_of_rank(instance, plan)  # refuses a plan of another instance
    configuration = plan.configuration
    nodes = instance.cluster.nodes
    places = GpuPlaces.of(instance)
    most = max(node.gpus for node in nodes)
    rows = len(nodes) if len(nodes) <= NODES_NAMED else math.ceil(math.sqrt(len(nodes) * (most + 1) / SHAPE))
    columns = math.ceil(len(nodes) / rows)
    if columns == 1:
        figure, axes = canvas(axes, 1.4 + 0.55 * most, 1.2 + 0.27 * rows)
    else:
        figure, axes = canvas(axes, 7.0, 6.5)
    image = np.ones((rows, columns * (most + 1) - 1, 4))
    y = places.node % rows
    x = places.node // rows * (most + 1) + places.local
    image[y, x] = IDLE
    excluded = sorted(instance.cluster.excluded_gpu_ids())
    image[y[excluded], x[excluded]] = EXCLUDED
    colors = stage_colors(configuration.pipeline)
    gpus = np.array(plan.placement.gpu_of_rank)
    cell = np.arange(len(gpus)) // (configuration.tensor * configuration.context)
    stages, replicas = np.divmod(cell, configuration.data)
    image[y[gpus], x[gpus]] = np.array(colors)[stages]
    axes.imshow(image, aspect="auto", interpolation="nearest")
    widest = max(len(f"{stages.max()}:{replicas.max()}"), 3)
    if columns == 1 and width_of(axes) / most > CHARACTER_INCHES * widest:
        for gpu, stage, replica in zip(gpus, stages, replicas, strict=True):
            ink = ink_on(colors[stage])
            text = f"{stage}:{replica}"
            axes.text(x[gpu], y[gpu], text, ha="center", va="center", fontsize=LABEL_POINTS, color=ink)
    _frame(axes, [node.gpus for node in nodes], rows, most)
    names = tick_names([node.name for node in nodes])
    if columns == 1:
        axes.set_yticks(range(rows), names)
        axes.set_xticks(range(most))
        axes.set_xlabel("GPU of the node")
    else:
        axes.set_yticks([])
        starts = [column * (most + 1) for column in range(columns)]
        axes.set_xticks(starts, names[::rows], rotation=90)
        axes.set_xlabel(f"first of each column of {rows} nodes, {most} GPUs side by side")
    title_of(axes, "Placement, stage:replica" if columns == 1 else "Placement by stage")
    handles = []
    if configuration.pipeline <= STAGES_NAMED:
        handles = [Patch(color=color, label=f"stage {stage}") for stage, color in enumerate(colors)]
    else:
        _stage_bar(figure, axes, configuration.pipeline)
    if len(gpus) + len(excluded) < len(places.node):
        handles.append(Patch(facecolor="#ffffff", edgecolor=INK, linewidth=0.4, label="idle"))
    if excluded:
        handles.append(Patch(color=EXCLUDED, label="excluded"))
    if handles:
        longest = 1 if columns == 1 else max(map(len, names))
        legend_below(axes, handles, more_points=0.6 * LABEL_POINTS * (longest - 1))
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0.0)
    return figure


def _frame(axes: Axes, gpus_of_node: list[int], rows: int, most: int) -> None:
    """White lines between GPUs, or a frame around each node where they are too small for that."""
    from matplotlib.collections import LineCollection

    lines = []
    for node, gpus in enumerate(gpus_of_node):
        top, left = node % rows - 0.5, node // rows * (most + 1) - 0.5
        lines.append([(left, top), (left + gpus, top), (left + gpus, top + 1), (left, top + 1), (left, top)])
        if len(gpus_of_node) <= NODES_NAMED:
            lines += [[(left + k, top), (left + k, top + 1)] for k in range(1, gpus)]
    wide = len(gpus_of_node) <= NODES_NAMED
    axes.add_collection(
        LineCollection(
            lines,
            colors=INK,
            linewidths=0.4 if wide else 0.1,
            rasterized=not wide,
        ),
        autolim=False,
    )


def _stage_bar(figure: Figure, axes: Axes, stages: int) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    mappable = ScalarMappable(Normalize(-0.5, stages - 0.5), ListedColormap(stage_colors(stages)))
    color_bar(figure, axes, mappable, "stage")
