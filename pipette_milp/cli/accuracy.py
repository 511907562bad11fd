"""Command ``accuracy``: estimates against measured runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_milp.cli.common import Counted, answer_only, command, tell, warn

if TYPE_CHECKING:
    from pipette_milp.calibration.accuracy import SubsetAccuracy
    from pipette_milp.calibration.learned_memory import MemoryComparison


@command
def accuracy(
    runs: Annotated[str, typer.Argument(metavar="RUNS.csv", help="Measured runs; - is standard input.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    rows: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write every run beside its estimate as CSV.")
    ] = None,
    learned_memory: Annotated[
        bool,
        typer.Option(
            "--learned-memory",
            help="Also train Pipette's perceptron on the memory figures, cross-validated (extra: learned).",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Errors of time and memory estimates on measured runs, per subset.

    Columns: gpu_model, num_gpus, layers, hidden, heads, vocab, seq_len, micro_batch and global_batch are
    required, the rest has defaults (`calibration/runs.py` lists them). Rows that cannot be expressed are
    counted with their reasons.
    """
    from pipette_milp.calibration.accuracy import accuracy_table, judge
    from pipette_milp.calibration.runs import read_runs
    from pipette_milp.cli.common import check_writable
    from pipette_milp.cli.inputs import chosen_constants
    from pipette_milp.schema.output import write_json_atomically

    check_writable(rows)
    used = chosen_constants()
    table = read_runs(runs)
    if table.unknown_columns:
        warn([f"unknown columns are not read: {', '.join(table.unknown_columns)}"])
    with answer_only():
        counted, total = Counted("{done} of {total} runs"), len(table.runs)
        judged = judge(table.runs, used, None if quiet else lambda done: counted(done, total))
        learned: dict[str, MemoryComparison] = {}
        if learned_memory:
            from pipette_milp.calibration.learned_memory import compare_memory

            learned = compare_memory(judged, progress=None if quiet else tell)
    result = accuracy_table(judged)
    if rows is not None:
        from pipette_milp.calibration.listing import write_listing

        write_listing(rows, judged)
    if as_json:
        write_json_atomically("-", [_as_json(row, learned) for row in result])
    else:
        print_accuracy(result)
        if learned:
            print_learned_memory(learned)


def _as_json(row: SubsetAccuracy, learned: dict[str, MemoryComparison]) -> dict[str, Any]:
    """A row of the contract, with the comparison of memory estimators where it was asked for."""
    if not learned:
        return row.to_dict()
    compared = learned.get(row.subset)
    return {**row.to_dict(), "learned_memory": None if compared is None else compared.to_dict()}


def print_accuracy(rows: list[SubsetAccuracy]) -> None:
    """The table people read, and what was refused."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in (
        "subset",
        "n",
        "refused",
        "time MAPE",
        "median",
        "bias",
        "Spearman",
        "memory n",
        "MAPE",
        "bias",
    ):
        table.add_column(name, justify="left" if name == "subset" else "right", no_wrap=True)
    table.add_column("out of memory", no_wrap=True)
    for row in rows:
        oom = row.oom
        told = sum(oom.values())
        table.add_row(
            row.subset,
            str(row.n),
            str(row.refused or ""),
            percent(row.time_mape),
            percent(row.time_median_ape),
            percent(row.time_bias, signed=True),
            "" if row.time_spearman is None else f"{row.time_spearman:.3f}",
            str(row.memory_n or ""),
            percent(row.memory_mape),
            percent(row.memory_bias, signed=True),
            f"{oom['true_positive']} of {oom['true_positive'] + oom['false_negative']} found, "
            f"{oom['false_positive']} false"
            if told
            else "",
        )
    Console(file=sys.stdout, width=160, highlight=False).print(table)
    for row in rows[:-1]:
        for reason, count in row.refusals.items():
            if ":" not in row.subset:
                typer.echo(f"refused {count:4d} of {row.subset}: {reason}")


def print_learned_memory(learned: dict[str, MemoryComparison]) -> None:
    """Both memory estimators on the same held-out runs."""
    from rich.console import Console
    from rich.table import Table

    from pipette_milp.calibration.learned_memory import FOLDS, SMALL_GPUS

    typer.echo(
        f"\nMemory, analytic and learned (perceptron): {FOLDS} folds; then trained on at most {SMALL_GPUS} "
        "GPUs and judged on more; runs judged as not fitting, of those out of memory and of those that ran"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("subset", "n", "analytic", "learned", "bias", "more GPUs n", "analytic", "learned"):
        table.add_column(name, justify="left" if name == "subset" else "right", no_wrap=True)
    for name in ("out of memory: analytic", "learned", "ran: analytic", "learned"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in learned.items():
        table.add_row(
            name,
            str(row.n),
            percent(row.analytic_mape),
            percent(row.learned_mape),
            percent(row.learned_bias, signed=True),
            str(row.larger_n or ""),
            percent(row.larger_analytic_mape),
            percent(row.larger_learned_mape),
            f"{row.analytic_found} of {row.out_of_memory}",
            f"{row.learned_found} of {row.out_of_memory}",
            f"{row.analytic_false} of {row.fitted}",
            f"{row.learned_false} of {row.fitted}",
        )
    Console(file=sys.stdout, width=160, highlight=False).print(table)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as people write it, empty for None."""
    if value is None:
        return ""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"
