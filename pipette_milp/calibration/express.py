"""A measured run as instance and configuration, or the reason why it cannot be expressed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pipette_milp import presets
from pipette_milp.calibration.facts import (
    ATTAINED_FRACTIONS,
    CARDS_OF_GPU,
    CLUSTERS,
    GPU_OF_MODEL,
    ClusterFacts,
    FrameworkFacts,
    framework_facts,
    model_facts,
)
from pipette_milp.calibration.runs import Run
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError, PipetteError
from pipette_milp.legality import check_legal
from pipette_milp.schema.constants import CostConstants, default_constants
from pipette_milp.schema.instance import Instance, parse_instance
from pipette_milp.schema.plan import Configuration, Stage
from pipette_milp.units import Dimension, parse_quantity


class Refused(PipetteError):
    """A row that cannot be expressed; the message is the reason."""


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
        check_legal(costs, configuration)
    except InputError as error:
        raise Refused("; ".join(str(problem) for problem in error.problems)) from None
    return Expressed(run, instance, configuration)


def _instance(run: Run) -> dict[str, Any]:
    facts = framework_facts(run.text("framework"))
    return {
        "schema_version": 1,
        "name": run.name,
        "provenance": run.text("source"),
        "model": _model(run),
        "training": _training(run, facts),
        "cluster": _cluster(run),
        "compute": {"kind": "analytic", "framework_profile": facts.profile},
    }


def _model(run: Run) -> dict[str, Any]:
    if run.count("moe_experts", 1) > 1:
        raise Refused("mixture of experts is not supported yet")
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
    if hidden % heads:
        raise Refused(f"hidden size {hidden} is no multiple of {heads} heads")
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
        "data_sharding": sharding,
        "sequence_parallel": parallel,
        "recompute": run.text("recompute", facts.recompute).lower(),
        "flash_attention": bool(run.flag("flash_attention")),
        "scatter_gather_hops": facts.scatter_gather_hops,
        "overlap": {
            "gradient_reduce": facts.overlap_gradient_reduce
            and not (facts.sharded_reduce_exposed and sharding != "none"),
            "parameter_gather": facts.overlap_parameter_gather and sharding != "none",
            "tensor": default_constants().profile(facts.profile).tensor_overlap
            if facts.overlap_tensor and parallel
            else 0.0,
        },
    }
    gradient = gradient or facts.gradient_dtype.get(precision)
    if gradient is not None:
        section["gradient_dtype"] = gradient
    return section


def gpu_preset(run: Run) -> dict[str, Any]:
    """GPU preset of a row.

    Raises:
        Refused: none, or mixed GPUs.
    """
    name = run.text("gpu_model")
    if "+" in name:
        raise Refused("mixed GPU types are not supported yet")
    memory = run.number("gpu_mem_gb")
    for beginning, canonical in GPU_OF_MODEL:
        if name.upper().startswith(beginning.upper()):
            if canonical == "a100-80gb" and memory is not None and memory <= 40:
                canonical = "a100-40gb"
            if canonical == "v100-16gb" and memory is not None and memory >= 32:
                canonical = "v100-32gb"
            return presets.find_preset("gpu", canonical)[1]
    try:
        return presets.find_preset("gpu", name)[1]
    except InputError as error:
        raise Refused(str(error)) from None


def _cluster(run: Run) -> dict[str, Any]:
    gpu = gpu_preset(run)
    gpus = run.count("num_gpus")
    per_node = min(run.count("gpus_per_node", 8), gpus)
    if gpus % per_node:
        raise Refused(f"{gpus} GPUs are no multiple of {per_node} per node")
    nodes = gpus // per_node
    links = presets.scale_up(gpu["scale_up"])
    attained = parse_quantity(links["attained"], Dimension.BANDWIDTH)
    nominal = parse_quantity(links["nominal"], Dimension.BANDWIDTH)
    stated = run.number("intra_node_bw_GBps")
    if stated is not None and not gpu["scale_up"].startswith("nvlink"):
        # tables give NVLink in one direction, in both, or half of it: there the data sheet counts
        attained *= stated * 1e9 / nominal
    network: dict[str, Any] = {}
    node_type: dict[str, Any] = {"gpus": [gpu["name"], per_node]}
    if per_node > 1:
        node_type["scale_up"] = {
            "kind": "switch",
            "per_gpu_bandwidth": attained,
            "latency": links["latency"],
        }
    if nodes > 1:
        cards, card = _cards(run, nodes)
        node_type["nics"] = {"count": cards, "bandwidth": card}
        network["inter_node"] = {
            "bandwidth": cards * card,
            "latency": presets.network_rule()["latency"],
            "source": "nominal",
        }
    return {
        "gpu_types": {gpu["name"]: {key: gpu[key] for key in ("memory", "peak_flops", "memory_bandwidth")}},
        "node_types": {"node": node_type},
        "nodes": [{"name": "node-{:04d}", "count": nodes, "type": "node"}],
        "network": network,
    }


def _cards(run: Run, nodes: int) -> tuple[int, float]:
    """Number of network cards of a node and what each attains, bytes/s."""
    attained: float = presets.network_rule()["attained_fraction"]
    stated = run.number("inter_node_bw_Gbps")
    if stated is not None:
        total = stated * 1e9 / 8
        cards = max(1, min(8, round(total / 25e9)))
        return cards, attained * total / cards
    facts = dict(CLUSTERS).get(run.source)
    if facts is not None:
        if facts.all_reduce_bytes_per_s:
            return facts.cards, _measured(facts, nodes) / facts.cards
        attained = ATTAINED_FRACTIONS.get(facts.technology, attained)
        return facts.cards, attained * facts.bytes_per_s_per_card
    for beginning, (cards, nominal) in CARDS_OF_GPU:
        if run.text("gpu_model").upper().startswith(beginning):
            return cards, attained * nominal
    raise Refused("the network between nodes is not known: give inter_node_bw_Gbps")


def _measured(facts: ClusterFacts, nodes: int) -> float:
    """Measured all-reduce bandwidth of the smallest measured cluster that is at least as large."""
    for size, value in facts.all_reduce_bytes_per_s:
        if size >= nodes:
            return value
    return facts.all_reduce_bytes_per_s[-1][1]


def _configuration(run: Run, instance: Instance) -> Configuration:
    training = instance.training
    pipeline, tensor = run.count("pp", 1), run.count("tp", 1)
    context, chunks = run.count("cp", 1), run.count("vpp", 1)
    if run.count("ep", 1) > 1:
        raise Refused("expert parallelism is not supported yet")
    grid = pipeline * tensor * context
    data = run.count("dp", max(1, run.count("num_gpus") // grid))
    micro_batch = run.count("micro_batch")
    micro_batches = run.count("num_microbatches", max(1, run.count("global_batch") // (micro_batch * data)))
    schedule = _schedule(run, pipeline, chunks)
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "tensor": tensor,
        "context": context,
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
