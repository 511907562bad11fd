"""The fit of what the memory model cannot read in sources: buffers of a communicator, and the copies of
activations that a framework keeps beside the tensors its products and norms need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.evaluate import memory_estimate
from pipette_milp.calibration.express import express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.fitted import Fitted, robust_deviation, subset_weights
from pipette_milp.calibration.least_squares import fit
from pipette_milp.calibration.parameters import (
    ACTIVATIONS,
    COMMUNICATOR,
    of_framework,
    value_of,
    with_values,
)
from pipette_milp.calibration.prepared import Prepared, prepared_run
from pipette_milp.calibration.runs import Run
from pipette_milp.schema.constants import CostConstants

COPYING = ("nanotron",)
"""Frameworks whose factor on activations is fitted. What Megatron keeps is read in its sources and in arXiv
2205.05198: a factor fitted to it is 1.01 +- 0.04."""


def with_memory(runs: Sequence[Run]) -> list[Prepared]:
    """Runs that can be expressed and whose memory figure says what it is."""
    found = []
    for run in runs:
        if not run.number("measured_peak_mem_gb") or not run.text("mem_metric") or run.status != "ok":
            continue
        try:
            found.append(prepared_run(express(run)))
        except Refused:
            continue
    return found


def memory_of(item: Prepared, constants: CostConstants) -> float:
    """The figure its source reports, in its unit."""
    stages = item.costs(constants).stage_memory(item.expressed.configuration)
    return memory_estimate(stages).memory(item.run.text("mem_metric"))


def fit_memory(
    runs: Sequence[Run],
    base: CostConstants,
    *,
    subset_weight: float,
    iterations: int = 8,
    progress: Callable[[str], None] | None = None,
) -> Fitted:
    """Fits them to the memory figures of runs; each subset counts alike."""
    prepared = with_memory(runs)
    profiles = [name for name in COPYING if any(item.profile == name for item in prepared)]
    parameters = [COMMUNICATOR, *(of_framework(profile, ACTIVATIONS) for profile in profiles)]
    names = [parameter.name for parameter in parameters]
    measured = np.log([item.run.number("measured_peak_mem_gb") or math.nan for item in prepared])
    weights = subset_weights(prepared, subset_weight)
    every = np.arange(len(prepared))
    affected = [every] + [np.flatnonzero([item.profile == name for item in prepared]) for name in profiles]

    def residuals(values: Array, rows: IntArray) -> Array:
        constants = with_values(base, names, values)
        return np.array([measured[row] - math.log(memory_of(prepared[row], constants)) for row in rows])

    result = fit(
        parameters,
        residuals,
        weights,
        affected,
        initial=[value_of(base, name) for name in names],
        iterations=iterations,
        progress=progress,
    )
    constants = with_values(base, names, result.values)
    return Fitted(constants, tuple(parameters), result, tuple(prepared), residuals(result.values, every))


def memory_deviation(found: Fitted) -> tuple[float, float]:
    """Robust deviation and mean of log(measured / estimated); each subset counts alike."""
    of_subset = found.errors_by_subset().values()
    medians = [float(np.median(errors)) for errors in of_subset]
    spreads = [robust_deviation(errors) for errors in of_subset]
    return float(np.mean(spreads or [0.0])), float(np.mean(medians or [0.0]))
