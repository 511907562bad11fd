"""The launch files of a plan, short enough for a report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from pipette_milp.errors import InputError
from pipette_milp.exporters import registry
from pipette_milp.exporters.launch import ARGUMENTS
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

LAUNCHERS = {"slurm": "Slurm", "torchrun": "torchrun", "openmpi": "Open MPI"}
MOST_LINES = 60
MOST_CHARACTERS = 600
"""Of a line: host lists of large clusters are left to the exported files."""


@dataclass(frozen=True)
class Launcher:
    """One way to start the plan."""

    name: str
    command: str
    """Writes the files."""
    refusal: str = ""
    """Why this launcher cannot express the plan, if it cannot."""
    notes: tuple[str, ...] = ()
    script_name: str = ""
    script: str = ""
    other_files: tuple[str, ...] = field(default=())


def launchers(
    instance: Instance, plan: Plan, instance_file: str, result_file: str
) -> tuple[list[Launcher], str]:
    """The launchers and the framework's arguments, which all of them share.

    Args:
        instance_file, result_file: names for the commands.
    """
    found, arguments = [], ""
    for target, name in LAUNCHERS.items():
        files = shlex.join([instance_file, result_file])
        command = f"python -m pipette_milp export {target} {files} -o launch-{target}/"
        try:
            exported = registry.export(target, instance, plan)
        except InputError as error:
            found.append(Launcher(name, command, refusal=str(error)))
            continue
        arguments = arguments or exported.files[ARGUMENTS]
        script = next(file for file in exported.files if file.startswith("launch"))
        found.append(
            Launcher(
                name,
                command,
                notes=exported.notes,
                script_name=script,
                script=shortened(exported.files[script]),
                other_files=tuple(file for file in exported.files if file != script),
            )
        )
    return found, shortened(arguments)


def shortened(text: str) -> str:
    """At most `MOST_LINES` lines of `MOST_CHARACTERS`; what is left out is said."""
    lines = text.splitlines()
    kept = [
        line
        if len(line) <= MOST_CHARACTERS
        else f"{line[:MOST_CHARACTERS]} … {len(line) - MOST_CHARACTERS:,} more characters in the file"
        for line in lines[:MOST_LINES]
    ]
    if len(lines) > MOST_LINES:
        kept.append(f"… {len(lines) - MOST_LINES:,} more lines in the file")
    return "\n".join(kept)
