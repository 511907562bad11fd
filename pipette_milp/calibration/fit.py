"""The fit of the shipped constants: ``python -m pipette_milp.calibration.fit RUNS.csv -o constants.json``.

Every constant is shared: those of the GPU by all runs on its architecture, those of a framework by all
sources that used it. No figure belongs to a row, a model or a source. Each subset of the table counts alike,
whatever its size; of large subsets a fixed share of the rows is used (every k-th), which also leaves rows
that the fit never saw.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.least_squares import Fit, Parameter, fit
from pipette_milp.calibration.prepared import Prepared, prepare
from pipette_milp.calibration.runs import Run, RunTable, read_runs
from pipette_milp.schema.constants import CostConstants, default_constants
from pipette_milp.schema.output import write_text_atomically

ROWS_PER_SUBSET = 90
"""Rows of one subset the fit reads: more add time, not knowledge."""
SUBSET_WEIGHT = 40.0
"""What a subset counts in all, in rows: the priors weigh as one row each."""

GPU_PARAMETERS = (
    Parameter("matrix_efficiency.volta", 0.70, 0.45, 0.95, 0.3),
    Parameter("matrix_efficiency.turing", 0.45, 0.20, 0.80, 0.4),
    Parameter("matrix_efficiency.ampere", 0.80, 0.60, 0.95, 0.3),
    Parameter("matrix_efficiency.hopper", 0.70, 0.45, 0.90, 0.3),
    Parameter("matrix_efficiency.blackwell", 0.65, 0.40, 0.90, 0.3),
    Parameter("fp8_matrix_efficiency", 0.80, 0.50, 1.00, 0.3),
    Parameter("flash_efficiency", 0.60, 0.30, 1.00, 0.3),
    Parameter("memory_efficiency", 0.80, 0.60, 0.95, 0.1),
    Parameter("contraction_half", 64.0, 8.0, 512.0, 0.7),
    Parameter("misalignment", 0.04, 0.005, 0.25, 0.7),
    Parameter("kernel_s", 2e-6, 5e-7, 6e-6, 0.5),
)
"""The eleven fitted figures of GPUs, with their plausible ranges."""

FRAMEWORK_PARAMETERS = (
    Parameter("host_overhead_per_task_s", 3e-4, 1e-5, 4e-2, 1.5),
    Parameter("launch_s", 2e-5, 2e-6, 1e-4, 0.7),
    Parameter("elementwise_passes", 1.3, 0.4, 4.0, 0.5),
)
"""Those of every framework that has runs; Megatron's chunked overlap is the fourth where it is used."""
OVERLAP_PARAMETER = Parameter("tensor_overlap", 0.5, 0.05, 1.0, 0.5)


def parameters_of(prepared: Sequence[Prepared]) -> list[Parameter]:
    """What the runs can say something about."""
    profiles = dict.fromkeys(item.profile for item in prepared)
    overlapping = {item.profile for item in prepared if item.expressed.configuration.overlap.tensor > 0}
    architectures = {item.architecture for item in prepared}
    precisions = {item.expressed.instance.training.precision for item in prepared}
    found = [
        parameter
        for parameter in GPU_PARAMETERS
        if not parameter.name.startswith("matrix_efficiency.")
        or parameter.name.split(".")[1] in architectures
        if parameter.name != "fp8_matrix_efficiency" or "fp8" in precisions
    ]
    for profile in profiles:
        used = (*FRAMEWORK_PARAMETERS, *((OVERLAP_PARAMETER,) if profile in overlapping else ()))
        found += [
            Parameter(f"frameworks.{profile}.{item.name}", item.start, item.low, item.high, item.prior_sigma)
            for item in used
        ]
    return found


def with_values(base: CostConstants, names: Sequence[str], values: Sequence[float]) -> CostConstants:
    """Constants with the named figures replaced; a dotted name goes into a mapping."""
    data: dict[str, Any] = base.model_dump(mode="json")
    for name, value in zip(names, values, strict=True):
        *parents, last = name.split(".")
        target = data
        for part in parents:
            target = target[part]
        target[last] = float(value)
    return CostConstants.model_validate(data)


def touches(parameter: str, item: Prepared) -> bool:
    """Whether a constant can change the estimate of a run."""
    first, _, rest = parameter.partition(".")
    if first == "matrix_efficiency":
        return rest == item.architecture
    if first == "frameworks":
        return rest.rsplit(".", 1)[0] == item.profile
    training = item.expressed.instance.training
    if first == "fp8_matrix_efficiency":
        return training.precision == "fp8"
    if first == "flash_efficiency":
        return training.flash_attention
    return True


def thinned(runs: Sequence[Run], rows_per_subset: int = ROWS_PER_SUBSET) -> list[Run]:
    """Every k-th run of each subset, so that none has many more than ``rows_per_subset``.

    nanotron's runs below a tenth of the peak are left out: they ran across a congested network, which no
    constant of a GPU or a framework describes.
    """
    usable = [run for run in runs if not _congested(run)]
    sizes = Counter(run.subset for run in usable)
    seen: Counter[str] = Counter()
    chosen = []
    for run in usable:
        stride = math.ceil(sizes[run.subset] / rows_per_subset)
        if seen[run.subset] % stride == 0:
            chosen.append(run)
        seen[run.subset] += 1
    return chosen


def _congested(run: Run) -> bool:
    mfu = run.number("measured_mfu")
    return run.subset.startswith("nanotron") and (mfu is None or mfu < 0.10)


@dataclass(frozen=True)
class Fitted:
    """A fit of all constants."""

    constants: CostConstants
    parameters: tuple[Parameter, ...]
    result: Fit
    prepared: tuple[Prepared, ...]
    log_errors: Array
    """[n] log(measured / estimated) of the rows that were used."""


def fit_constants(
    prepared: Sequence[Prepared],
    base: CostConstants | None = None,
    *,
    iterations: int = 8,
    progress: Callable[[str], None] | None = None,
) -> Fitted:
    """Fits every constant that the runs say something about; the rest stays as in ``base``."""
    start = base or default_constants()
    parameters = parameters_of(prepared)
    names = [parameter.name for parameter in parameters]
    measured = np.log([item.run.number("measured_iter_time_s") or math.nan for item in prepared])
    sizes = Counter(item.run.subset for item in prepared)
    weights = np.array([min(1.0, SUBSET_WEIGHT / sizes[item.run.subset]) for item in prepared])
    affected = [np.flatnonzero([touches(name, item) for item in prepared]).astype(np.int64) for name in names]

    def residuals(values: Array, rows: IntArray) -> Array:
        constants = with_values(start, names, values)
        return np.array([measured[row] - math.log(prepared[row].time_s(constants)) for row in rows])

    result = fit(parameters, residuals, weights, affected, iterations=iterations, progress=progress)
    constants = with_values(start, names, result.values)
    errors = np.array(
        [value - math.log(item.time_s(constants)) for value, item in zip(measured, prepared, strict=True)]
    )
    return Fitted(constants, tuple(parameters), result, tuple(prepared), errors)
