"""NeMo-style grid: a short list of configurations by model size, each tried, the fastest kept.

The grid is the one of NVIDIA's auto configurator for GPT-3 models (``NVIDIA/NeMo-Framework-Launcher``,
``auto_configurator/autoconfig/training_config.py``, tables for 80 and 40 GB). The 80 GB table is the one for
sequences of 2,048 tokens and serves other lengths too. Trials are our simulator in default rank order; a
trial that runs out of memory drops out, as it does there. The table ends at 1,100 billion parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipette_milp.baselines.choices import Choice, Option, Resources, judge, options
from pipette_milp.cost.build import CostModel

LARGE_MEMORY_BYTES = 60e9
"""GPUs from here on use the 80 GB table, smaller ones the 40 GB table."""


@dataclass(frozen=True)
class Grid:
    """What is tried for models of up to so many billion parameters."""

    up_to_billions: float
    tensor: tuple[int, ...]
    pipeline: tuple[int, int]
    """Least and most stages; they must divide the layers."""
    micro_batch: tuple[int, ...]
    model_parallel: tuple[int, int]
    """Least and most GPUs of one replica."""


_DEFAULT_80 = (1, 2, 3, 4, 6, 8)
_DEFAULT_40 = (1, 2, 4, 6, 8, 10, 12, 16)
GRID_80GB = (
    Grid(1.0, (1, 2), (1, 1), _DEFAULT_80, (1, 8)),
    Grid(8.0, (1, 2, 4), (1, 1), _DEFAULT_80, (1, 8)),
    Grid(13.0, (1, 2, 4, 8), (1, 1), _DEFAULT_80, (1, 8)),
    Grid(23.0, (1, 2, 4), (1, 4), (1, 2, 4), (4, 8)),
    Grid(45.0, (2, 4, 8), (1, 4), (1, 2, 4), (8, 32)),
    Grid(95.0, (2, 4, 8), (1, 8), (1, 2, 4, 8), (8, 64)),
    Grid(130.0, (2, 4, 8), (1, 16), (1, 2, 4, 8), (16, 128)),
    Grid(195.0, (8,), (4, 16), (1, 2, 4), (32, 256)),
    Grid(395.0, (8,), (8, 32), (1, 2, 4), (64, 512)),
    Grid(790.0, (8,), (8, 100), (1, 2, 4), (128, 1024)),
    Grid(1100.0, (8,), (16, 130), (1, 2, 4), (256, 2048)),
)
GRID_40GB = (
    Grid(1.0, (1, 2, 4), (1, 1), (1, 2, 4, 8), (1, 8)),
    Grid(4.0, (1, 2, 4, 8), (1, 1), (1, 2, 4, 8), (1, 8)),
    Grid(8.0, (2, 4, 8), (1, 2), (1, 2, 4), (2, 8)),
    Grid(13.0, (4, 8), (1, 4), (1, 2, 4), (4, 32)),
    Grid(23.0, (2, 4, 8), (1, 8), _DEFAULT_40, (8, 64)),
    Grid(45.0, (4, 8), (1, 12), (1, 2, 4), (16, 128)),
    Grid(95.0, (4, 8), (1, 16), (1, 2, 4), (16, 256)),
    Grid(130.0, (4, 8), (2, 26), (1, 2), (32, 512)),
    Grid(195.0, (4, 8), (2, 32), (1, 2), (64, 1024)),
    Grid(395.0, (4, 8), (4, 64), (1, 2), (128, 2048)),
    Grid(790.0, (4, 8), (8, 128), (1, 2), (256, 4096)),
    Grid(1100.0, (4, 8), (8, 192), (1, 2), (512, 8192)),
)


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """The grid by measured time, configurations that run out of memory last."""
    del resources
    grid = grid_of(costs)
    if grid is None:
        return
    tried = []
    for number, option in enumerate(options(costs)):
        choice = option.in_default_order() if in_grid(option, grid) else None
        if choice is not None:
            trial = judge(costs, choice)
            tried.append((not trial.fits, trial.simulated_s, number, choice))
    for _, simulated_s, _, choice in sorted(tried, key=lambda one: one[:3]):
        yield Choice(choice.configuration, choice.node_of_cell, simulated_s)


def grid_of(costs: CostModel) -> Grid | None:
    """The row of the table for this model and GPU; None for models beyond it."""
    billions = costs.transformer.parameters / 1e9
    table = GRID_80GB if costs.cluster.gpu.memory_bytes >= LARGE_MEMORY_BYTES else GRID_40GB
    return next((grid for grid in table if billions <= grid.up_to_billions), None)


def in_grid(option: Option, grid: Grid) -> bool:
    """Whether the grid tries this configuration."""
    configuration = option.configuration
    least, most = grid.pipeline
    low, high = grid.model_parallel
    return (
        option.even
        and configuration.tensor in grid.tensor
        and least <= configuration.pipeline <= most
        and configuration.micro_batch in grid.micro_batch
        and low <= configuration.tensor * configuration.pipeline <= high
    )
