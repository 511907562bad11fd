"""NeMo settings of a plan (YAML): Megatron-LM's arguments by NeMo's names, with node order and verifier."""

from __future__ import annotations

import json
from typing import Any

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level, RankMap
from pipette_milp.exporters.launch import Export, LaunchOptions, level_note, prepare
from pipette_milp.exporters.megatron import megatron_arguments
from pipette_milp.exporters.torchrun import NODES
from pipette_milp.importers.nemo import NAMES
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan

SETTINGS = "nemo.yaml"

_NAME_OF_ARGUMENT = {argument: name for name, argument in NAMES.items() if argument} | {
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
}
_OF_TRAINER = ("bf16", "fp16")
_TRANSLATED = {
    "disable-bias-linear": ("bias", False),
    "untie-embeddings-and-output-weights": ("share_embeddings_and_output_weights", False),
    "swiglu": ("activation", "fast-swiglu"),
    "group-query-attention": None,
    "optimizer": None,
    "attention-backend": None,
}
"""Arguments that NeMo says in another way, or not at all."""


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Settings, node order and verifier; Megatron-LM's arguments for comparison.

    Raises:
        IllegalConfigurationError: Megatron-LM cannot run the configuration, the nodes of the plan use
            different numbers of GPUs, or it needs a host for every rank.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    counts = {len(host.ranks) for host in ranks.hosts}
    problems = []
    if len(counts) > 1:
        problems.append(
            Problem("placement", "NeMo needs as many GPUs on every node: trainer.devices is one number")
        )
    if ranks.level is Level.PER_RANK:
        problems.append(
            Problem("placement", "NeMo numbers ranks node by node, but this plan mixes nodes inside a block")
        )
    if problems:
        raise IllegalConfigurationError(problems)
    notes = (
        level_note(ranks, "NeMo"),
        f"start it on the nodes in the order of {NODES}: without a host file Slurm orders nodes by name",
    )
    files = {
        **launch.files,
        SETTINGS: settings(instance, plan.configuration, ranks, launch.plan_hash),
        NODES: "".join(f"{host.name}\n" for host in ranks.hosts),
    }
    return Export(files, ranks.level, notes)


def settings(instance: Instance, configuration: Configuration, ranks: RankMap, plan_hash: str) -> str:
    """The YAML text."""
    model: dict[str, Any] = {}
    precision: Any = 32
    arguments = megatron_arguments(instance, configuration)
    for _, group in arguments.groups:
        for argument in group:
            name, _, value = argument.removeprefix("--").partition(" ")
            if name in _OF_TRAINER:
                precision = "bf16" if name == "bf16" else 16
            elif name in _TRANSLATED:
                translated = _TRANSLATED[name]
                if translated is not None:
                    model[translated[0]] = translated[1]
            else:
                model[_NAME_OF_ARGUMENT.get(name, name.replace("-", "_"))] = _scalar(value)
    model["use_flash_attention"] = instance.training.flash_attention
    lines = [
        f"# plan {plan_hash}",
        f"# layers per stage: {', '.join(map(str, configuration.layers_per_stage))}",
    ]
    lines += ["trainer:", f"  num_nodes: {len(ranks.hosts)}", f"  devices: {len(ranks.hosts[0].ranks)}"]
    lines += [f"  precision: {precision}", "model:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in model.items()]
    return "\n".join([*lines, ""])


def _scalar(value: str) -> Any:
    if value == "":
        return True
    return int(value) if value.isdigit() else value
