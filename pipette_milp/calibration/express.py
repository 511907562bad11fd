"""A measured run as instance and configuration, or the reason why it cannot be expressed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipette_milp.calibration.clusters import cluster_section
from pipette_milp.calibration.facts import FrameworkFacts, Refused, framework_facts, model_facts
from pipette_milp.calibration.runs import Run
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.legality import illegalities
from pipette_milp.schedules import get_schedule
from pipette_milp.schema.constants import CostConstants, default_constants
from pipette_milp.schema.instance import Instance, parse_instance
from pipette_milp.schema.plan import Configuration, Stage


@dataclass(frozen=True)
class Expressed:
    """A run and what the cost model is asked about it."""

    run: Run
    instance: Instance
    configuration: Configuration


def express(run: Run, constants: CostConstants | None = None) -> Expressed:
    """Instance and configuration of a row.

    Raises:
        Refused: the row lacks something, or asks for what the cost model does not have.
    """
    try:
        data = _instance(run)
        instance = parse_instance(data)
        configuration = _configuration(run, instance)
        costs = CostModel.of(instance)
        problems = [
            problem
            for problem in illegalities(costs, configuration, tensor_over_nodes=True)
            if not (problem.path == "schedule" and _only_needs_a_layout(configuration))
        ]
        if problems:
            raise Refused("; ".join(str(problem) for problem in problems))
    except Refused:
        raise
    except InputError as error:
        raise Refused("; ".join(str(problem) for problem in error.problems)) from None
    return Expressed(run, instance, configuration)


def _only_needs_a_layout(configuration: Configuration) -> bool:
    """Whether the schedule's only objection is that uneven chunks need an explicit pipeline layout: the run
    had one."""
    reason = get_schedule(configuration.schedule).legality(
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )
    return reason is None


def _instance(run: Run) -> dict[str, Any]:
    facts = framework_facts(run.text("framework"))
    return {
        "schema_version": 1,
        "name": run.name,
        "provenance": run.text("source"),
        "model": _model(run),
        "training": _training(run, facts),
        "cluster": cluster_section(run),
        "compute": {"kind": "analytic", "framework_profile": facts.profile},
    }


def _model(run: Run) -> dict[str, Any]:
    heads, hidden = run.count("heads"), run.count("hidden")
    section: dict[str, Any] = {
        "name": run.text("model_name", "model"),
        "layers": run.count("layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": run.count("ffn_hidden", 4 * hidden),
        "attention_heads": heads,
        "kv_heads": run.count("kv_heads", heads),
        "vocab_size": run.count("vocab"),
        "sequence_length": run.count("seq_len"),
        **model_facts(run.text("model_name")),
    }
    if run.count("moe_experts", 1) > 1:
        if "moe" not in section:
            raise Refused(f"the experts' width of {section['name']!r} is not known")
        section["moe"] = {
            **section["moe"],
            "experts": run.count("moe_experts"),
            "top_k": run.count("moe_topk"),
        }
        dense = re.search(r"dense_layers=(\d+)", run.text("notes"))
        if dense is not None:
            section["moe"]["first_dense_layers"] = int(dense[1])
        if not section["moe"].get("first_dense_layers"):
            # tables give the experts' width where no layer is dense
            section["ffn_hidden_size"] = section["moe"]["ffn_hidden_size"]
    else:
        section.pop("moe", None)
    if "head_dim" not in section and "mla" not in section and hidden % heads:
        raise Refused(f"hidden size {hidden} is no multiple of {heads} heads")
    if "mla" in section:
        section["head_dim"] = section["mla"]["v_head_dim"]
    return section


def _precision(run: Run) -> tuple[str, str | None]:
    """Precision and gradient type (None = default)."""
    text = run.text("precision", "bf16").lower()
    gradient = "fp32" if "fp32_allreduce=true" in text else None
    for name in ("fp8", "fp4", "bf16", "fp16", "tf32", "fp32"):
        if name in text.split("(")[0]:
            if name == "fp4":
                raise Refused("fp4 training is not supported")
            return name, gradient
    raise Refused(f"unknown precision {text!r}")


_SHARDING = {
    "": None,
    "0": "none",
    "1": "optimizer",
    "dist_opt": "optimizer",
    "2": "gradients",
    "3": "parameters",
}


def _sharding(run: Run, facts: FrameworkFacts) -> str:
    word = run.text("zero_stage_or_dist_opt").split(" ")[0].split(".")[0].lower()
    if word == "fsdp":
        word = "3"
    if word not in _SHARDING:
        raise Refused(f"unknown sharding {run.text('zero_stage_or_dist_opt')!r}")
    return _SHARDING[word] or facts.data_sharding


def _training(run: Run, facts: FrameworkFacts) -> dict[str, Any]:
    if run.text("offload", "none").lower() not in ("none", "false", "0"):
        raise Refused("offloading is not supported")
    precision, gradient = _precision(run)
    sharding = _sharding(run, facts)
    parallel = run.flag("seq_parallel")
    parallel = facts.sequence_parallel if parallel is None else parallel
    parallel = parallel and run.count("tp", 1) > 1
    section: dict[str, Any] = {
        "global_batch_size": run.count("global_batch"),
        "precision": precision,
        "framework": facts.framework,
        "data_sharding": sharding,
        "sequence_parallel": parallel,
        "recompute": run.text("recompute", facts.recompute).lower(),
        "flash_attention": bool(run.flag("flash_attention")),
        "scatter_gather_hops": facts.scatter_gather_hops,
        "overlap": {
            "gradient_reduce": facts.overlap_gradient_reduce
            and not (facts.sharded_reduce_exposed and sharding != "none"),
            "parameter_gather": facts.overlap_parameter_gather and sharding in ("optimizer", "gradients"),
            "tensor": default_constants().profile(facts.profile).tensor_overlap
            if facts.overlap_tensor and parallel
            else 0.0,
        },
    }
    gradient = gradient or facts.gradient_dtype.get(precision)
    if gradient is not None:
        section["gradient_dtype"] = gradient
    return section


def _configuration(run: Run, instance: Instance) -> Configuration:
    training = instance.training
    pipeline, tensor = run.count("pp", 1), run.count("tp", 1)
    context, chunks = run.count("cp", 1), run.count("vpp", 1)
    grid = pipeline * tensor * context
    data = run.count("dp", max(1, run.count("num_gpus") // grid))
    micro_batch = run.count("micro_batch")
    micro_batches = run.count("num_microbatches", max(1, run.count("global_batch") // (micro_batch * data)))
    schedule = _schedule(run, pipeline, chunks)
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "tensor": tensor,
        "context": context,
        "expert": run.count("ep", 1),
        "data": data,
        "virtual_stages": chunks,
        "micro_batch": micro_batch,
        "num_micro_batches": micro_batches,
        "schedule": schedule,
        "pipeline_transfers": training.transfers_for(schedule)[0],
        "stages": _stages(run, pipeline * chunks),
        "recompute": training.recompute[0],
        "sequence_parallel": training.sequence_parallel[0],
        "data_sharding": training.data_sharding[0],
        "gradient_dtype": training.gradient_dtype,
        "overlap": training.overlap,
    }
    return Configuration(**fields)


def _schedule(run: Run, pipeline: int, chunks: int) -> str:
    word = run.text("schedule", "1F1B").lower()
    if word in ("none", "1f1b"):
        return "interleaved" if chunks > 1 else "1f1b"
    if word.startswith("interleaved"):
        return "interleaved" if chunks > 1 and pipeline > 1 else "1f1b"
    if word in ("gpipe", "zb-h1"):
        return word
    raise Refused(f"unknown schedule {run.text('schedule')!r}")


def _stages(run: Run, virtual: int) -> tuple[Stage, ...]:
    """Stages of the row's partition, else as even as possible with the embedding first and the head last."""
    layers = run.count("layers")
    partition = run.text("layer_partition")
    if partition:
        return _stages_of_list(run, partition, layers)
    counts = layer_counts(run.text("framework"), layers, virtual, run)
    return tuple(
        Stage(embedding=index == 0, layers=count, head=index == virtual - 1)
        for index, count in enumerate(counts)
    )


def layer_counts(framework: str, layers: int, virtual: int, run: Run) -> list[int]:
    """Layers of every virtual stage as the framework splits them."""
    if framework.lower().startswith("nanotron"):
        return _nanotron_counts(run, layers, virtual)
    if layers % virtual and (layers + 2) % virtual == 0:
        # embedding and head each count as a layer (Megatron-Core account_for_*_in_pipeline_split; DeepSpeed
        # "type:transformer|embedding")
        counts = [(layers + 2) // virtual] * virtual
        counts[0] -= 1
        counts[-1] -= 1
        return counts
    whole, rest = divmod(layers, virtual)
    return [whole + (1 if index < rest else 0) for index in range(virtual)]


def _nanotron_counts(run: Run, layers: int, virtual: int) -> list[int]:
    """nanotron fills a stage until its operations pass the even share; the embedding counts as nothing,
    the head as its product (``build_parallel_model`` and ``get_block_compute_costs`` of the Llama model)."""
    hidden = run.count("hidden")
    layer = 4 * hidden * hidden + 3 * run.count("ffn_hidden", 4 * hidden) * hidden
    total = layers * layer + run.count("vocab") * hidden
    counts = [0] * virtual
    stage = 0
    for index in range(layers):
        counts[stage] += 1
        if (index + 1) * layer > total * (stage + 1) / virtual:
            stage += 1
    return counts


def _stages_of_list(run: Run, partition: str, layers: int) -> tuple[Stage, ...]:
    """Boundaries over DeepSpeed's list: embedding, reorder, layers, reorder, norm, tied head, cast."""
    try:
        bounds = [int(word) for word in partition.split("-")]
    except ValueError:
        raise Refused(f"unknown layer partition {partition!r}") from None
    first, last = 2, 2 + layers
    head = layers + 4
    return tuple(
        Stage(
            embedding=low == 0,
            layers=max(0, min(high, last) - max(low, first)),
            head=low <= head < high,
        )
        for low, high in pairwise(bounds)
    )
