"""An instance from what everybody knows: model, GPU type, nominal network, batch, sequence length.

The result is a plain dict in the form people edit (units spelled out, node types, one entry for all
equal nodes), with the provenance of every figure by JSON path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.huggingface import import_config
from pipette_milp.schema.instance import parse_instance
from pipette_milp.schema.strict import parse_json, read_text
from pipette_milp.units import Dimension, format_quantity, parse_quantity

MICRO_BATCHES = (1, 2, 4, 8)
"""What init lets the search choose from; larger ones rarely fit a model that needs many GPUs."""

_CLUSTER = re.compile(r"(\d+)x(\d+):(\S+)")
_CARDS = re.compile(r"(?:(\d+)x)?(\d.*)")


@dataclass(frozen=True)
class ClusterSpec:
    """``8x8:a100-80gb``: nodes, GPUs per node, GPU preset."""

    nodes: int
    gpus_per_node: int
    gpu: str

    @classmethod
    def parse(cls, text: str) -> ClusterSpec:
        """Raises InputError with the form that is accepted."""
        match = _CLUSTER.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"cannot read {text!r}, expected NODESxGPUS:TYPE such as 8x8:a100-80gb", source="--cluster"
            )
        spec = cls(int(match[1]), int(match[2]), match[3])
        if spec.nodes < 1 or spec.gpus_per_node < 1:
            raise InputError(f"expected at least one node and one GPU, got {text!r}", source="--cluster")
        return spec


@dataclass(frozen=True)
class NetworkSpec:
    """``8x200Gbit/s``: network cards per node and the line rate of one, bytes/s."""

    cards: int
    bytes_per_s: float

    @classmethod
    def parse(cls, text: str) -> NetworkSpec:
        """Raises InputError with the form that is accepted."""
        match = _CARDS.fullmatch(text.strip())
        if match is None:
            raise InputError(
                f"cannot read {text!r}, expected CARDSxRATE such as 8x200Gbit/s", source="--network"
            )
        try:
            rate = parse_quantity(match[2], Dimension.BANDWIDTH)
        except ValueError as error:
            raise InputError(str(error), source="--network") from None
        cards = int(match[1]) if match[1] else 1
        if cards < 1 or rate <= 0:
            raise InputError(f"expected at least one card above 0 bytes/s, got {text!r}", source="--network")
        return cls(cards, rate)


def read_hosts(path: str | Path) -> list[str]:
    """Host names, one a line in the order of GPU ids; what follows the name and ``#`` comments are ignored.

    Raises:
        InputError: unreadable, no host, or a host twice.
    """
    hosts = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            if words[0] in hosts:
                raise InputError(Problem(f"line {number}", f"{words[0]!r} occurs twice"), source=str(path))
            hosts.append(words[0])
    if not hosts:
        raise InputError("names no host", source=str(path))
    return hosts


def build_instance(
    *,
    model: str,
    cluster: str,
    network: str | None,
    global_batch_size: int,
    sequence_length: int,
    hosts: list[str] | None = None,
    precision: str | None = None,
) -> dict[str, Any]:
    """The instance as a dict ready to be written; it has passed validation.

    Args:
        model: name of a preset or path of a Hugging Face ``config.json``.
        cluster: ``NODESxGPUS:TYPE``.
        network: ``CARDSxRATE`` of every node; may be None with one node.
        hosts: node names in the order of GPU ids; default ``node-000`` and so on.
        precision: default bf16 where the GPU has it, else fp16.

    Raises:
        InputError: unknown or ambiguous presets, a model that is not dense, or contradicting figures.
    """
    spec = ClusterSpec.parse(cluster)
    gpu_name, gpu = presets.find_preset("gpu", spec.gpu)
    provenance: dict[str, Any] = {}
    model_section = _model(model, sequence_length, provenance)
    cluster_section = _cluster(spec, gpu, network, hosts, provenance)
    if precision is None:
        precision = "bf16" if "bf16" in gpu["peak_flops"] else "fp16"
        provenance["training.precision"] = (
            f"default of init: {precision} is the fastest 16-bit type of the GPU"
        )
    training = {
        "global_batch_size": global_batch_size,
        "precision": precision,
        "optimizer": "adam",
        "data_sharding": ["none", "optimizer"],
        "sequence_parallel": [False, True],
        "recompute": ["none", "selective", "full"],
        "flash_attention": gpu["flash_attention"],
    }
    provenance["training.global_batch_size"] = "command line"
    provenance["training"] = "defaults of init: everything that frameworks offer may be chosen"
    if not gpu["flash_attention"]:
        provenance["training.flash_attention"] = "FlashAttention needs Ampere or newer"
    provenance["search"] = "defaults of init"
    instance = {
        "schema_version": 1,
        "name": f"{model_section['name']}-{spec.nodes}x{spec.gpus_per_node}-{gpu_name}",
        "provenance": provenance,
        "model": model_section,
        "training": training,
        "cluster": cluster_section,
        "compute": {"kind": "analytic"},
        "search": {"micro_batch": list(MICRO_BATCHES), "schedules": ["1f1b"]},
    }
    parse_instance(instance)
    return instance


def _model(model: str, sequence_length: int, provenance: dict[str, Any]) -> dict[str, Any]:
    path = Path(model)
    if model == "-" or path.suffix == ".json" or path.exists():
        imported = import_config(parse_json(read_text(model), model), source=model)
        name = (
            (path.parent.name or path.stem) if path.name == "config.json" else path.name.removesuffix(".json")
        )
        section = {"name": name.removesuffix(".config") or "model", **imported.section}
        provenance["model"] = f"Hugging Face configuration {path.name}"
        if imported.notes:
            provenance["model"] += "; " + "; ".join(imported.notes)
    else:
        name, preset = presets.find_preset("model", model)
        section = {"name": name, **preset["model"]}
        provenance["model"] = preset["source"]
    section["sequence_length"] = sequence_length
    provenance["model.sequence_length"] = "command line"
    return section


def _cluster(
    spec: ClusterSpec,
    gpu: dict[str, Any],
    network: str | None,
    hosts: list[str] | None,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    name = gpu["name"]
    links = presets.scale_up(gpu["scale_up"])
    node_type: dict[str, Any] = {"gpus": [name, spec.gpus_per_node]}
    provenance[f"cluster.gpu_types.{name}"] = gpu["source"]
    if spec.gpus_per_node > 1:
        node_type["scale_up"] = {
            "kind": "switch",
            "per_gpu_bandwidth": links["attained"],
            "latency": links["latency"],
        }
        provenance["cluster.node_types.node.scale_up"] = {
            "nominal": links["nominal"],
            "attained": links["attained"],
            "source": links["source"],
        }
    section: dict[str, Any] = {
        "gpu_types": {name: {key: gpu[key] for key in ("memory", "peak_flops", "memory_bandwidth")}},
        "node_types": {"node": node_type},
        "nodes": _nodes(spec, hosts),
        "network": {},
    }
    if hosts is not None:
        provenance["cluster.nodes"] = "host file, in its order"
    if network is not None:
        cards = NetworkSpec.parse(network)
        rule = presets.network_rule()
        attained = cards.bytes_per_s * rule["attained_fraction"]
        node_type["nics"] = {"count": cards.cards, "bandwidth": _exact(attained)}
        section["network"]["inter_node"] = {
            "bandwidth": _exact(cards.cards * attained),
            "latency": rule["latency"],
            "source": "nominal",
        }
        provenance["cluster.network.inter_node"] = {
            "nominal": f"{cards.cards} x {format_quantity(cards.bytes_per_s, Dimension.BANDWIDTH)}",
            "attained": f"{cards.cards} x {format_quantity(attained, Dimension.BANDWIDTH)}",
            "attained_fraction": rule["attained_fraction"],
            "source": rule["source"],
        }
    elif spec.nodes > 1:
        raise InputError(
            f"is required: the cluster has {spec.nodes} nodes, e.g. 8x200Gbit/s", source="--network"
        )
    return section


def _nodes(spec: ClusterSpec, hosts: list[str] | None) -> list[dict[str, Any]]:
    if hosts is None:
        return [{"name": "node-{:03d}", "count": spec.nodes, "type": "node"}]
    if len(hosts) != spec.nodes:
        raise InputError(f"names {len(hosts)} hosts, --cluster has {spec.nodes} nodes", source="--hosts")
    return [{"name": host, "type": "node"} for host in hosts]


def _exact(bytes_per_s: float) -> str:
    """GB/s with enough digits that nothing is lost."""
    return f"{bytes_per_s / 1e9:.12g} GB/s"
