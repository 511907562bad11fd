"""Commands ``schema`` and ``list``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipette_milp.cli.common import command
from pipette_milp.errors import InputError


@command
def schema(
    kind: Annotated[str, typer.Argument(metavar="[instance|plan|result]")] = "instance",
) -> None:
    """Print the JSON Schema of a file format."""
    from pipette_milp.schema.export import json_schema
    from pipette_milp.schema.output import write_json_atomically

    write_json_atomically("-", json_schema(kind))


@command
def list_registered(
    kind: Annotated[
        str | None, typer.Argument(metavar="[solvers|schedules|gpus|models|importers|targets]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """List solvers, schedules, presets of `init`, kinds of `import` and targets of `export`."""
    from pipette_milp.exporters.registry import TARGETS
    from pipette_milp.importers.registry import KINDS
    from pipette_milp.presets import presets
    from pipette_milp.schedules import SCHEDULES
    from pipette_milp.schema.output import write_json_atomically
    from pipette_milp.solvers import SOLVERS

    catalogue = {
        "solvers": list(SOLVERS),
        "schedules": list(SCHEDULES),
        "gpus": list(presets("gpu")),
        "models": list(presets("model")),
        "importers": list(KINDS),
        "targets": list(TARGETS),
    }
    if kind is not None and kind not in catalogue:
        raise InputError(f"there is no list of {kind!r}, choose from {', '.join(catalogue)}")
    wanted = catalogue if kind is None else {kind: catalogue[kind]}
    if as_json:
        write_json_atomically("-", wanted)
        return
    for title, names in wanted.items():
        if kind is None:
            typer.echo(f"{title}: {', '.join(names)}")
        else:
            typer.echo("\n".join(names))
