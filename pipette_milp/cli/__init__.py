"""Command line. Every command loads what it needs when it runs, so that ``--help`` stays quick."""

from __future__ import annotations

import sys
from typing import Any

from pipette_milp.errors import ExitCode


def main(arguments: list[str] | None = None) -> None:
    """Runs one command and exits with a code of the outside contract."""
    from pipette_milp.cli import common

    words = sys.argv[1:] if arguments is None else list(arguments)
    # Accepted before and after the command's name alike.
    common.debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    common.constants = _taken(words, "--constants")
    try:
        _application()(args=words, prog_name="pipette-milp")
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)


def _taken(words: list[str], option: str) -> str | None:
    """Value of an option, which is taken out of the words; the last one counts."""
    value = None
    for index in reversed(range(len(words))):
        found: str | None = None
        if words[index].startswith(f"{option}="):
            found = words.pop(index).partition("=")[2]
        elif words[index] == option:
            found = words.pop(index + 1) if index + 1 < len(words) else ""
            words.pop(index)
        if found is not None and value is None:
            value = found
    return value


def _application() -> Any:
    """The `typer.Typer` with all commands."""
    import typer

    from pipette_milp.cli import (
        accuracy,
        calibrate,
        catalogue,
        compare,
        exporting,
        importing,
        init,
        inspect,
        measuring,
        proving,
        reporting,
        solve,
    )

    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def version(wanted: bool) -> None:
        if wanted:
            from pipette_milp import __version__

            typer.echo(__version__)
            raise typer.Exit

    @app.callback()
    def top(
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
        constants: str = typer.Option(
            "",
            "--constants",
            metavar="FILE",
            help="Constants of the cost model as `calibrate` writes them; with every command that estimates.",
        ),
        show_version: bool = typer.Option(
            False, "--version", callback=version, is_eager=True, help="Show the version and exit."
        ),
    ) -> None:
        """Best parallel training plan for a model on a GPU cluster, with a proof of how good it is.

        Exit codes: 0 plan found, 1 internal fault, 2 bad input, 3 proven infeasible, 4 nothing found within
        the limits, 5 verification failed, 130 interrupted with nothing to show.
        """

    app.command("init")(init.init)
    app.command("solve")(solve.solve)
    app.command("estimate")(inspect.estimate)
    app.command("simulate")(inspect.simulate)
    app.command("verify")(proving.verify)
    app.command("certify")(proving.certify)
    app.command("accuracy")(accuracy.accuracy)
    app.command("calibrate")(calibrate.calibrate)
    app.command("import")(importing.import_files)
    app.command("export")(exporting.export)
    app.command("compare")(compare.compare)
    app.command("report")(reporting.report)
    app.add_typer(measuring.measure, name="measure")
    app.command("replay")(measuring.replay)
    app.command("schema")(catalogue.schema)
    app.command("list")(catalogue.list_registered)
    return app
