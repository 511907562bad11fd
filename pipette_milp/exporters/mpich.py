"""MPICH (Hydra) and Intel MPI: a machine file, which is read in order.

Ranks follow the lines of the file, so many per line as it says; a host may occur again (Hydra, process
manager manual, "-f"). The number of a rank on its host is taken from the plan and not from the launcher,
which counts anew for every line.
"""

from __future__ import annotations

import shlex
from itertools import groupby

from pipette_milp.exporters.launch import (
    ARGUMENTS,
    WRAPPER,
    Export,
    LaunchOptions,
    level_note,
    prepare,
    wrapper,
)
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

SCRIPT = "launch_mpiexec.sh"
MACHINES = "machinefile.txt"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Launch script, machine file, wrapper, arguments and verifier.

    Raises:
        IllegalConfigurationError: Megatron-LM cannot run the configuration.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    runs = [(name, len(list(group))) for name, group in groupby(name for name, _ in ranks.by_rank)]
    machines = "".join(f"{name}:{count}\n" for name, count in runs)
    local = ranks.position_on_host
    numbers = " ".join(str(local[rank]) for rank in range(ranks.world_size))
    lines = [
        "#!/usr/bin/env bash",
        "# Run this once; further arguments go to the training program.",
        f"# plan {launch.plan_hash}",
        f"# {level_note(ranks, 'MPICH')}",
        "set -euo pipefail",
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        f'source "$here/{ARGUMENTS}"',
        "# Ranks follow the lines of the machine file, as many as each line says.",
        f'mpiexec -n {ranks.world_size} -f "$here/{MACHINES}" \\',
        *([f"  -genvlist {','.join(launch.variables)} \\"] if launch.variables else []),
        f'  bash "$here/{WRAPPER}" {shlex.quote(options.program)} "${{MEGATRON_ARGS[@]}}" "$@"',
        "",
    ]
    files = {
        **launch.files,
        SCRIPT: "\n".join(lines),
        MACHINES: machines,
        WRAPPER: wrapper(
            launch,
            "PMI_RANK",
            "{local_of_rank[$PMI_RANK]}",
            before=("# Number of every rank on its host.", f"local_of_rank=({numbers})"),
        ),
    }
    notes = (
        level_note(ranks, "MPICH"),
        "Intel MPI reads the same file: mpiexec.hydra -machinefile",
        "do not pass -ppn, which overrides the file",
    )
    return Export(files, ranks.level, notes)
