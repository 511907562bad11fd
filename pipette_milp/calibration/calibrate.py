"""Constants from a user's own runs: two scales from any number of runs, physical figures where there are
enough.

The scales multiply compute times and activations. With at least `ENOUGH` timed runs the efficiency of
products, the launch time and the element-wise passes of the framework are fitted as well, around their
shipped values, and kept only if they predict runs they were not fitted on better than the scale does.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.evaluate import memory_estimate
from pipette_milp.calibration.express import Expressed, express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.least_squares import Parameter, fit
from pipette_milp.calibration.parameters import value_of, with_values
from pipette_milp.calibration.prepared import Prepared, prepared_run
from pipette_milp.calibration.runs import Run, RunTable
from pipette_milp.errors import InputError
from pipette_milp.schema.constants import OTHER_ARCHITECTURE, CostConstants, default_constants

SCALES = np.geomspace(0.4, 2.5, 37)
"""Grid of scales, 5 % apart; between them the logarithm of an estimate is interpolated."""
ENOUGH = 10
"""Timed runs from which on more than a scale is tried."""
FOLDS = 5
MOST = {"matrix_efficiency": 1.0, "launch_s": 2e-4, "elementwise_passes": 4.0}
"""Largest plausible values, see `CostConstants`."""


@dataclass(frozen=True)
class Errors:
    """Mean absolute relative errors: with the constants one began with, fitted, and on runs left out."""

    n: int
    before: float
    after: float
    cross_validated: float | None
    """None with fewer than three runs."""


@dataclass(frozen=True)
class Calibration:
    """What ``calibrate`` found."""

    constants: CostConstants
    fitted: dict[str, float]
    time: Errors | None
    memory: Errors | None
    refused: tuple[tuple[str, str], ...]
    """(run, reason)"""


def calibrate(
    table: RunTable, base: CostConstants | None = None, progress: Callable[[str], None] | None = None
) -> Calibration:
    """Fits constants to all runs of a table that can be expressed.

    Raises:
        InputError: no run has a time or a memory figure that can be compared.
    """
    constants = base or default_constants()
    expressed, refused = _express(table.runs)
    timed = [item for item in expressed if item.run.number("measured_iter_time_s")]
    remembered = [
        item for item in expressed if item.run.number("measured_peak_mem_gb") and item.run.text("mem_metric")
    ]
    if not timed and not remembered:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in refused))
        raise InputError(
            "no run has a measured time, or a memory figure with its mem_metric, that can be compared"
            + (f" ({reasons})" if reasons else ""),
            source=table.source,
        )
    fitted: dict[str, float] = {}
    time = memory = None
    if timed:
        constants, time = _fit_time([prepared_run(item) for item in timed], constants, fitted, progress)
    if remembered:
        scale, memory = _fit_scale(*_memory_grid([prepared_run(item) for item in remembered], constants))
        fitted["activation_scale"] = constants.activation_scale * scale
        constants = constants.model_copy(update={"activation_scale": fitted["activation_scale"]})
    residuals = constants.residuals.model_copy(
        update={
            name: found.cross_validated
            for name, found in (("time_sigma", time), ("memory_sigma", memory))
            if found is not None and found.cross_validated is not None
        }
    )
    provenance = {
        "calibrated": fitted,
        "date": datetime.date.today().isoformat(),
        "runs_sha256": table.sha256,
        "n": len(expressed),
        "from": constants.provenance,
    }
    constants = constants.model_copy(update={"residuals": residuals, "provenance": provenance})
    return Calibration(constants, fitted, time, memory, tuple(refused))


def _express(runs: Sequence[Run]) -> tuple[list[Expressed], list[tuple[str, str]]]:
    expressed, refused = [], []
    for run in runs:
        if run.status != "ok":
            refused.append((run.name, f"status {run.status}"))
            continue
        try:
            expressed.append(express(run))
        except (Refused, InputError) as error:
            refused.append((run.name, str(error)))
    return expressed, refused


def _fit_time(
    runs: list[Prepared],
    constants: CostConstants,
    fitted: dict[str, float],
    progress: Callable[[str], None] | None,
) -> tuple[CostConstants, Errors]:
    measured = np.log([item.run.number("measured_iter_time_s") or math.nan for item in runs])
    grid = np.empty((len(runs), SCALES.size))
    for column, scale in enumerate(SCALES):
        scaled = constants.model_copy(update={"time_scale": constants.time_scale * scale})
        grid[:, column] = [math.log(item.time_s(scaled)) for item in runs]
        if progress is not None:
            progress(f"time scale {column + 1} of {SCALES.size}")
    scale, errors = _fit_scale(measured, grid)
    by_scale = constants.model_copy(update={"time_scale": constants.time_scale * scale})
    if len(runs) >= ENOUGH:
        found = _fit_figures(runs, measured, constants, progress)
        if found is not None and errors.cross_validated is not None:
            values, after, validated = found
            if validated < errors.cross_validated:
                fitted.update(values)
                chosen = with_values(constants, list(values), list(values.values()))
                return chosen, Errors(errors.n, errors.before, after, validated)
    fitted["time_scale"] = by_scale.time_scale
    return by_scale, errors


def _memory_grid(runs: list[Prepared], constants: CostConstants) -> tuple[Array, Array]:
    measured = np.log([item.run.number("measured_peak_mem_gb") or math.nan for item in runs])
    grid = np.empty((len(runs), SCALES.size))
    for column, scale in enumerate(SCALES):
        scaled = constants.model_copy(update={"activation_scale": constants.activation_scale * scale})
        for row, item in enumerate(runs):
            stages = item.costs(scaled).stage_memory(item.expressed.configuration)
            estimate = memory_estimate(stages)
            grid[row, column] = math.log(estimate.memory(item.run.text("mem_metric")))
    return measured, grid


def _fit_scale(measured: Array, grid: Array) -> tuple[float, Errors]:
    """The scale with the least mean absolute relative error, and that error on runs left out one by one."""
    fine = np.geomspace(SCALES[0], SCALES[-1], 361)
    estimates = np.array([np.interp(np.log(fine), np.log(SCALES), row) for row in grid])
    errors = np.abs(np.exp(estimates - measured[:, None]) - 1.0)  # [n, scales]
    best = int(np.argmin(errors.mean(axis=0)))
    unit = int(np.argmin(np.abs(np.log(fine))))
    validated = None
    if measured.size >= 3:
        rest = (errors.sum(axis=0) - errors) / (measured.size - 1)  # [n, scales] mean over the other runs
        validated = float(errors[np.arange(measured.size), rest.argmin(axis=1)].mean())
    after = Errors(measured.size, float(errors[:, unit].mean()), float(errors[:, best].mean()), validated)
    return float(fine[best]), after


def _fit_figures(
    runs: list[Prepared],
    measured: Array,
    constants: CostConstants,
    progress: Callable[[str], None] | None,
) -> tuple[dict[str, float], float, float] | None:
    """Efficiency, launch time and passes of the runs' GPUs and frameworks; error after, error
    cross-validated."""
    known = constants.matrix_efficiency
    used = {name if name in known else OTHER_ARCHITECTURE for item in runs for name in item.architectures}
    names = [f"matrix_efficiency.{name}" for name in sorted(used)]
    for profile in dict.fromkeys(item.profile for item in runs):
        if profile in constants.frameworks:
            names += [f"frameworks.{profile}.launch_s", f"frameworks.{profile}.elementwise_passes"]
    parameters = []
    for name in names:
        value = value_of(constants, name)
        most = MOST[name.rpartition(".")[2] if name.startswith("frameworks.") else "matrix_efficiency"]
        if value > 0:
            parameters.append(Parameter(name, value, value / 3, min(3 * value, most), 0.3))
    names = [item.name for item in parameters]

    def fitted_on(rows: IntArray) -> Array:
        def residuals(values: Array, chosen: IntArray) -> Array:
            tried = with_values(constants, names, values)
            return np.array(
                [measured[rows[index]] - math.log(runs[rows[index]].time_s(tried)) for index in chosen]
            )

        every = np.arange(rows.size)
        return fit(parameters, residuals, np.ones(rows.size), [every] * len(parameters), iterations=3).values

    def errors(values: Array, rows: IntArray) -> Array:
        tried = with_values(constants, names, values)
        return np.array([abs(runs[row].time_s(tried) / math.exp(measured[row]) - 1.0) for row in rows])

    everything = np.arange(len(runs))
    validated = np.zeros(len(runs))
    for fold in range(FOLDS):
        if progress is not None:
            progress(f"cross-validation {fold + 1} of {FOLDS}")
        out = everything[everything % FOLDS == fold]
        validated[out] = errors(fitted_on(np.setdiff1d(everything, out)), out)
    values = fitted_on(everything)
    found = {name: float(value) for name, value in zip(names, values, strict=True)}
    return found, float(errors(values, everything).mean()), float(validated.mean())
