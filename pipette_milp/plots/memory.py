"""Memory of every pipeline stage against what a GPU has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipette_milp.errors import InputError
from pipette_milp.plots.style import INK, LABEL_POINTS, RED, bare, canvas, legend_below, title_of
from pipette_milp.schema.evaluation import StageMemory
from pipette_milp.schema.result import RankedPlan, SolveResult
from pipette_milp.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[str, tuple[str, str]] = {
    "weights": ("#0b4f8a", ""),
    "gradients": ("#56b4e9", "////"),
    "optimizer": ("#cc79a7", "\\\\\\\\"),
    "activations": ("#e69f00", ""),
    "other": ("#bbbbbb", ""),
    "reserve, buffers, context": ("#f2f2f2", "xxx"),
}
MOST_LABELLED = 40
"""More stages than this share a tick."""


def memory(result: SolveResult | RankedPlan, *, axes: Axes | None = None) -> Figure:
    """A stacked bar for each stage, with lines at what is usable and at what a GPU has.

    The last part is what the device holds beyond the tensors: memory that the allocator keeps in reserve,
    communication buffers, the CUDA context.

    Raises:
        InputError: a result without a plan or its memory.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if result.memory is None:
        raise InputError("this result has no plan whose memory could be drawn")
    stages = result.memory.per_stage
    figure, axes = canvas(axes, 7.0, 1.4 + min(0.34 * len(stages), 9.0))
    lefts = [0.0] * len(stages)
    for name, (color, pattern) in LOOKS.items():
        sizes = [_gib(name, stage) for stage in stages]
        axes.barh(
            range(len(stages)), sizes, 0.7, lefts, color=color, hatch=pattern, edgecolor=INK, linewidth=0.4
        )
        lefts = [left + size for left, size in zip(lefts, sizes, strict=True)]
    limits = []
    for label, color, dashes, sizes in (
        ("usable", RED, "--", [stage.usable_bytes / GIB for stage in stages]),
        ("capacity", INK, "-", [stage.capacity_bytes / GIB for stage in stages]),
    ):
        # a line for each stage: nodes may have GPUs of several types
        rows = range(len(stages))
        axes.vlines(sizes, [row - 0.5 for row in rows], [row + 0.5 for row in rows], color, dashes, lw=1.2)
        known = sorted({f"{size:.3g}" for size in sizes}, key=float)
        limits.append(
            Line2D([], [], color=color, linestyle=dashes, label=f"{label}, {' or '.join(known)} GiB")
        )
    widest = max(stage.capacity_bytes for stage in stages) / GIB
    step = -(-len(stages) // MOST_LABELLED)
    axes.set_yticks(range(0, len(stages), step), [f"stage {stage}" for stage in range(0, len(stages), step)])
    if step == 1:
        for row, stage in enumerate(stages):
            text = f" {stage.peak_bytes / GIB:.3g}"
            over = stage.peak_bytes > stage.usable_bytes
            axes.text(
                lefts[row],
                row,
                text,
                va="center",
                fontsize=LABEL_POINTS + 0.5,
                color=RED if over else INK,
                bbox={"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.4, "alpha": 0.8},
            )
    axes.set_ylim(len(stages) - 0.45, -0.55)
    axes.set_xlim(0.0, max(widest, *lefts) * 1.06)
    axes.set_xlabel("GiB on the fullest GPU of the stage")
    title_of(axes, "Memory" if result.memory.fits else "Memory: does not fit")
    patches = [
        Patch(facecolor=color, hatch=pattern, edgecolor=INK, linewidth=0.4, label=name)
        for name, (color, pattern) in LOOKS.items()
    ]
    legend_below(axes, [*patches, *limits])
    bare(axes, "top", "right")
    return figure


def _gib(name: str, stage: StageMemory) -> float:
    """One part of a stage; what the device holds beyond the allocated tensors is the last part."""
    if name.startswith("reserve"):
        return max(0.0, stage.peak_bytes - stage.allocated_peak_bytes) / GIB
    return float(getattr(stage, f"{name}_bytes")) / GIB
