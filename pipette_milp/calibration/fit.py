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
from pipette_milp.calibration.accuracy import LOW_MFU
from pipette_milp.calibration.evaluate import memory_estimate, stage_memory
from pipette_milp.calibration.express import express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.least_squares import Fit, Parameter, fit
from pipette_milp.calibration.prepared import Prepared, prepare
from pipette_milp.calibration.runs import Run, RunTable, read_runs
from pipette_milp.schema.constants import CostConstants, Residuals, default_constants
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
    Parameter("memory_efficiency", 0.80, 0.60, 0.95, 0.1),
    Parameter("contraction_half", 64.0, 8.0, 512.0, 0.7),
    Parameter("misalignment", 0.04, 0.005, 0.25, 0.7),
    Parameter("kernel_s", 2e-6, 5e-7, 6e-6, 0.5),
)
"""The ten fitted figures of GPUs, the eleventh is `facts.ATTAINED_FRACTIONS`, with their plausible ranges."""

LAUNCH = Parameter("launch_s", 2e-5, 2e-6, 1e-4, 0.7)
PASSES = Parameter("elementwise_passes", 1.3, 0.4, 4.0, 0.5)
ATTENTION = Parameter("attention_efficiency", 0.5, 0.2, 1.0, 0.3)
OVERLAP = Parameter("tensor_overlap", 0.5, 0.05, 1.0, 0.5)
"""Figures of a framework. Host time per task is no longer fitted (0.3 ms everywhere): no set of runs tells
it from launch times, its errors were as large as itself. Memory's ``activation_factor`` is the fourth where
it is not 1."""


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
        fused = any(
            item.expressed.instance.training.flash_attention for item in prepared if item.profile == profile
        )
        used = [
            LAUNCH,
            PASSES,
            *([ATTENTION] if fused else []),
            *([OVERLAP] if profile in overlapping else []),
        ]
        found += [
            Parameter(f"frameworks.{profile}.{item.name}", item.start, item.low, item.high, item.prior_sigma)
            for item in used
        ]
    return found


def with_values(base: CostConstants, names: Sequence[str], values: Sequence[float] | Array) -> CostConstants:
    """Constants with the named figures replaced; a dotted name goes into a mapping."""
    data: dict[str, Any] = base.model_dump(mode="json")
    for name, value in zip(names, values, strict=True):
        *parents, last = name.split(".")
        target = data
        for part in parents:
            target = target[part]
        target[last] = float(value)
    return CostConstants.model_validate(data)


def value_of(constants: CostConstants, name: str) -> float:
    """One figure by its dotted name."""
    value: Any = constants.model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    return float(value)


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
    return True


def thinned(runs: Sequence[Run], rows_per_subset: int = ROWS_PER_SUBSET) -> list[Run]:
    """Every k-th run of each subset, so that none has many more than ``rows_per_subset``.

    Left out are nanotron's runs below a tenth of the peak and ZeRO-3 of 2021: they waited for a network that
    no constant of a GPU or a framework describes.
    """
    usable = [run for run in runs if not _waits_for_the_network(run)]
    sizes = Counter(run.subset for run in usable)
    seen: Counter[str] = Counter()
    chosen = []
    for run in usable:
        stride = math.ceil(sizes[run.subset] / rows_per_subset)
        if seen[run.subset] % stride == 0:
            chosen.append(run)
        seen[run.subset] += 1
    return chosen


def _waits_for_the_network(run: Run) -> bool:
    mfu = run.number("measured_mfu")
    if run.subset.startswith("nanotron"):
        return mfu is None or mfu < LOW_MFU
    return run.subset == "megatron-sc21-zero3"


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
    accepted: Callable[[CostConstants], None] | None = None,
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

    result = fit(
        parameters,
        residuals,
        weights,
        affected,
        initial=[value_of(start, name) for name in names],
        iterations=iterations,
        progress=progress,
        accepted=None if accepted is None else lambda values: accepted(with_values(start, names, values)),
    )
    constants = with_values(start, names, result.values)
    errors = np.array(
        [value - math.log(item.time_s(constants)) for value, item in zip(measured, prepared, strict=True)]
    )
    return Fitted(constants, tuple(parameters), result, tuple(prepared), errors)


def main(arguments: list[str] | None = None) -> None:
    """Fits, reports, and writes the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", help="table of measured runs")
    parser.add_argument("-o", "--output", required=True, help="file for the constants")
    parser.add_argument("--rows", type=int, default=ROWS_PER_SUBSET, help="rows of one subset, about")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument(
        "--leave-one-out", metavar="FILE", help="also fit without each source, report to FILE"
    )
    options = parser.parse_args(arguments)
    table = read_runs(options.runs)

    def tell(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    prepared = prepare(thinned(table.runs, options.rows))
    tell(f"{len(prepared)} of {len(table.runs)} runs")

    def keep(constants: CostConstants) -> None:
        # an interrupted fit leaves its last point
        write_text_atomically(options.output, json.dumps(constants.model_dump(mode="json"), indent=2) + "\n")

    fitted = fit_constants(prepared, iterations=options.iterations, progress=tell, accepted=keep)
    constants = with_provenance(fitted, table)
    write_text_atomically(options.output, json.dumps(constants.model_dump(mode="json"), indent=2) + "\n")
    for line in report(fitted):
        print(line)
    if options.leave_one_out:
        rows = leave_one_source_out(prepared, fitted, progress=tell)
        write_text_atomically(options.leave_one_out, json.dumps(rows, indent=2) + "\n")


def with_provenance(fitted: Fitted, table: RunTable) -> CostConstants:
    """The constants with their residuals and where they come from."""
    errors = {
        parameter.name: round(float(error), 3)
        for parameter, error in zip(fitted.parameters, fitted.result.log_errors, strict=True)
    }
    sigma, ranking = deviations(fitted)
    provenance = {
        "fit": "python -m pipette_milp.calibration.fit",
        "date": datetime.date.today().isoformat(),
        "runs_sha256": table.sha256,
        "n": len(fitted.prepared),
        "n_by_subset": dict(Counter(item.run.subset for item in fitted.prepared)),
        "relative_standard_errors": errors,
    }
    memory_sigma, memory_bias = memory_deviation(thinned(table.runs), fitted.constants)
    residuals = Residuals(
        time_sigma=sigma, ranking_sigma=ranking, memory_sigma=memory_sigma, memory_bias=memory_bias
    )
    return fitted.constants.model_copy(update={"provenance": provenance, "residuals": residuals})


def deviations(fitted: Fitted) -> tuple[float, float]:
    """Robust deviation of one time estimate, and of the difference of two of one sweep; each subset counts
    alike."""
    by_subset: dict[str, list[float]] = {}
    by_sweep: dict[tuple[str, ...], list[float]] = {}
    for item, error in zip(fitted.prepared, fitted.log_errors, strict=True):
        by_subset.setdefault(item.run.subset, []).append(float(error))
        key = tuple(item.run.text(name) for name in ("split_hint", "model_name", "num_gpus", "global_batch"))
        by_sweep.setdefault(key, []).append(float(error))
    single = [1.4826 * float(np.median(np.abs(errors))) for errors in by_subset.values()]
    within = [
        1.4826 * float(np.median(np.abs(np.array(errors) - np.median(errors))))
        for errors in by_sweep.values()
        if len(errors) >= 5
    ]
    return float(np.median(single)), math.sqrt(2) * float(np.median(within or single))


def memory_deviation(runs: Sequence[Run], constants: CostConstants) -> tuple[float, float]:
    """Robust deviation and mean of log(measured / estimated) of the memory figures; each subset counts
    alike."""
    by_subset: dict[str, list[float]] = {}
    for run in runs:
        measured, metric = run.number("measured_peak_mem_gb"), run.text("mem_metric")
        if not measured or not metric:
            continue
        try:
            expressed = express(run)
        except Refused:
            continue
        estimated = memory_estimate(stage_memory(expressed, constants)).memory(metric)
        by_subset.setdefault(run.subset, []).append(math.log(measured / estimated))
    medians = [float(np.median(errors)) for errors in by_subset.values()]
    spreads = [1.4826 * float(np.median(np.abs(errors))) for errors in by_subset.values()]
    return float(np.mean(spreads or [0.0])), float(np.mean(medians or [0.0]))


def report(fitted: Fitted) -> list[str]:
    """Constants with their errors, and what is left per subset."""
    lines = []
    for parameter, value, error in zip(
        fitted.parameters, fitted.result.values, fitted.result.log_errors, strict=True
    ):
        plausible = f"plausible {parameter.low:g} to {parameter.high:g}"
        lines.append(f"{parameter.name:50s} {value:10.4g} +- {100 * error:4.0f} %  {plausible}")
    by_subset: dict[str, list[float]] = {}
    for item, error in zip(fitted.prepared, fitted.log_errors, strict=True):
        by_subset.setdefault(item.run.subset, []).append(math.exp(-error) - 1.0)
    for subset, errors in by_subset.items():
        array = np.array(errors)
        lines.append(
            f"{subset:26s} n {array.size:4d}  MAPE {100 * np.abs(array).mean():5.1f} %  "
            f"median {100 * np.median(np.abs(array)):5.1f} %  bias {100 * array.mean():+6.1f} %"
        )
    return lines


def leave_one_source_out(
    prepared: Sequence[Prepared],
    fitted: Fitted,
    *,
    iterations: int = 3,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Errors on each source by constants fitted without it: as they are, and after one scale factor.

    A framework that only this source used has no profile then: it gets Megatron's, as any unknown framework.
    """
    rows = []
    all_errors = np.asarray(fitted.log_errors)
    for source in dict.fromkeys(item.run.source for item in prepared):
        inside = np.array([item.run.source == source for item in prepared])
        rest = [item for item, left_out in zip(prepared, inside, strict=True) if not left_out]
        own = {item.profile for item in prepared if item.run.source == source}
        orphaned = own - {item.profile for item in rest}
        architectures = {item.architecture for item in prepared if item.run.source == source}
        unseen = architectures - {item.architecture for item in rest}
        base = fitted.constants
        without = fit_constants(rest, base, iterations=iterations)
        data = without.constants.model_dump(mode="json")
        for profile in orphaned:
            data["frameworks"].pop(profile, None)
            data["frameworks"].setdefault("megatron", base.frameworks["megatron"].model_dump(mode="json"))
        for architecture in unseen:
            data["matrix_efficiency"].pop(architecture, None)
        constants = CostConstants.model_validate(data)
        errors = np.array(
            [
                math.log(item.run.number("measured_iter_time_s") or math.nan)
                - math.log(item.time_s(constants))
                for item, left_out in zip(prepared, inside, strict=True)
                if left_out
            ]
        )
        row = {
            "source": source,
            "n": int(inside.sum()),
            "fitted_mape": _mape(all_errors[inside]),
            "left_out_mape": _mape(errors),
            "left_out_mape_one_scale": _mape(errors - np.median(errors)),
            "own_framework_only": sorted(orphaned),
            "own_architecture_only": sorted(unseen),
        }
        rows.append(row)
        if progress is not None:
            progress(json.dumps(row))
    return rows


def _mape(log_errors: Array) -> float:
    return float(np.abs(np.exp(-log_errors) - 1.0).mean())


if __name__ == "__main__":
    main()
