"""Small instances written as files are, with changes by place."""

from __future__ import annotations

import copy
from typing import Any

from pipette_milp.cost.build import CostModel
from pipette_milp.presets import find_preset
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.plan import Configuration, split_stages

GPT: dict[str, Any] = {
    "name": "gpt-small",
    "layers": 6,
    "hidden_size": 1024,
    "ffn_hidden_size": 4096,
    "attention_heads": 16,
    "vocab_size": 50257,
    "sequence_length": 512,
    "gated_mlp": False,
    "tied_embeddings": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "biases": True,
}

BASE: dict[str, Any] = {
    "schema_version": 1,
    "name": "small",
    "model": GPT,
    "training": {"global_batch_size": 16, "precision": "bf16"},
    "cluster": {
        "gpu_types": {
            "gpu": {
                "memory": "79.1 GiB",
                "peak_flops": {"bf16": "312 TFLOP/s", "fp16": "312 TFLOP/s", "fp32": "19.5 TFLOP/s"},
                "memory_bandwidth": "2039 GB/s",
            }
        },
        "node_types": {},
        "nodes": [{"name": "node-{:03d}", "count": 2, "gpu_type": "gpu", "gpus": 2}],
        "network": {
            "intra_node": {"bandwidth": "200 GB/s", "latency": "4 us"},
            "inter_node": {"bandwidth": "20 GB/s", "latency": "10 us"},
        },
    },
    "compute": {"kind": "analytic"},
    "search": {},
}


def instance_data(changes: dict[str, Any] | None = None, **sections: dict[str, Any]) -> dict[str, Any]:
    """The base file with ``{"cluster/nodes/0/gpus": 4}`` changed and ``training={...}`` updated."""
    data = copy.deepcopy(BASE)
    for name, section in sections.items():
        data[name] |= section
    for place, value in (changes or {}).items():
        *parents, last = place.split("/")
        target = data
        for part in parents:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[int(last) if isinstance(target, list) else last] = value
    return data


def instance(changes: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Instance:
    """`instance_data`, loaded."""
    return load_instance(instance_data(changes, **sections))


def costs(changes: dict[str, Any] | None = None, **sections: dict[str, Any]) -> CostModel:
    """Its cost model."""
    return CostModel.of(instance(changes, **sections))


def preset_model(name: str, sequence_length: int = 1024) -> dict[str, Any]:
    """Section ``model`` of a preset."""
    canonical, preset = find_preset("model", name)
    return {"name": canonical, **preset["model"], "sequence_length": sequence_length}


def configuration(layers: tuple[int, ...] = (6,), **fields: Any) -> Configuration:
    """One micro-batch of one sequence on one GPU per stage unless said."""
    defaults: dict[str, Any] = {
        "pipeline": len(layers),
        "tensor": 1,
        "data": 1,
        "micro_batch": 1,
        "num_micro_batches": 16,
        "stages": split_stages(layers),
    }
    return Configuration(**{**defaults, **fields})
