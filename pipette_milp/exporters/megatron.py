"""Megatron-LM arguments and environment of a plan, and what the plan assumed beside them.

Names and rules: Megatron-LM, training/arguments.py (validate_args). What Megatron refuses, or would run
differently from the plan, is refused here with the reason.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.megatron_experts import expert_arguments, latent_attention_arguments
from pipette_milp.exporters.megatron_split import split_arguments
from pipette_milp.importers.megatron_split import micro_batch_problem
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.model import ModelSection
from pipette_milp.schema.plan import RANK_ORDER, Configuration, Plan
from pipette_milp.schema.training import TrainingSection

RING_ALGORITHMS = "allreduce:ring;reducescatter:ring;allgather:ring"
"""Value of NCCL_ALGO that makes the cost model's assumption true (NCCL, src/graph/tuning.cc)."""

_POSITIONS = {"learned": "learned_absolute", "rope": "rope", "none": "none"}
_NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}
_FSDP = {"gradients": "optim_grads", "parameters": "optim_grads_params"}


@dataclass(frozen=True)
class MegatronArguments:
    """Arguments in groups with a comment each, and environment variables with theirs."""

    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """(comment, arguments); an argument is one text, value included."""
    environment: tuple[tuple[str, str, str], ...]
    """(name, value, comment)"""

    @property
    def words(self) -> tuple[str, ...]:
        """All words, as a program receives them."""
        return tuple(
            word for _, arguments in self.groups for argument in arguments for word in argument.split(" ", 1)
        )

    def script(self, plan: Plan, source: str) -> str:
        """A shell file that sets MEGATRON_ARGS, WORLD_SIZE and the environment, to be sourced."""
        lines = [
            '# Megatron-LM arguments of a plan; source this file, then pass "${MEGATRON_ARGS[@]}".',
            f"# plan {plan_hash(plan)}",
            f"# {source}" if source else "#",
            f"WORLD_SIZE={plan.configuration.num_gpus}",
        ]
        for name, value, comment in self.environment:
            lines += [f"# {comment}", f"export {name}={shlex.quote(value)}"]
        lines.append("MEGATRON_ARGS=(")
        for comment, arguments in self.groups:
            lines.append(f"  # {comment}")
            lines += ["  " + " ".join(map(shlex.quote, argument.split(" ", 1))) for argument in arguments]
        return "\n".join([*lines, ")", ""])


def plan_hash(plan: Plan) -> str:
    """Names a plan: SHA-256 of its JSON with sorted keys."""
    text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def megatron_arguments(instance: Instance, configuration: Configuration) -> MegatronArguments:
    """Arguments that make Megatron-LM run ``configuration`` of an instance's model.

    Raises:
        IllegalConfigurationError: Megatron-LM refuses the configuration or has no way to run it; all
            reasons at once.
    """
    model, training = instance.model, instance.training
    problems = refusals(model, training, configuration)
    split: tuple[str, ...] = ()
    try:
        split = split_arguments(configuration)
    except IllegalConfigurationError as error:
        problems += error.problems
    if problems:
        raise IllegalConfigurationError(problems)
    interleaved = configuration.schedule == "interleaved"
    degrees = [
        f"--tensor-model-parallel-size {configuration.tensor}",
        f"--pipeline-model-parallel-size {configuration.pipeline}",
    ]
    if configuration.context > 1:
        degrees.append(f"--context-parallel-size {configuration.context}")
    if configuration.sequence_parallel and configuration.tensor > 1:
        degrees.append("--sequence-parallel")
    order = rank_order_argument(configuration.rank_order, configuration.pipeline, configuration.expert)
    if order is not None:
        degrees.append(order)
    if interleaved and configuration.pipeline_transfers == "exchange":
        degrees.append("--no-overlap-p2p-communication")
    per_stage = ",".join(map(str, configuration.layers_per_stage))
    context = " * context" if configuration.context > 1 else ""
    groups = [
        (
            "shape of the model; name your tokenizer and data as well",
            (*_shape(model), *latent_attention_arguments(model)),
        ),
        ("experts, and the ranks that share them", expert_arguments(model, configuration.expert)),
        (
            f"degrees; data parallelism is WORLD_SIZE / (tensor{context} * pipeline) = {configuration.data}",
            tuple(degrees),
        ),
        (f"layers per virtual stage: {per_stage}", split),
        (
            f"{configuration.num_micro_batches} micro-batches per replica",
            (
                f"--micro-batch-size {configuration.micro_batch}",
                f"--global-batch-size {configuration.global_batch_size}",
            ),
        ),
        (
            "precision, attention, recompute: what the memory estimate assumed",
            _memory(training, configuration),
        ),
        (
            "gradients, optimiser and overlap: what the time estimate assumed",
            _reduction(training, configuration),
        ),
    ]
    return MegatronArguments(
        groups=tuple((comment, arguments) for comment, arguments in groups if arguments),
        environment=_environment(instance, configuration),
    )


def refusals(model: ModelSection, training: TrainingSection, configuration: Configuration) -> list[Problem]:
    """Every reason for which Megatron-LM cannot run a configuration, apart from the layer split."""
    problems: list[Problem] = []

    def refuse(path: str, message: str) -> None:
        problems.append(Problem(f"configuration.{path}", message))

    tensor, pipeline = configuration.tensor, configuration.pipeline
    if training.framework != "megatron":
        problems.append(Problem("training.framework", f"is {training.framework}, not megatron"))
    if configuration.schedule not in ("1f1b", "interleaved"):
        refuse("schedule", f"Megatron-LM has 1f1b and interleaved, not {configuration.schedule}")
    elif (configuration.schedule == "interleaved") != (configuration.virtual_stages > 1):
        refuse("schedule", "Megatron-LM interleaves exactly when there are several virtual stages")
    elif configuration.schedule == "interleaved":
        exchange = configuration.pipeline_transfers == "exchange"
        if pipeline < (3 if exchange else 2):
            refuse("pipeline", f"interleaving needs {3 if exchange else 2} pipeline stages or more")
        problem = micro_batch_problem(pipeline, configuration.num_micro_batches)
        if problem is not None:
            refuse("num_micro_batches", problem)
    elif configuration.pipeline_transfers == "async" and pipeline > 1:
        refuse("pipeline_transfers", "Megatron-LM's 1F1B schedule does not overlap transfers: only exchange")
    if model.attention_heads % tensor:
        refuse("tensor", f"{model.attention_heads} heads do not divide by {tensor}")
    elif model.mla is None and model.kv_heads % tensor and tensor % model.kv_heads:
        refuse(
            "tensor", f"{model.kv_heads} query groups and tensor degree {tensor}: one must divide the other"
        )
    if configuration.sequence_parallel and model.sequence_length % tensor:
        refuse("sequence_parallel", f"the sequence of {model.sequence_length} does not divide by {tensor}")
    if configuration.overlap.parameter_gather and (
        configuration.data_sharding == "none" or not configuration.overlap.gradient_reduce
    ):
        refuse("overlap.parameter_gather", "needs the distributed optimizer and gradient_reduce overlap")
    if configuration.overlap.tensor > 0 and not (configuration.sequence_parallel and tensor > 1):
        refuse("overlap.tensor", "Megatron-LM overlaps tensor communication only with sequence parallelism")
    if sum(configuration.layers_per_stage) != model.layers:
        refuse("stages", f"hold {sum(configuration.layers_per_stage)} layers, the model has {model.layers}")
    return problems


def rank_order_argument(
    order: Sequence[str], pipeline: int, expert: int = 1, expert_tensor: int = 1, dense_group: int = 1
) -> str | None:
    """The argument that gives a rank order, fastest axis first; None for Megatron's default order.

    Args:
        dense_group: tensor * context degree, over which the dense layers are not replicated.

    Raises:
        IllegalConfigurationError: an order that Megatron-LM does not have; or one that does not end in the
            pipeline, with expert parallelism, unless there is one stage or both kinds of layer have as
            many replicas. Then the nodes have to be ordered instead (dlrover#1740).
    """
    if tuple(order) == RANK_ORDER:
        return None
    if tuple(order) != ("tensor", "context", "pipeline", "data"):
        raise IllegalConfigurationError(Problem("rank_order", f"Megatron-LM has no order {', '.join(order)}"))
    if expert > 1 and pipeline > 1 and expert * expert_tensor != dense_group:
        raise IllegalConfigurationError(
            Problem(
                "rank_order",
                "--use-tp-pp-dp-mapping is refused by Megatron-LM with expert parallelism: keep the default "
                "order and "
                "order the nodes instead",
            )
        )
    return "--use-tp-pp-dp-mapping"


def _shape(model: ModelSection) -> tuple[str, ...]:
    arguments = [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden_size}",
        f"--ffn-hidden-size {model.ffn_hidden_size}",
        f"--num-attention-heads {model.attention_heads}",
        *(() if model.mla is not None else (f"--kv-channels {model.head_dim}",)),
        f"--seq-length {model.sequence_length}",
        f"--max-position-embeddings {max(model.sequence_length, model.max_positions)}",
        f"--vocab-size {model.vocab_size}",
        f"--position-embedding-type {_POSITIONS[model.position_embedding]}",
        f"--normalization {_NORMS[model.normalization]}",
    ]
    if model.kv_heads != model.attention_heads and model.mla is None:
        arguments += ["--group-query-attention", f"--num-query-groups {model.kv_heads}"]
    switches = (
        (model.gated_mlp, "--swiglu"),
        (not model.tied_embeddings, "--untie-embeddings-and-output-weights"),
        (not model.biases, "--disable-bias-linear"),
        (model.qkv_bias and not model.biases, "--add-qkv-bias"),
        (model.qk_norm, "--qk-layernorm"),
    )
    return (*arguments, *(name for on, name in switches if on))


def _memory(training: TrainingSection, configuration: Configuration) -> tuple[str, ...]:
    precision = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"]}
    arguments = list(precision.get(training.precision, []))
    arguments.append(f"--attention-backend {'flash' if training.flash_attention else 'unfused'}")
    if configuration.recompute == "selective":
        arguments.append("--recompute-granularity selective")
    elif configuration.recompute == "full":
        arguments += [
            "--recompute-granularity full",
            "--recompute-method uniform",
            "--recompute-num-layers 1",
        ]
    return tuple(arguments)


def _reduction(training: TrainingSection, configuration: Configuration) -> tuple[str, ...]:
    arguments = ["--optimizer adam"]
    if configuration.data_sharding == "optimizer":
        arguments.append("--use-distributed-optimizer")
    elif configuration.data_sharding in _FSDP:
        arguments += [
            "--use-distributed-optimizer",
            "--use-megatron-fsdp",
            f"--data-parallel-sharding-strategy {_FSDP[configuration.data_sharding]}",
            "--ckpt-format fsdp_dtensor",
        ]
    if training.precision in ("bf16", "fp8") and configuration.gradient_dtype == "bf16":
        arguments.append("--grad-reduce-in-bf16")
    if training.precision == "fp16" and configuration.gradient_dtype == "fp32":
        arguments.append("--accumulate-allreduce-grads-in-fp32")
    overlap = configuration.overlap
    switches = (
        (overlap.gradient_reduce, "--overlap-grad-reduce"),
        (overlap.parameter_gather, "--overlap-param-gather"),
        (overlap.tensor > 0, "--tp-comm-overlap"),
    )
    return (*arguments, *(name for on, name in switches if on))


def _environment(instance: Instance, configuration: Configuration) -> tuple[tuple[str, str, str], ...]:
    found = []
    if configuration.data > 1 and len(instance.cluster.nodes) > 1:
        found.append(
            (
                "NCCL_ALGO",
                RING_ALGORITHMS,
                "gradients were costed as rings; without this NCCL may choose trees",
            )
        )
    if configuration.tensor > 1 and configuration.data_sharding not in _FSDP:
        found.append(
            (
                "CUDA_DEVICE_MAX_CONNECTIONS",
                "1",
                "Megatron-LM needs this before Blackwell for tensor collectives to start ahead of the "
                "matrix products",
            )
        )
    if configuration.overlap.tensor > 0:
        found.append(
            (
                "PIPETTE_ASSUMED_TENSOR_OVERLAP",
                f"{configuration.overlap.tensor:g}",
                "share of the tensor collectives that --tp-comm-overlap was assumed to hide; read by nobody "
                "else",
            )
        )
    return tuple(found)
