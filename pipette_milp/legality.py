"""Rules that a configuration must keep, one function per rule, each saying what breaks it.

The search asks them branch by branch, `check_legal` all at once for a configuration that somebody wrote.
They are those of the instance's framework (formats, sections 1.2 and 1.3) and of the schedule. Limits of
``search`` are none of them: they say what to look for, not what is possible.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.plans import cell_name, degrees_product
from pipette_milp.schedules import get_schedule
from pipette_milp.schema.plan import Configuration, split_stages

GRADIENTS_OF_PRECISION = {
    "fp32": ("fp32",),
    "tf32": ("fp32",),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp8": ("bf16", "fp32"),
}
"""Gradient types that go with a training precision."""


def check_legal(costs: CostModel, configuration: Configuration, *, tensor_over_nodes: bool = False) -> None:
    """Refuse a configuration that breaks a rule. Memory is none: a legal plan may not fit.

    ``tensor_over_nodes`` accepts tensor groups of whole nodes, as some measured runs have them: no plan is
    made with them.

    Raises:
        IllegalConfigurationError: every rule that is broken, each at its field.
    """
    problems = list(illegalities(costs, configuration, tensor_over_nodes=tensor_over_nodes))
    if problems:
        raise IllegalConfigurationError(problems)


def illegalities(
    costs: CostModel, configuration: Configuration, *, tensor_over_nodes: bool = False
) -> Iterator[Problem]:
    """Every rule that a configuration breaks on this instance."""
    tensor, training = configuration.tensor, costs.instance.training
    accepted = GRADIENTS_OF_PRECISION[training.precision]
    if configuration.gradient_dtype not in accepted:
        yield Problem(
            "gradient_dtype",
            f"{configuration.gradient_dtype} gradients do not go with {training.precision}: "
            f"expected {' or '.join(accepted)}",
        )
    reasons = {
        "tensor": tensor_refusal(costs, tensor, over_nodes=tensor_over_nodes),
        "context": context_refusal(costs, tensor, configuration.context),
        "expert": expert_refusal(
            costs,
            configuration.expert,
            tensor=tensor,
            context=configuration.context,
            data=configuration.data,
            sequence_parallel=configuration.sequence_parallel,
        ),
        "data_sharding": sharding_refusal(
            costs,
            configuration.data_sharding,
            pipeline=configuration.pipeline,
            context=configuration.context,
            data=configuration.data,
            expert=configuration.expert,
        ),
        "sequence_parallel": (
            sequence_parallel_refusal(costs, tensor, configuration.context)
            if configuration.sequence_parallel
            else None
        ),
        "num_micro_batches": _batch_refusal(costs, configuration),
        "stages": _stages_refusal(costs, configuration),
        "schedule": get_schedule(configuration.schedule).legality(
            configuration.pipeline,
            configuration.virtual_stages,
            configuration.num_micro_batches,
            configuration.pipeline_transfers,
            configuration.layers_per_stage,
        ),
    }
    if reasons["tensor"] is None and reasons["context"] is None:
        reasons["data"] = _room_refusal(costs, configuration)
    for path, reason in reasons.items():
        if reason is not None:
            yield Problem(path, reason)


def tensor_refusal(costs: CostModel, tensor: int, *, over_nodes: bool = False) -> str | None:
    """Why a tensor degree is illegal, or None. Megatron-LM's rules (formats, section 1.2)."""
    model = costs.instance.model
    largest = int(costs.cluster.gpus_per_node.max())
    if tensor > largest and not (over_nodes and costs.cluster.for_cells(tensor) is not None):
        return f"tensor degree {tensor} exceeds the {largest} GPUs of a node (aligned groups stay inside one)"
    if model.attention_heads % tensor:
        return f"{model.attention_heads} heads are no multiple of tensor degree {tensor}"
    if model.mla is None:  # latent attention has as many keys and values as queries
        if tensor <= model.kv_heads and model.kv_heads % tensor:
            return f"{model.kv_heads} key/value heads are no multiple of tensor degree {tensor}"
        if tensor > model.kv_heads and tensor % model.kv_heads:
            return f"tensor degree {tensor} is no multiple of the {model.kv_heads} key/value heads"
    kinds = costs.transformer.layer_kinds
    widths = {"MLP": model.ffn_hidden_size} if "dense" in kinds else {}
    if model.moe is not None:
        widths |= {"expert": model.moe.ffn_hidden_size, "shared expert": model.moe.shared_ffn_hidden_size}
    for name, width in widths.items():
        if width % tensor:
            return f"{name} width {width} is no multiple of tensor degree {tensor}"
    return None


def context_refusal(costs: CostModel, tensor: int, context: int) -> str | None:
    """Why a context degree is illegal, or None. Megatron-LM's rules."""
    if context == 1:
        return None
    if costs.cluster.meshes:
        return "not supported yet: context parallelism on nodes of kind mesh"
    length = costs.instance.model.sequence_length
    largest = int(costs.cluster.gpus_per_node.max())
    if costs.cluster.for_cells(tensor * context) is None:
        return (
            f"tensor {tensor} x context {context} exceeds the {largest} GPUs of a node (aligned groups stay "
            "inside one, or take whole nodes of one kind)"
        )
    if not costs.instance.training.flash_attention:
        return "context parallelism needs training.flash_attention: only fused attention works on parts"
    if length % (2 * context):
        return f"context: sequence length {length} is no multiple of twice the context degree {context}"
    return None


def expert_refusal(
    costs: CostModel, expert: int, *, tensor: int, context: int, data: int, sequence_parallel: bool
) -> str | None:
    """Why an expert degree is illegal, or None. Megatron-LM's rules; experts have the tensor degree of the
    rest."""
    moe = costs.instance.model.moe
    if moe is not None and tensor > 1 and not sequence_parallel and expert > 1:
        return "expert parallelism with tensor parallelism needs sequence parallelism"
    if expert == 1:
        return None
    if moe is None:
        return f"expert degree {expert}: the model has no experts"
    if moe.experts % expert:
        return f"{moe.experts} experts are no multiple of expert degree {expert}"
    if (data * context) % expert:
        return f"expert degree {expert} does not divide data x context = {data * context}"
    if tensor * context > int(costs.cluster.gpus_per_node.max()):
        return "not supported yet: expert parallelism with tensor and context groups over several nodes"
    if expert % context:
        return (
            f"not supported yet: expert degree {expert} that is no multiple of the context degree {context}"
        )
    return None


def sharding_refusal(
    costs: CostModel, sharding: str, *, pipeline: int, context: int, data: int, expert: int
) -> str | None:
    """Why gradients or parameters cannot be sharded, or None."""
    if sharding in ("none", "optimizer"):
        return None
    if costs.cluster.meshes:
        return f"not supported yet: sharded {sharding} on nodes of kind mesh"
    if costs.instance.training.framework == "deepspeed" and pipeline > 1:
        return f"DeepSpeed's pipeline engine does not shard {sharding} (ZeRO-2, ZeRO-3)"
    if expert > 1:
        return f"not supported yet: sharded {sharding} with expert parallelism"
    if data == 1 and context > 1:
        return f"not supported yet: {sharding} sharded over a context group alone"
    return None


def sequence_parallel_refusal(costs: CostModel, tensor: int, context: int = 1) -> str | None:
    """Why the sequence cannot be divided over a tensor group, or None."""
    length = costs.instance.model.sequence_length
    if length % (tensor * context):
        degrees = f"tensor degree {tensor}" if context == 1 else f"tensor x context = {tensor * context}"
        return f"sequence parallel: sequence length {length} is no multiple of {degrees}"
    return None


def data_refusal(batch: int, data: int, micro_batch: int = 1) -> str | None:
    """Why replicas cannot share a global batch, or None; names the nearest batches that would do, whole
    micro-batches included."""
    if batch % data == 0:
        return None
    step = data * micro_batch
    below = batch // step * step
    nearest = f"{below} or {below + step}" if below else str(step)
    with_what = f" (with micro-batch {micro_batch})" if micro_batch > 1 else ""
    return f"global batch {batch} is no multiple of the data degree {data}; {nearest} would be{with_what}"


def micro_batch_refusal(per_replica: int, micro_batch: int) -> str | None:
    """Why a replica's share of the batch has no such micro-batches, or None."""
    if per_replica % micro_batch:
        return f"{per_replica} sequences per replica are no multiple of micro-batch {micro_batch}"
    return None


def stage_count_refusal(costs: CostModel, virtual: int) -> str | None:
    """Why the model cannot be cut into this many virtual stages of at least one layer, or None."""
    layers = costs.instance.model.layers
    return f"{layers} layers cannot fill {virtual} stages" if virtual > layers else None


def _batch_refusal(costs: CostModel, configuration: Configuration) -> str | None:
    batches = costs.instance.training.global_batch_size
    if configuration.global_batch_size in batches:
        return None
    if len(batches) == 1:
        reason = data_refusal(batches[0], configuration.data) or micro_batch_refusal(
            batches[0] // configuration.data, configuration.micro_batch
        )
        if reason is not None:
            return reason
    return (
        f"{configuration.num_micro_batches} x micro-batch {configuration.micro_batch} x data "
        f"{configuration.data} = {configuration.global_batch_size} sequences, the global batch is "
        f"{' or '.join(map(str, batches))}"
    )


def _stages_refusal(costs: CostModel, configuration: Configuration) -> str | None:
    stages, layers = configuration.stages, costs.instance.model.layers
    if len(stages) != configuration.num_virtual_stages:
        return (
            f"has {len(stages)} entries, pipeline {configuration.pipeline} x virtual stages "
            f"{configuration.virtual_stages} needs {configuration.num_virtual_stages}"
        )
    held = sum(configuration.layers_per_stage)
    if held != layers:
        return f"hold {held} layers, the model has {layers}"
    if stages != split_stages(configuration.layers_per_stage):
        return "the first stage must hold the embedding and the last one the head, no other"
    return None


def _room_refusal(costs: CostModel, configuration: Configuration) -> str | None:
    cluster, size = costs.cluster, configuration.cell_size
    if configuration.num_gpus > cluster.num_gpus:
        return (
            f"{degrees_product(configuration)} needs {configuration.num_gpus} GPUs, {cluster.num_gpus} are "
            "usable"
        )
    groups = int(((cluster.for_cells(size) or cluster).gpus_per_node // size).sum())
    needed = configuration.pipeline * configuration.data
    if needed > groups:
        name = cell_name(configuration)
        return f"needs {needed} {name}s, the nodes have room for {groups} groups of {size}"
    return None
