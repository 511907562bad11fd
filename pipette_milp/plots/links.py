"""Bandwidth of all node pairs, with the links that a plan uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cluster import Cluster
from pipette_milp.plots.style import (
    INK,
    LABEL_POINTS,
    PAPER,
    canvas,
    color_bar,
    legend_below,
    stage_colors,
    title_of,
    width_of,
)
from pipette_milp.plots.traffic import Source, hop_links, node_of_rank, plan_of, ring_links, tick_names
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODES_NAMED = 32
NODES_MARKED = 300
"""In larger clusters a mark would cover many links: only the order by stage is shown."""
LOG_FROM = 6.0
"""Spread of bandwidths from which the colours are logarithmic."""
STRIP = 0.055
"""Width of the strip of stages as a share of the matrix."""
GB = 1e9


def links(instance: Instance, source: Source | None = None, *, axes: Axes | None = None) -> Figure:
    """Row = sender, column = receiver, colour = bandwidth of the node pair with all cards together.

    With a plan the nodes are ordered by the stages they run (the strip on the left shows the stages of each
    node), circles are links that carry activations and their gradients, squares those of the rings that
    synchronise gradients.

    Raises:
        InputError: unmeasured links, or a result without plan.
        PlanError: the plan does not belong to this instance.
    """
    cluster = Cluster.of(instance)
    plan = None if source is None else plan_of(source)
    count = cluster.num_nodes
    figure, axes = canvas(axes, 6.2, 5.9 if count > 1 else 1.2)
    title_of(axes, "Links between nodes")
    if count == 1:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "one node: no links between nodes", ha="center", va="center", color=INK)
        return figure
    usable = {name: index for index, name in enumerate(cluster.node_names)}
    index_of = np.array([usable.get(node.name, -1) for node in instance.cluster.nodes], dtype=np.int64)
    nodes = None if plan is None else index_of[node_of_rank(instance, plan)]
    order = np.arange(count) if nodes is None else _order(nodes, count)
    bandwidth = np.where(np.eye(count, dtype=bool), np.nan, cluster.pair_bytes_per_s)[np.ix_(order, order)]
    _draw_matrix(figure, axes, bandwidth / GB)
    names = tick_names(cluster.node_names)
    if count <= NODES_NAMED:
        axes.set_xticks(range(count), [names[node] for node in order], rotation=90)
        axes.set_yticks(range(count), [names[node] for node in order])
    axes.set_xlabel("receiver")
    axes.set_ylabel("sender")
    if plan is not None and nodes is not None:
        _draw_plan(axes, plan, nodes, order)
    return figure


def _order(nodes: IntArray, count: int) -> IntArray:
    """Nodes by the stages they run, those of the same stages by their first replica, idle ones last.

    Args:
        nodes: [p, d, t]
    """
    keys: list[tuple[Any, ...]] = [((len(nodes),), 0, node) for node in range(count)]
    for node in range(count):
        stages, replicas, _ = np.nonzero(nodes == node)
        if len(stages):
            keys[node] = (tuple(sorted(set(stages.tolist()))), int(replicas.min()), node)
    return np.array(sorted(range(count), key=keys.__getitem__), dtype=np.int64)


def _draw_matrix(figure: Figure, axes: Axes, bandwidth: Array) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    low, high = float(np.nanmin(bandwidth)), float(np.nanmax(bandwidth))
    if high / low < 1.0 + 1e-9:
        axes.imshow(
            np.where(np.isnan(bandwidth), np.nan, 0.75), vmin=0.0, vmax=1.0, cmap="cividis", aspect="equal"
        )
        title_of(axes, f"Links between nodes: all {low:.3g} GB/s")
        return
    norm = LogNorm(low, high) if high / low > LOG_FROM else Normalize(low, high)
    image = axes.imshow(bandwidth, norm=norm, cmap=colormaps["cividis"], aspect="equal")
    color_bar(figure, axes, image, "GB/s, one direction")


def _draw_plan(axes: Axes, plan: Plan, nodes: IntArray, order: IntArray) -> None:
    """Marks on the links that the plan uses, and a strip with the stages of every node."""
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    count = len(order)
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    handles = []
    if count <= NODES_MARKED:
        size = float(np.clip(0.42 * 72.0 * 0.75 * width_of(axes) / count, 1.0, 11.0))
        kinds = (
            ("o", hop_links(nodes, wraps=plan.configuration.virtual_stages > 1), "stage to stage", 1.0),
            ("s", ring_links(nodes), "gradient ring", 1.7),
        )
        for marker, pairs, label, scale in kinds:
            if not pairs:
                continue
            sender, receiver = np.array(sorted(pairs)).T
            look: dict[str, Any] = {
                "marker": marker,
                "markersize": size * scale,
                "markerfacecolor": PAPER if marker == "o" else "none",
                "markeredgecolor": INK if marker == "o" else PAPER,
                "markeredgewidth": min(1.4, size / 5.0),
                "linestyle": "none",
                "path_effects": [] if marker == "o" else [withStroke(linewidth=2.6, foreground=INK)],
            }
            axes.plot(place[receiver], place[sender], rasterized=len(pairs) > 3000, **look)
            shown: dict[str, Any] = {
                **look,
                "markersize": 6.0,
                "markeredgecolor": INK,
                "markeredgewidth": 1.0,
            }
            handles.append(Line2D([], [], label=label, **shown))
    _draw_strip(axes, plan, nodes, order)
    axes.set_xlim(-0.5 - 1.3 * STRIP * count, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    for side in axes.spines.values():
        side.set_visible(False)
    if handles:
        longest = max((len(label.get_text()) for label in axes.get_xticklabels()), default=1)
        legend_below(axes, handles, more_points=0.6 * LABEL_POINTS * (longest - 1))


def _draw_strip(axes: Axes, plan: Plan, nodes: IntArray, order: IntArray) -> None:
    """Left of the matrix: the stages of every node, side by side in equal shares."""
    count, stages = len(order), plan.configuration.pipeline
    colors = stage_colors(stages)
    width = STRIP * count
    hosts = np.zeros((count, stages), dtype=bool)
    for stage in range(stages):
        hosts[np.unique(nodes[stage]), stage] = True
    slots = int(hosts.sum(axis=1).max())
    image = np.ones((count, slots, 4))
    for row, node in enumerate(order):
        hosted = np.flatnonzero(hosts[node])
        for slot in range(slots):
            if len(hosted):
                image[row, slot] = colors[hosted[slot * len(hosted) // slots]]
    axes.imshow(
        image,
        extent=(-0.5 - 1.2 * width, -0.5 - 0.2 * width, count - 0.5, -0.5),
        aspect="equal",
        interpolation="nearest",
    )
