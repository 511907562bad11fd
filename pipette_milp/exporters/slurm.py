"""Slurm: a host for every task by SLURM_HOSTFILE and the arbitrary distribution.

Without a host file Slurm numbers nodes alphabetically, so it is used for every plan. Tasks follow the
lines of the file; SLURM_LOCALID counts the tasks of a node in that order (Slurm, srun manual page,
--distribution).
"""

from __future__ import annotations

import shlex

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

SCRIPT = "launch_slurm.sh"
HOSTS = "hostfile.txt"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Batch script, host file, wrapper, arguments and verifier.

    Raises:
        IllegalConfigurationError: Megatron-LM cannot run the configuration.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    declared = {host.declared_gpus for host in ranks.hosts}
    gpus = [f"#SBATCH --gpus-per-node={declared.pop()}"] if len(declared) == 1 else []
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --nodes={len(ranks.hosts)}",
        f"#SBATCH --nodelist={','.join(host.name for host in ranks.hosts)}",
        f"#SBATCH --ntasks={ranks.world_size}",
        *gpus,
        "#SBATCH --exclusive",
        "# Submit with sbatch; further arguments go to the training program.",
        f"# plan {launch.plan_hash}",
        f"# {level_note(ranks, 'Slurm')}",
        "set -euo pipefail",
        "# sbatch runs a copy of this script: the folder of the original is where it was submitted from.",
        'here="${PLAN_FOLDER:-${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}}"',
        f'source "$here/{ARGUMENTS}"',
        "# One host a line for every rank; not with topology-aware node selection, which would reorder it.",
        f'export SLURM_HOSTFILE="$here/{HOSTS}"',
        f'srun --ntasks={ranks.world_size} --distribution=arbitrary bash "$here/{WRAPPER}" \\',
        f'  {shlex.quote(options.program)} "${{MEGATRON_ARGS[@]}}" "$@"',
        "",
    ]
    hostfile = "".join(f"{name}\n" for name, _ in ranks.by_rank)
    files = {
        **launch.files,
        SCRIPT: "\n".join(lines),
        HOSTS: hostfile,
        WRAPPER: wrapper(launch, "SLURM_PROCID", "SLURM_LOCALID"),
    }
    notes = (
        level_note(ranks, "Slurm"),
        "submit from the folder of the files, or set PLAN_FOLDER",
        "the arbitrary distribution does not go with topology-aware node selection",
    )
    return Export(files, ranks.level, notes)
