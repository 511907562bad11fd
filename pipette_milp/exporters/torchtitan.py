"""torchtitan settings of a plan (TOML, up to version 0.2), with node order and verifier.

torchtitan divides layers by one rule: embedding and head count as some layers, the rest goes evenly with the
earlier stages first. A split that no such weights give is refused (its distributed/pipeline_parallel.py).
"""

from __future__ import annotations

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level
from pipette_milp.exporters.launch import Export, LaunchOptions, level_note, place_ranks
from pipette_milp.exporters.torchrun import NODES
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan

SETTINGS = "torchtitan.toml"

_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_MOST_WEIGHT = 8
"""Layers that embedding or head are tried as."""


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Settings, node order and verifier.

    Raises:
        IllegalConfigurationError: torchtitan cannot run the configuration, or the plan needs a host for every
            rank.
    """
    launch = place_ranks(instance, plan, options)
    ranks = launch.ranks
    problems = refusals(instance, plan.configuration)
    if ranks.level is Level.PER_RANK:
        problems.append(
            Problem(
                "placement", "torchrun numbers ranks node by node, but this plan mixes nodes inside a block"
            )
        )
    weights = split_weights(plan.configuration)
    if weights is None:
        problems.append(
            Problem(
                "configuration.stages",
                f"torchtitan cannot divide the layers as {list(plan.configuration.layers_per_stage)}: "
                f"earlier stages get the larger shares",
            )
        )
    if problems or weights is None:
        raise IllegalConfigurationError(problems)
    order = "".join(f"{host.name}\n" for host in ranks.hosts)
    devices = [
        f"{host.name}: CUDA_VISIBLE_DEVICES={','.join(map(str, host.gpus))}"
        for host in ranks.hosts
        if ranks.needs_device_order
    ]
    notes = (
        level_note(ranks, "torchrun"),
        f"start one torchrun a node, static rendezvous, --node-rank as in {NODES}; the verifier first",
        "name and flavor of the model are torchtitan's: set them to one of the shape in the comments",
        *devices,
    )
    files = {
        **launch.files,
        SETTINGS: settings(instance, plan.configuration, weights, launch.plan_hash),
        NODES: order,
    }
    return Export(files, ranks.level, notes)


def refusals(instance: Instance, configuration: Configuration) -> list[Problem]:
    """Every reason for which torchtitan cannot run a configuration, apart from the layer split."""
    problems: list[Problem] = []

    def refuse(path: str, message: str) -> None:
        problems.append(Problem(f"configuration.{path}", message))

    model, precision = instance.model, instance.training.precision
    if configuration.tensor > 1 and not configuration.sequence_parallel:
        refuse("sequence_parallel", "torchtitan's tensor parallelism always divides the sequence")
    if configuration.tensor > model.kv_heads or model.kv_heads % configuration.tensor:
        refuse("tensor", f"torchtitan needs a divisor of the {model.kv_heads} key-value heads")
    if configuration.schedule not in _SCHEDULES:
        refuse("schedule", f"torchtitan has {', '.join(_SCHEDULES)}, not {configuration.schedule}")
    if configuration.data > 1 and configuration.data_sharding not in ("none", "parameters"):
        refuse("data_sharding", f"torchtitan shards all or nothing, not {configuration.data_sharding}")
    if precision not in _DTYPES:
        problems.append(
            Problem("training.precision", f"{precision} is not supported yet in torchtitan settings")
        )
    return problems


def split_weights(configuration: Configuration) -> tuple[int, int] | None:
    """Layers that embedding and head have to count as for this split; None if none do."""
    wanted = configuration.layers_per_stage
    if len(wanted) == 1:
        return 0, 0
    choices = sorted(
        ((first, last) for first in range(_MOST_WEIGHT + 1) for last in range(_MOST_WEIGHT + 1)), key=sum
    )
    return next(
        (weights for weights in choices if _split(sum(wanted), len(wanted), *weights) == wanted), None
    )


def _split(layers: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    share, extra = divmod(layers + first + last, stages)
    counts = [share + (stage < extra) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts)


def settings(
    instance: Instance, configuration: Configuration, weights: tuple[int, int], plan_hash: str
) -> str:
    """The TOML text."""
    model = instance.model
    sharded = configuration.data_sharding == "parameters"
    piped = configuration.pipeline > 1
    local = configuration.micro_batch * (configuration.num_micro_batches if piped else 1)
    lines = [
        f"# plan {plan_hash}",
        f"# layers per stage: {', '.join(map(str, configuration.layers_per_stage))}",
        "",
        "[model]",
        f"# {model.layers} layers, hidden size {model.hidden_size}, MLP {model.ffn_hidden_size}, "
        f"{model.attention_heads} heads, {model.kv_heads} key-value heads, vocabulary {model.vocab_size}",
        'name = "SET_ME"',
        'flavor = "SET_ME"',
        "",
        "[training]",
        f"local_batch_size = {local}",
        f"global_batch_size = {configuration.global_batch_size}",
        f"seq_len = {model.sequence_length}",
        f'mixed_precision_param = "{_DTYPES[instance.training.precision]}"',
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {1 if sharded else configuration.data}",
        f"data_parallel_shard_degree = {configuration.data if sharded else 1}",
        f"tensor_parallel_degree = {configuration.tensor}",
        f"context_parallel_degree = {configuration.context}",
        f"expert_parallel_degree = {configuration.expert}",
        f"pipeline_parallel_degree = {configuration.pipeline}",
    ]
    if piped:
        effective = sum(configuration.layers_per_stage) + sum(weights)
        lines += [
            f'pipeline_parallel_schedule = "{_SCHEDULES[configuration.schedule]}"',
            f"pipeline_parallel_microbatch_size = {configuration.micro_batch}",
            f"pipeline_parallel_layers_per_stage = {-(-effective // len(configuration.layers_per_stage))}",
            f"pipeline_parallel_first_stage_less_layers = {weights[0]}",
            f"pipeline_parallel_last_stage_less_layers = {weights[1]}",
        ]
    lines += ["", "[activation_checkpoint]", f'mode = "{configuration.recompute}"', ""]
    return "\n".join(lines)
