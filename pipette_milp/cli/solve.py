"""Command ``solve``."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_milp.cli.common import answer_only, check_writable, command, tell, warn
from pipette_milp.errors import ExitCode, InputError

if TYPE_CHECKING:
    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.result import SolveResult


@command
def solve(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Instance file; - is standard input.")],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="RESULT", help="Write the result; - is standard output."),
    ] = None,
    solver: Annotated[str, typer.Option(help="A name of `list solvers`.")] = "auto",
    time_limit: Annotated[str, typer.Option(metavar="TIME", help='Seconds, or such as "2 min".')] = "60",
    gap: Annotated[
        float, typer.Option(help="Stop once no plan can be faster by more than this share.")
    ] = 0.01,
    iteration_limit: Annotated[int | None, typer.Option(min=1, help="For runs that repeat exactly.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: what the solver takes.")] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many of the best plans to report.")] = 5,
    baseline: Annotated[
        str | None, typer.Option(metavar="CONFIG|PLAN", help="What runs today, to compare with.")
    ] = None,
    assume_missing: Annotated[
        str | None,
        typer.Option(metavar="BANDWIDTH", help="What unmeasured node pairs attain, such as 15GB/s."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write proofs of the bound, which `verify` checks by arithmetic."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
) -> None:
    """Find the best plan, with a lower bound on what any plan can reach.

    Ctrl-C stops the search and keeps the best plan found so far.
    """
    from pipette_milp.cli.inputs import ASSUME_MISSING, read_baseline, read_instance, seconds
    from pipette_milp.cli.progress import Progress
    from pipette_milp.schema.output import write_text_atomically
    from pipette_milp.solvers import solve as run_solver
    from pipette_milp.solvers.interrupts import one_interrupt

    if not (math.isfinite(gap) and 0 <= gap < 1):
        raise InputError(f"expected a share from 0 up to 1, such as 0.01, got {gap}", source="--gap")
    limit_s = seconds(time_limit, "--time-limit")
    check_writable(output)
    check_writable(certificate)
    if certificate == "-":
        raise InputError("standard output is for the result; name a file", source="--certificate")
    checked = read_instance(instance, assume_missing)
    warn(checked.warnings)
    running = None if baseline is None else read_baseline(baseline, checked)
    with one_interrupt() as interrupts:
        with Progress(enabled=not quiet) as progress, answer_only(quiet=quiet):
            result = run_solver(
                checked,
                solver=solver,
                time_limit_s=limit_s,
                gap=gap,
                iteration_limit=iteration_limit,
                seed=seed,
                threads=threads,
                keep=keep,
                baseline=running,
                listener=progress,
            )
            interrupts.done()  # from here on there is an answer to lose
        if assume_missing is not None:
            assumed = checked_bandwidth(assume_missing)
            result = result.model_copy(
                update={
                    "settings": {**result.settings, ASSUME_MISSING: assumed},
                    "warnings": (
                        *result.warnings,
                        f"unmeasured node pairs were taken to attain {assume_missing}",
                    ),
                }
            )
        if output is not None:
            write_text_atomically(output, result.to_json())
        if as_json and output != "-":
            write_text_atomically("-", result.to_json())
        if not (quiet or as_json or output == "-"):
            from pipette_milp.cli.summary import print_summary

            print_summary(checked, result)
    if certificate is not None:
        _certify(checked, result, certificate, threads, quiet=quiet)
    code = exit_code(result)
    if code is ExitCode.INTERRUPTED:
        tell("interrupted, nothing to show")
    sys.exit(code)


def _certify(instance: Instance, result: SolveResult, path: str, threads: int | None, *, quiet: bool) -> None:
    """Prove what the search found, after its answer is out."""
    from pipette_milp.cli.proving import CERTIFICATE_LIMIT_S, certificate_of, write_certificate

    if result.plan is None or result.lower_bound_s is None:
        warn(["no certificate: nothing was proven"])
        return
    used = threads if threads is not None else int(str(result.settings["threads"]))
    with answer_only(quiet=quiet):
        found = certificate_of(instance, result, limit_s=CERTIFICATE_LIMIT_S, threads=used, quiet=quiet)
    write_certificate(path, found, quiet=quiet)


def checked_bandwidth(text: str) -> float:
    """bytes/s of an option that was read once before."""
    from pipette_milp.units import Dimension, parse_quantity

    return parse_quantity(text, Dimension.BANDWIDTH)


def exit_code(result: SolveResult) -> ExitCode:
    """What the shell sees of a result."""
    from pipette_milp.schema.result import Termination

    if result.termination is Termination.ERROR:
        return ExitCode.INTERNAL
    if result.plan is not None:
        return ExitCode.OK
    return {
        Termination.INFEASIBLE: ExitCode.INFEASIBLE,
        Termination.INTERRUPTED: ExitCode.INTERRUPTED,
    }.get(result.termination, ExitCode.NOTHING_FOUND)
