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

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.calibration.accuracy import LOW_MFU
from pipette_milp.calibration.fitted import Fitted, robust_deviation, subset_weights
from pipette_milp.calibration.least_squares import fit
from pipette_milp.calibration.memory_fit import fit_memory, memory_deviation
from pipette_milp.calibration.parameters import time_parameters, touches, with_shared_values, with_unseen
from pipette_milp.calibration.prepared import Prepared, prepare
from pipette_milp.calibration.runs import Run, RunTable, read_runs
from pipette_milp.schema.constants import CostConstants, Residuals, default_constants
from pipette_milp.schema.output import write_text_atomically

ROWS_PER_SUBSET = 20
"""Rows of one subset the fit of times reads, about: more add time, not knowledge."""
SUBSET_WEIGHT = 12.0
"""What a subset counts in all, in rows, whatever its size. A row that is off by the usual error weighs as
much as a prior that is off by its deviation."""
MEMORY_ROWS = 90
"""Rows of one subset the fit of memory reads: it is a hundred times faster."""
ITERATIONS = 12


def thinned(runs: Sequence[Run], rows_per_subset: int = ROWS_PER_SUBSET) -> list[Run]:
    """Every k-th run of each subset, so that none has many more than ``rows_per_subset``.

    Left out are nanotron's runs below a tenth of the peak, those with tensor groups over nodes, and ZeRO-3 of
    2021: they waited for a network that no constant of a GPU or a framework describes.
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
        return mfu is None or mfu < LOW_MFU or run.count("tp", 1) > run.count("gpus_per_node", 8)
    return run.subset == "megatron-sc21-zero3"


def fit_constants(
    prepared: Sequence[Prepared],
    base: CostConstants | None = None,
    *,
    iterations: int = ITERATIONS,
    progress: Callable[[str], None] | None = None,
    accepted: Callable[[CostConstants], None] | None = None,
) -> Fitted:
    """Fits every constant that the runs say something about, beginning at what was known before any run; the
    rest stays as in ``base``."""
    start = base or default_constants()
    parameters = time_parameters(prepared)
    names = [parameter.name for parameter in parameters]
    measured = np.log([item.run.number("measured_iter_time_s") or math.nan for item in prepared])
    weights = subset_weights(prepared, SUBSET_WEIGHT)
    affected = [np.flatnonzero([touches(name, item) for item in prepared]).astype(np.int64) for name in names]

    architectures = {name for item in prepared for name in item.architectures}

    def of(values: Array) -> CostConstants:
        return with_unseen(with_shared_values(start, names, values), architectures)

    def residuals(values: Array, rows: IntArray) -> Array:
        constants = of(values)
        return np.array([measured[row] - math.log(prepared[row].time_s(constants)) for row in rows])

    result = fit(
        parameters,
        residuals,
        weights,
        affected,
        iterations=iterations,
        progress=progress,
        accepted=None if accepted is None else lambda values: accepted(of(values)),
    )
    constants = of(result.values)
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
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
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
    memory = fit_memory(thinned(table.runs, MEMORY_ROWS), fitted.constants, subset_weight=SUBSET_WEIGHT)
    keep(with_provenance(fitted, memory, table))
    for line in report(fitted, memory):
        print(line)
    if options.leave_one_out:
        from pipette_milp.calibration.leave_one_out import leave_one_source_out  # which needs this module

        rows = leave_one_source_out(prepared, fitted, iterations=options.iterations, progress=tell)
        write_text_atomically(options.leave_one_out, json.dumps(rows, indent=2) + "\n")


def with_provenance(fitted: Fitted, memory: Fitted, table: RunTable) -> CostConstants:
    """The constants with their residuals and where they come from."""
    errors = {
        parameter.name: round(float(error), 3)
        for found in (fitted, memory)
        for parameter, error in zip(found.parameters, found.result.log_errors, strict=True)
    }
    sigma, ranking = deviations(fitted)
    provenance = {
        "fit": "python -m pipette_milp.calibration.fit",
        "date": datetime.date.today().isoformat(),
        "runs_sha256": table.sha256,
        "n": len(fitted.prepared),
        "n_by_subset": dict(Counter(item.run.subset for item in fitted.prepared)),
        "n_memory": len(memory.prepared),
        "n_memory_by_subset": dict(Counter(item.run.subset for item in memory.prepared)),
        "relative_standard_errors": errors,
    }
    memory_sigma, memory_bias = memory_deviation(memory)
    residuals = Residuals(
        time_sigma=sigma, ranking_sigma=ranking, memory_sigma=memory_sigma, memory_bias=memory_bias
    )
    return memory.constants.model_copy(update={"provenance": provenance, "residuals": residuals})


def deviations(fitted: Fitted) -> tuple[float, float]:
    """Robust deviation of one time estimate, and of the difference of two of one sweep; each subset counts
    alike."""
    by_sweep: dict[tuple[str, ...], list[float]] = {}
    for item, error in zip(fitted.prepared, fitted.log_errors, strict=True):
        key = tuple(item.run.text(name) for name in ("split_hint", "model_name", "num_gpus", "global_batch"))
        by_sweep.setdefault(key, []).append(float(error))
    single = [robust_deviation(errors) for errors in fitted.errors_by_subset().values()]
    within = [
        robust_deviation(np.array(errors) - np.median(errors))
        for errors in by_sweep.values()
        if len(errors) >= 5
    ]
    return float(np.median(single)), math.sqrt(2) * float(np.median(within or single))


def report(fitted: Fitted, memory: Fitted) -> list[str]:
    """Constants with their errors, and what is left per subset."""
    lines = []
    for found in (fitted, memory):
        for parameter, value, error in zip(
            found.parameters, found.result.values, found.result.log_errors, strict=True
        ):
            plausible = f"plausible {parameter.low:g} to {parameter.high:g}"
            lines.append(f"{parameter.name:50s} {value:10.4g} +- {100 * error:4.0f} %  {plausible}")
    return [*lines, "times:", *_left(fitted), "memory:", *_left(memory)]


def _left(found: Fitted) -> list[str]:
    lines = []
    for subset, log_errors in found.errors_by_subset().items():
        errors = np.exp(-log_errors) - 1.0
        lines.append(
            f"{subset:26s} n {errors.size:4d}  MAPE {100 * np.abs(errors).mean():5.1f} %  "
            f"median {100 * np.median(np.abs(errors)):5.1f} %  bias {100 * errors.mean():+6.1f} %"
        )
    return lines


if __name__ == "__main__":
    main()
