"""The fit of what the memory model cannot read in sources: buffers of a communicator, and the copies of
activations that a framework keeps beside the tensors its products and norms need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.evaluate import memory_estimate
from pipette_milp.calibration.express import express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.least_squares import Fit, Parameter, fit
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


@dataclass(frozen=True)
class MemoryFit:
    """The figures of memory."""

    constants: CostConstants
    parameters: tuple[Parameter, ...]
    result: Fit
    prepared: tuple[Prepared, ...]
    log_errors: Array
    """[n] log(measured / estimated)"""


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
) -> MemoryFit:
    """Fits them to the memory figures of runs; each subset counts alike."""
    prepared = with_memory(runs)
    profiles = [name for name in COPYING if any(item.profile == name for item in prepared)]
    parameters = [COMMUNICATOR, *(of_framework(profile, ACTIVATIONS) for profile in profiles)]
    names = [parameter.name for parameter in parameters]
    measured = np.log([item.run.number("measured_peak_mem_gb") or math.nan for item in prepared])
    sizes = Counter(item.run.subset for item in prepared)
    weights = np.array([subset_weight / sizes[item.run.subset] for item in prepared])
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
    return MemoryFit(constants, tuple(parameters), result, tuple(prepared), residuals(result.values, every))


def memory_deviation(found: MemoryFit) -> tuple[float, float]:
    """Robust deviation and mean of log(measured / estimated); each subset counts alike."""
    by_subset: dict[str, list[float]] = {}
    for item, error in zip(found.prepared, found.log_errors, strict=True):
        by_subset.setdefault(item.run.subset, []).append(float(error))
    medians = [float(np.median(errors)) for errors in by_subset.values()]
    spreads = [1.4826 * float(np.median(np.abs(errors))) for errors in by_subset.values()]
    return float(np.mean(spreads or [0.0])), float(np.mean(medians or [0.0]))
