"""Open MPI: a rank file, which says the host of every rank.

A host file is a list of resources and no order (ompi#13199), so ranks are never left to it. A rank file
binds CPU cores only; the GPU follows from the rank's number on its host. Version 5.0.7 fails on rank-file
paths with a dash, so the script changes into its folder and names the file without one.
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

SCRIPT = "launch_mpirun.sh"
RANKS = "rankfile.txt"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Launch script, rank file, wrapper, arguments and verifier.

    Raises:
        IllegalConfigurationError: Megatron-LM cannot run the configuration.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    local = ranks.position_on_host
    cores = options.cores_per_gpu
    rankfile = "".join(
        f"rank {rank}={name} slot={local[rank] * cores}-{(local[rank] + 1) * cores - 1}\n"
        if cores > 1
        else f"rank {rank}={name} slot={local[rank]}\n"
        for rank, (name, _) in enumerate(ranks.by_rank)
    )
    resources = ",".join(f"{host.name}:{len(host.ranks)}" for host in ranks.hosts)
    lines = [
        "#!/usr/bin/env bash",
        "# Run this once; further arguments go to the training program.",
        f"# plan {launch.plan_hash}",
        f"# {level_note(ranks, 'Open MPI')}",
        "set -euo pipefail",
        "# The rank file is named relative to its folder: Open MPI 5.0.7 fails on paths with a dash.",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"source ./{ARGUMENTS}",
        "# The rank file decides which rank runs where; --host only lists resources and is no order.",
        "version=\"$(mpirun --version | sed -n 's/.*(Open MPI) *\\([0-9]*\\).*/\\1/p;q')\"",
        f'if [ "${{version:-4}}" -ge 5 ]; then placement=(--map-by rankfile:file={RANKS})',
        f"else placement=(--rankfile {RANKS}); fi",
        f'mpirun -n {ranks.world_size} --host {resources} "${{placement[@]}}" \\',
        *(f"  -x {name} \\" for name in launch.variables),
        f'  bash "$PWD/{WRAPPER}" {shlex.quote(options.program)} "${{MEGATRON_ARGS[@]}}" "$@"',
        "",
    ]
    files = {
        **launch.files,
        SCRIPT: "\n".join(lines),
        RANKS: rankfile,
        WRAPPER: wrapper(launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    }
    notes = (
        level_note(ranks, "Open MPI"),
        f"the rank file binds {cores} CPU cores to each rank: say --cores-per-gpu if a node has fewer or "
        f"more",
        "Open MPI binds CPUs only; the GPU follows from the local rank and CUDA_VISIBLE_DEVICES",
    )
    return Export(files, ranks.level, notes)
