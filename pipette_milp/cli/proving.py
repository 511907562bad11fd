"""Commands ``verify`` and ``certify``: what a result claims, checked, and proofs of its bound written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_milp.cli.common import Counted, answer_only, check_writable, command, tell
from pipette_milp.cli.inspect import AsJson, InstanceFile
from pipette_milp.errors import ExitCode, InputError

if TYPE_CHECKING:
    from pipette_milp.certificates import Certificate
    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.result import SolveResult
    from pipette_milp.verify import Report

CERTIFICATE_LIMIT_S = 600.0
"""For the proofs of a solve; `certify` takes another."""
ResultFile = Annotated[str, typer.Argument(metavar="RESULT", help="What `solve -o` wrote.")]


@command
def verify(
    instance: InstanceFile,
    result: ResultFile,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Proofs of the lower bound, as `solve --certificate` writes them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what a result claims from instance and plan alone, without a solver.

    Every claim is listed with how it was checked: recomputed, re-checked, or resting on a solver's word.
    Proofs of a certificate are checked by arithmetic; without one, small configurations are proven here.
    """
    from pipette_milp.certificates import Certificate
    from pipette_milp.cli.inputs import read_instance_of
    from pipette_milp.schema.output import write_json_atomically
    from pipette_milp.schema.result import SolveResult
    from pipette_milp.schema.strict import parse_json, read_text, validate
    from pipette_milp.verify import verify as run_verify

    value = parse_json(read_text(result), result)
    proofs = None if certificate is None else Certificate.from_json(read_text(certificate), certificate)
    try:
        loaded = validate(SolveResult, value, result)
    except InputError as error:
        if not (isinstance(value, dict) and {"instance_sha256", "termination"} <= set(value)):
            raise
        # a result, but one that cannot be: a bound above the objective, a negative gap
        tell(f"error: {error}")
        tell("verification failed")
        sys.exit(ExitCode.VERIFICATION_FAILED)
    try:
        checked = read_instance_of(instance, loaded)
    except InputError as error:
        if "another instance" not in str(error):
            raise
        tell(f"error: {error}")
        sys.exit(ExitCode.VERIFICATION_FAILED)
    with answer_only():
        report = run_verify(checked, loaded, proofs)
    if as_json:
        write_json_atomically("-", report.to_dict())
    else:
        _print(report)
    if not report.ok:
        tell("verification failed")
        sys.exit(ExitCode.VERIFICATION_FAILED)


def _print(report: Report) -> None:
    for claim in report.claims:
        verdict = "ok    " if claim.ok else "FAILED"
        detail = f": {claim.detail}" if claim.detail else ""
        typer.echo(f"{verdict}  {claim.how:<10}  {claim.claim}{detail}")


@command
def certify(
    instance: InstanceFile,
    result: ResultFile,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Certificate; - is standard output.")
    ],
    time_limit: Annotated[str, typer.Option(metavar="TIME", help='Seconds, or such as "10 min".')] = "600",
    threads: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Write proofs of a result's lower bound that `verify --certificate` checks without a solver."""
    from pipette_milp.cli.inputs import read_instance_of, seconds
    from pipette_milp.schema.result import load_result

    check_writable(output)
    limit_s = seconds(time_limit, "--time-limit")
    loaded = load_result(result)
    checked = read_instance_of(instance, loaded)
    with answer_only(quiet=quiet):
        found = certificate_of(checked, loaded, limit_s=limit_s, threads=threads, quiet=quiet)
    write_certificate(output, found, quiet=quiet)


def certificate_of(
    instance: Instance, result: SolveResult, *, limit_s: float, threads: int, quiet: bool
) -> Certificate:
    """Proofs of a result's bound, progress on standard error."""
    from pipette_milp.certificates import certify as run_certify

    counted = None if quiet else Counted("certificate: {done} of {total} configurations")
    return run_certify(instance, result, time_limit_s=limit_s, threads=threads, listener=counted)


def write_certificate(path: str, certificate: Certificate, *, quiet: bool) -> None:
    """Write the file, and say what it lacks."""
    from pipette_milp.schema.output import write_text_atomically

    write_text_atomically(path, certificate.to_json())
    if not quiet:
        missing = f", {certificate.unproven} without" if certificate.unproven else ""
        tell(f"certificate: {len(certificate.proofs)} configurations with a proof{missing}")
