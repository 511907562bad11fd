"""Tables of a comparison as Markdown, for people, and CSV, for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from pipette_milp.experiments.engine import DONE
from pipette_milp.experiments.log import Record
from pipette_milp.experiments.statistics import (
    best_known,
    duel,
    excess,
    instances_of,
    median,
    profile,
    solvers_of,
    time_to_excess_s,
    time_to_gap_s,
)
from pipette_milp.schema.output import write_text_atomically

NEAR = 1e-3
"""As good as the best known plan."""
CLOSE = 1e-2
PROVEN = 1e-2
"""The gap whose proof is timed; the default of `solve`."""
RUN_FIELDS = (
    "instance",
    "instance_sha256",
    "solver",
    "seed",
    "status",
    "termination",
    "simulated_s",
    "lower_bound_s",
    "gap",
    "global_batch_size",
    "time_limit_s",
    "wanted_gap",
    "iteration_limit",
    "threads",
    "solve_wall_s",
    "cpu_s",
    "error",
)


class Table:
    """A heading for each column, and rows of text or numbers."""

    def __init__(self, headings: Sequence[str]) -> None:
        self.headings = list(headings)
        self.rows: list[list[object]] = []

    def add(self, *cells: object) -> None:
        """One row; one cell for every heading."""
        if len(cells) != len(self.headings):
            raise ValueError(f"{len(cells)} cells for {len(self.headings)} columns")
        self.rows.append(list(cells))

    def markdown(self) -> str:
        """Pipes and dashes, columns of even width; a missing figure is a dash."""
        lines = [self.headings, *([_cell(cell) for cell in row] for row in self.rows)]
        widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(self.headings))]
        lines.insert(1, ["-" * width for width in widths])
        return "".join(
            "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |\n"
            for line in lines
        )

    def csv(self) -> str:
        """Comma-separated, one heading line; a missing figure is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.headings)
        writer.writerows([["" if _missing(cell) else cell for cell in row] for row in self.rows])
        return text.getvalue()


def _missing(cell: object) -> bool:
    return cell is None or (isinstance(cell, float) and not math.isfinite(cell))


def _cell(cell: object) -> str:
    if _missing(cell):
        return "-"
    return str(cell).replace("|", "\\|")


def percent(share: float, digits: int = 2) -> str | None:
    """``0.0123`` as ``1.23 %``; None for what is not finite."""
    return f"{100 * share:.{digits}f} %" if math.isfinite(share) else None


def seconds(value: float, digits: int = 1) -> str | None:
    """With unit; None for what is not finite."""
    return f"{value:.{digits}f} s" if math.isfinite(value) else None


def by_instance(records: Sequence[Record]) -> Table:
    """One row for every instance and solver."""
    table = Table(
        [
            "instance",
            "solver",
            "runs",
            "with a plan",
            "best found",
            "median above best known",
            "worst above best known",
            f"median time to {percent(NEAR, 1)} above",
            "median proven gap",
            f"median time to prove {percent(PROVEN, 0)}",
        ]
    )
    best = best_known(records)
    for sha, name in instances_of(records).items():
        for solver in solvers_of(records):
            runs = [r for r in records if r["instance_sha256"] == sha and r["solver"] == solver]
            if not runs:
                continue
            above = [excess(run, best) for run in runs]
            found = [run["simulated_s"] for run in runs if run.get("simulated_s") is not None]
            gaps = [math.inf if run.get("gap") is None else run["gap"] for run in runs]
            table.add(
                name,
                solver,
                len(runs),
                len(found),
                f"{min(found):.4f} s" if found else None,
                percent(median(above)),
                percent(max(above)),
                seconds(median([time_to_excess_s(run, best, NEAR) for run in runs])),
                percent(median(gaps)),
                seconds(median([time_to_gap_s(run, PROVEN) for run in runs])),
            )
    return table


def by_solver(records: Sequence[Record], reference: str | None = None) -> Table:
    """One row for every solver; wins and losses are against the reference, by default the first solver."""
    solvers = solvers_of(records)
    reference = reference or solvers[0]
    table = Table(
        [
            "solver",
            "runs",
            "without a plan",
            f"within {percent(NEAR, 1)} of best known",
            f"within {percent(CLOSE, 0)}",
            "mean above best known",
            f"wins / ties / losses against {reference}",
            "share of wins, 95 % interval",
            f"proven to {percent(PROVEN, 0)}",
        ]
    )
    best = best_known(records)
    for solver in solvers:
        runs = [record for record in records if record["solver"] == solver]
        above = [excess(run, best) for run in runs]
        near, close = profile(above, [NEAR, CLOSE])
        finite = [value for value in above if math.isfinite(value)]
        result = duel(records, solver, reference)
        low, high = result.interval
        proven = sum(run.get("gap") is not None and run["gap"] <= PROVEN for run in runs)
        table.add(
            solver,
            len(runs),
            len(above) - len(finite),
            percent(near, 0),
            percent(close, 0),
            percent(sum(finite) / len(finite)) if finite else None,
            None if solver == reference else f"{result.wins} / {result.ties} / {result.losses}",
            None if result.decided == 0 else f"{percent(low, 0)} to {percent(high, 0)}",
            percent(proven / len(runs), 0),
        )
    return table


def run_table(records: Sequence[Record]) -> Table:
    """One row for every run, for programs."""
    table = Table(RUN_FIELDS)
    for record in records:
        table.add(*(record.get(field) for field in RUN_FIELDS))
    return table


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader of the tables should know: runs that were refused or failed, mixed environments."""
    found = []
    for record in records:
        if record["status"] != DONE:
            found.append(
                f"{record['solver']} on {record['instance']}, seed {record['seed']}: {record['status']}: "
                f"{record.get('error', '')}"
            )
    environments = [record["environment"] for record in records]
    for what in ("processor", "python", "revision", "compiled_kernels"):
        values = {str(environment.get(what)) for environment in environments}
        if len(values) > 1:
            found.append(f"runs differ in their {what.replace('_', ' ')}: {', '.join(sorted(values))}")
    return found


def conditions(records: Sequence[Record]) -> str:
    """One sentence: where and under which limits."""
    first = records[0]["environment"]
    limits = sorted({f"{record['time_limit_s']:g} s" for record in records})
    threads = sorted({record["threads"] for record in records})
    return (
        f"{len(records)} runs, at most {' or '.join(limits)} and {' or '.join(map(str, threads))} "
        f"process{'es' if threads != [1] else ''} each, seeds "
        f"{', '.join(map(str, sorted({record['seed'] for record in records})))}; {first['processor']}, "
        f"{first['cores']} cores, Python {first['python']}, revision {first['revision']}."
    )


def write_tables(records: Sequence[Record], directory: Path) -> None:
    """``comparison.md``, ``by_instance.csv``, ``by_solver.csv``, ``runs.csv``, each whole or not at all."""
    solver_table, instance_table = by_solver(records), by_instance(records)
    parts = [
        "# Comparison\n",
        conditions(records) + "\n",
        "Times are simulated; the best known plan of an instance is the best of all these runs.\n",
        solver_table.markdown(),
        instance_table.markdown(),
    ]
    remarks = notes(records)
    if remarks:
        parts.append("".join(f"* {remark}\n" for remark in remarks))
    write_text_atomically(directory / "comparison.md", "\n".join(parts))
    write_text_atomically(directory / "by_solver.csv", solver_table.csv())
    write_text_atomically(directory / "by_instance.csv", instance_table.csv())
    write_text_atomically(directory / "runs.csv", run_table(records).csv())
