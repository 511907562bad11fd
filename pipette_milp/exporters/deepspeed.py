"""DeepSpeed: a host file in node order, the settings file, and the launch.

A host may occur once only, so nodes cannot be mixed inside a block of ranks; ``--include`` selects GPUs of a
host but gives them in ascending order, so their order cannot be changed (DeepSpeed, launcher/runner.py).
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level, RankMap
from pipette_milp.exporters.launch import (
    ARGUMENTS,
    Export,
    LaunchOptions,
    level_note,
    place_ranks,
    prepare,
)
from pipette_milp.exporters.verifier import NAME as VERIFIER
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan

SCRIPT = "launch_deepspeed.sh"
HOSTS = "hostfile"
SETTINGS = "ds_config.json"

_STAGE = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Host file, settings, launch script and verifier; Megatron-LM's arguments where that is the framework.

    Raises:
        IllegalConfigurationError: the plan mixes nodes inside a block of ranks or reorders the GPUs of a
            node, or Megatron-LM cannot run the configuration.
    """
    megatron = instance.training.framework == "megatron"
    launch = prepare(instance, plan, options) if megatron else place_ranks(instance, plan, options)
    ranks = launch.ranks
    _refuse(ranks)
    partly = any(len(host.gpus) < host.declared_gpus for host in ranks.hosts)
    include = f'--include="{_included(ranks)}" ' if partly else ""
    arguments = '"${MEGATRON_ARGS[@]}" ' if megatron else ""
    lines = [
        "#!/usr/bin/env bash",
        "# Run this once; further arguments go to the training program.",
        f"# plan {launch.plan_hash}",
        f"# {level_note(ranks, 'DeepSpeed')}",
        "set -euo pipefail",
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        *([f'source "$here/{ARGUMENTS}"'] if megatron else []),
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "run() {",
        f'  deepspeed --hostfile="$here/{HOSTS}" {include}\\',
        f'    --master_addr={launch.first_host} --master_port={options.port} "$@"',
        "}",
        f'run "$here/{VERIFIER}"',
        f'run {shlex.quote(options.program)} {arguments}--deepspeed_config "$here/{SETTINGS}" "$@"',
        "",
    ]
    hostfile = "".join(f"{host.name} slots={host.declared_gpus}\n" for host in ranks.hosts)
    files = {
        **launch.files,
        SCRIPT: "\n".join(lines),
        HOSTS: hostfile,
        SETTINGS: json.dumps(settings(instance, plan.configuration), indent=2) + "\n",
    }
    notes = [
        level_note(ranks, "DeepSpeed"),
        f"the program has to read --deepspeed_config and to build {plan.configuration.pipeline} stages",
    ]
    return Export(files, ranks.level, tuple(notes))


def settings(instance: Instance, configuration: Configuration) -> dict[str, Any]:
    """DeepSpeed's settings of a configuration."""
    precision = instance.training.precision
    found: dict[str, Any] = {
        "train_batch_size": configuration.global_batch_size,
        "train_micro_batch_size_per_gpu": configuration.micro_batch,
        "gradient_accumulation_steps": configuration.num_micro_batches,
        "zero_optimization": {
            "stage": _STAGE[configuration.data_sharding],
            "overlap_comm": configuration.overlap.gradient_reduce,
        },
    }
    if configuration.tensor > 1:
        found["tensor_parallel"] = {"autotp_size": configuration.tensor}
    if precision in ("bf16", "fp16"):
        found[precision] = {"enabled": True}
    return found


def _refuse(ranks: RankMap) -> None:
    problems = []
    if ranks.level is Level.PER_RANK:
        problems.append(
            Problem(
                "placement",
                "a DeepSpeed host file names every host once, but this plan mixes nodes inside a block of "
                "ranks: export it for slurm, openmpi or mpich, which take a host for every rank",
            )
        )
    else:
        problems += [
            Problem(
                "placement",
                f"DeepSpeed gives the GPUs of {host.name} in ascending order, the plan has "
                f"{','.join(map(str, host.gpus))}: export it for torchrun, slurm or openmpi",
            )
            for host in ranks.hosts
            if list(host.gpus) != sorted(host.gpus)
        ]
    if problems:
        raise IllegalConfigurationError(problems[:5])


def _included(ranks: RankMap) -> str:
    return "@".join(f"{host.name}:{','.join(map(str, host.gpus))}" for host in ranks.hosts)
