"""Command ``report``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pipette_milp.cli.common import answer_only, check_writable, command, tell
from pipette_milp.errors import ExitCode


@command
def report(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Instance file; - is standard input.")],
    result: Annotated[str, typer.Argument(metavar="RESULT", help="What `solve -o` wrote.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE.html", help="The page; - is standard output.")
    ],
) -> None:
    """Write one HTML file about a result that can be mailed: it loads nothing and runs no script.

    The result is verified on the way; a page about one that does not hold says so, and the exit code is 5.
    """
    from pathlib import Path

    from pipette_milp.cli.inputs import read_instance_of
    from pipette_milp.report.page import check_extras, html_report
    from pipette_milp.schema.output import write_text_atomically
    from pipette_milp.schema.result import load_result
    from pipette_milp.verify import verify

    check_extras()
    check_writable(output)
    loaded = load_result(result)
    checked = read_instance_of(instance, loaded)
    with answer_only():
        tell("verifying the result ...")
        checks = verify(checked, loaded)
        tell("drawing ...")
        page = html_report(
            checked,
            loaded,
            checks=checks,
            instance_file=Path(instance).name if instance != "-" else "instance.json",
            result_file=Path(result).name if result != "-" else "result.json",
        )
    write_text_atomically(output, page)
    if not checks.ok:
        tell(f"verification failed: {', '.join(claim.claim for claim in checks.failed)}")
        sys.exit(ExitCode.VERIFICATION_FAILED)
