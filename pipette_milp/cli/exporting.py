"""Command ``export``."""

from __future__ import annotations

from typing import Annotated

import typer

from pipette_milp.cli.common import command, tell


@command
def export(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="Launcher or model format; `list targets`.")
    ],
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The instance.")],
    result: Annotated[
        str,
        typer.Argument(
            metavar="RESULT", help="A result of `solve`, or a plan (configuration and placement)."
        ),
    ],
    directory: Annotated[str, typer.Option("--output", "-o", metavar="DIR", help="Made if it is not there.")],
    program: Annotated[
        str, typer.Option(help="Megatron's training program on the nodes.")
    ] = "pretrain_gpt.py",
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Of the first node, for the rendezvous.")
    ] = 29500,
    cores_per_gpu: Annotated[
        int, typer.Option(min=1, help="CPU cores that an Open MPI rank file binds to each rank.")
    ] = 4,
) -> None:
    """Write the files that launch a plan, or the optimisation model of its configuration.

    Every rank lands on its planned GPU or the export is refused; a script that each rank runs at start
    checks it.
    """
    from pathlib import Path

    from pipette_milp.cli.inputs import read_plan
    from pipette_milp.errors import InputError
    from pipette_milp.exporters import registry
    from pipette_milp.exporters.launch import LaunchOptions
    from pipette_milp.schema.output import write_text_atomically

    problem, plan = read_plan(result, instance)
    written = registry.export(target, problem, plan, LaunchOptions(program, port, cores_per_gpu))
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", source=directory) from None
    for name, text in written.files.items():
        write_text_atomically(folder / name, text)
        if name.endswith((".sh", ".py")):
            (folder / name).chmod(0o755)
    tell(f"wrote {', '.join(written.files)} to {directory}")
    for note in written.notes:
        tell(f"note: {note}")
