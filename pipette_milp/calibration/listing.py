"""Every run beside its estimate, as CSV: for looking at what hurts."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from pipette_milp.calibration.accuracy import Judged
from pipette_milp.schema.output import write_text_atomically

COLUMNS = (
    "run_id",
    "subset",
    "measured_s",
    "estimated_s",
    "time_error",
    "measured_memory",
    "estimated_memory",
    "memory_error",
    "fits",
    "out_of_memory",
    "refused",
)


def write_listing(path: str, judged: Sequence[Judged]) -> None:
    """Writes the table, whole or not at all; memory in the unit of the run's ``mem_metric``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for item in judged:
        estimate, run = item.estimate, item.run
        metric = run.text("mem_metric")
        writer.writerow(
            [
                run.name,
                run.subset,
                run.text("measured_iter_time_s"),
                "" if estimate is None else f"{estimate.time_s:.6g}",
                _share(item.time_error),
                run.text("measured_peak_mem_gb"),
                f"{estimate.memory(metric):.6g}" if estimate is not None and metric else "",
                _share(item.memory_error),
                "" if estimate is None else str(estimate.fits).lower(),
                "" if item.out_of_memory is None else str(item.out_of_memory).lower(),
                item.reason,
            ]
        )
    write_text_atomically(path, text.getvalue())


def _share(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
