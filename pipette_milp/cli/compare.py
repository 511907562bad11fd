"""Command ``compare``."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_milp.cli.common import answer_only, command, tell, warn
from pipette_milp.errors import ExitCode, InputError

if TYPE_CHECKING:
    from pipette_milp.experiments.engine import Workers
    from pipette_milp.experiments.log import Record


@command
def compare(
    instances: Annotated[list[str], typer.Argument(metavar="INSTANCE...", help="Instance files.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIRECTORY", help="Log of runs, tables and pictures.")
    ],
    solvers: Annotated[
        str, typer.Option(metavar="A,B", help="Names of `list solvers`; the first is the reference.")
    ] = "auto,local-search,annealing,greedy",
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Numbers, or a range such as 0-9.")] = "0",
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help='For every run: seconds, or such as "2 min".')
    ] = "60",
    gap: Annotated[float, typer.Option(help="A run stops once it has proven this gap.")] = 0.01,
    iteration_limit: Annotated[int | None, typer.Option(min=1, help="For runs that repeat exactly.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Processes a single run may use.")] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: the cores divided by --threads.")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help='A Dask scheduler, or "local" for a cluster on this machine.'),
    ] = None,
    assume_missing: Annotated[
        str | None,
        typer.Option(metavar="BANDWIDTH", help="What unmeasured node pairs attain, such as 15GB/s."),
    ] = None,
    pictures: Annotated[bool, typer.Option(help="Draw, where matplotlib is installed.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all records as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables.")] = False,
) -> None:
    """Run solvers on instances with several seeds, and compare what they find and prove.

    Finished runs are kept in the directory: the same command goes on where it was stopped or killed.
    """
    from pipette_milp.cli.inputs import read_instance, seconds
    from pipette_milp.experiments.comparison import compare as run_comparison
    from pipette_milp.experiments.solve_runs import Limits, plan_runs
    from pipette_milp.schema.output import write_json_atomically

    if not (math.isfinite(gap) and 0 <= gap < 1):
        raise InputError(f"expected a share from 0 up to 1, such as 0.01, got {gap}", source="--gap")
    limits = Limits(seconds(time_limit, "--time-limit"), gap, iteration_limit, threads)
    read = [read_instance(path, assume_missing) for path in instances]
    for instance in read:
        warn([f"{instance.name}: {text}" for text in instance.warnings])
    planned = plan_runs(read, _names(solvers), _numbers(seeds), limits)
    workers = _workers(jobs, threads, dask)

    def told(record: Record, finished: int, total: int) -> None:
        if not quiet:
            tell(f"[{finished}/{total}] {_outcome(record)}")

    try:
        with answer_only(quiet=quiet):
            records = run_comparison(planned, output, workers=workers, listener=told, pictures=pictures)
    except KeyboardInterrupt:
        tell(f"interrupted; finished runs are kept in {output}: the same command goes on from there")
        sys.exit(ExitCode.INTERRUPTED)
    if as_json:
        write_json_atomically("-", records)
    elif not quiet:
        _print_tables(records, output)
    sys.exit(_exit_code(records))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    """``0,1,4-6`` as numbers."""
    found: list[int] = []
    for part in _names(text):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise InputError(f"expected numbers such as 0,1,2 or 0-9, got {text!r}", source="--seeds")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _workers(jobs: int | None, threads: int, dask: str | None) -> Workers:
    """As many runs at a time as the cores allow, one where joblib is missing and nobody asked for more."""
    import importlib.util

    from pipette_milp.experiments.engine import Workers

    if jobs is None:
        jobs = max(1, (os.cpu_count() or 1) // threads)
        if jobs > 1 and dask is None and importlib.util.find_spec("joblib") is None:
            tell("one run at a time: pip install 'pipette_milp[compare]' for several")
            jobs = 1
    return Workers(jobs, dask)


def _outcome(record: Record) -> str:
    text = f"{record['solver']} on {record['instance']}, seed {record['seed']}: "
    if record["status"] != "done":
        return text + f"{record['status']}: {record['error']}"
    if record["simulated_s"] is None:
        return text + f"{record['termination']}, {record['wall_s']:.1f} s"
    text += f"{record['simulated_s']:.4f} s"
    if record["gap"] is not None:
        text += f", gap {record['gap']:.2%}"
    return text + f", {record['wall_s']:.1f} s"


def _print_tables(records: list[Record], output: str) -> None:
    from pipette_milp.experiments.tables import by_solver, notes

    typer.echo(by_solver(records).markdown())
    for note in notes(records):
        typer.echo(note)
    typer.echo(f"tables and pictures: {output}")


def _exit_code(records: list[Record]) -> ExitCode:
    """Comparisons with something to compare end well."""
    if any(record["status"] == "done" for record in records):
        return ExitCode.OK
    return (
        ExitCode.BAD_INPUT if all(record["status"] == "refused" for record in records) else ExitCode.INTERNAL
    )
