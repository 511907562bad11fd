"""Command ``calibrate``: constants of the cost model from one's own runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pipette_milp.cli.common import check_writable, command, tell, warn


@command
def calibrate(
    runs: Annotated[str, typer.Argument(metavar="RUNS.csv", help="Own runs, columns as for `accuracy`.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="CONSTANTS", help="Where to write; - is standard output.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print what changed as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Fit the cost model to measured runs, even to a single one; use the file with `--constants`.

    One run gives a scale of compute times and, with a memory figure, one of activations. Ten and more also
    give efficiency and host times, kept only where they predict left-out runs better.
    """
    from dataclasses import asdict

    from pipette_milp.calibration.calibrate import calibrate as run_calibration
    from pipette_milp.calibration.runs import read_runs
    from pipette_milp.cli.inputs import chosen_constants
    from pipette_milp.schema.output import write_json_atomically

    check_writable(output)
    table = read_runs(runs)
    if table.unknown_columns:
        warn([f"unknown columns are not read: {', '.join(table.unknown_columns)}"])
    found = run_calibration(table, chosen_constants(), None if quiet else tell)
    warn([f"{name} is left out: {reason}" for name, reason in found.refused])
    write_json_atomically(output, found.constants.model_dump(mode="json"))
    summary: dict[str, Any] = {
        "fitted": found.fitted,
        "time": None if found.time is None else asdict(found.time),
        "memory": None if found.memory is None else asdict(found.memory),
        "refused": len(found.refused),
    }
    if as_json and output != "-":
        write_json_atomically("-", summary)
        return
    say = tell if output == "-" else typer.echo
    for name, value in found.fitted.items():
        say(f"{name} = {value:.4g}")
    for kind in ("time", "memory"):
        errors = summary[kind]
        if errors is not None:
            validated = errors["cross_validated"]
            rest = (
                "too few runs to cross-validate"
                if validated is None
                else f"{100 * validated:.1f} % on runs left out"
            )
            say(
                f"{kind}: {errors['n']} runs, mean error {100 * errors['before']:.1f} % before, "
                f"{100 * errors['after']:.1f} % after, {rest}"
            )
