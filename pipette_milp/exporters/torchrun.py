"""torchrun: one command for every node, with the node's number.

The rendezvous is static, because the c10d one orders nodes by host name as text (node10 before node2,
pytorch#191190). torchrun numbers ranks node by node, so a plan that mixes nodes inside a block of ranks is
refused.
"""

from __future__ import annotations

import shlex

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level
from pipette_milp.exporters.launch import (
    ARGUMENTS,
    Export,
    Launch,
    LaunchOptions,
    device_case,
    level_note,
    prepare,
    visible_devices,
)
from pipette_milp.exporters.verifier import NAME as VERIFIER
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

SCRIPT = "launch_torchrun.sh"
NODES = "node_order.txt"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Launch script, node order, arguments and verifier.

    Raises:
        IllegalConfigurationError: the plan needs a host for every rank, or Megatron-LM cannot run it.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    if ranks.level is Level.PER_RANK:
        raise IllegalConfigurationError(
            Problem(
                "placement",
                "torchrun numbers ranks node by node, but this plan mixes nodes inside a block of ranks: "
                "export it for slurm or openmpi, which take a host for every rank",
            )
        )
    lines = launch_lines(
        launch,
        "torchrun",
        host="${SLURMD_NODENAME:-$(hostname)}",
        master=launch.first_host,
        program=shlex.quote(options.program),
    )
    notes = [level_note(ranks, "torchrun"), "static rendezvous: start the script on every node of the plan"]
    as_text = ranks.order_as_text
    if as_text is not None:
        notes.append(
            f"do not switch to the c10d rendezvous: it would order the nodes as text "
            f"({', '.join(as_text[:4])}"
            f"{', ...' if len(as_text) > 4 else ''}), which is not the plan's order"
        )
    order = "".join(f"{host.name}\n" for host in ranks.hosts)
    return Export({**launch.files, SCRIPT: "\n".join(lines), NODES: order}, ranks.level, tuple(notes))


def launch_lines(launch: Launch, launcher: str, *, host: str, master: str, program: str) -> list[str]:
    """Lines of the script that every node runs.

    Args:
        host: shell expression for the name of the node.
        master: address of the first node, or a shell expression for it.
        program: quoted.
    """
    ranks, options = launch.ranks, launch.options
    assignments = {}
    for number, node in enumerate(ranks.hosts):
        parts = [f"node_rank={number}", f"gpus={len(node.ranks)}"]
        if ranks.needs_device_order:
            parts.append(f"export CUDA_VISIBLE_DEVICES={visible_devices(node)}")
        assignments[node.name] = "; ".join(parts)
    return [
        "#!/usr/bin/env bash",
        "# Run this on every node of the plan; further arguments go to the training program.",
        f"# plan {launch.plan_hash}",
        f"# {level_note(ranks, launcher)}",
        "set -euo pipefail",
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        f'source "$here/{ARGUMENTS}"',
        f'host="{host}"',
        "# Static rendezvous: the node's number decides its ranks. The c10d rendezvous would sort host "
        "names as text.",
        *device_case(ranks, assignments),
        "# Numbers GPUs as nvidia-smi does.",
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "run() {",
        f'  torchrun --nnodes={len(ranks.hosts)} --node-rank="$node_rank" --nproc-per-node="$gpus" \\',
        f'    --rdzv-backend=static --master-addr="{master}" --master-port={options.port} "$@"',
        "}",
        f'run "$here/{VERIFIER}" --host "$host"',
        f'run {program} "${{MEGATRON_ARGS[@]}}" "$@"',
        "",
    ]
