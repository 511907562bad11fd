"""Small instances whose linear cost tables are only lower estimates."""

from __future__ import annotations

from typing import Any

from pipette_milp.cost.build import CostModel
from tests.instance_cases import costs

MOE: dict[str, Any] = {"experts": 8, "top_k": 2, "ffn_hidden_size": 1024}
ROPE: dict[str, Any] = {"position_embedding": "rope", "tied_embeddings": False}
SLOW: dict[str, Any] = {
    "memory": "14.6 GiB",
    "peak_flops": {"bf16": "65 TFLOP/s"},
    "memory_bandwidth": "320 GB/s",
}
FLASH = {"flash_attention": True}


def mixture(*, dense_first: int = 0, changes: dict[str, Any] | None = None, **sections: Any) -> CostModel:
    """Six layers with experts, the first few without."""
    model = {**ROPE, "moe": {**MOE, "first_dense_layers": dense_first}, **sections.pop("model", {})}
    training = {**FLASH, **sections.pop("training", {})}
    return costs(changes, model=model, training=training, **sections)


def two_types(changes: dict[str, Any] | None = None, **sections: Any) -> CostModel:
    """Two nodes of two GPUs, those of the second slow and small."""
    nodes = [
        {"name": "fast", "gpu_type": "gpu", "gpus": 2},
        {"name": "slow", "gpu_type": "old", "gpus": 2},
    ]
    types = {
        "gpu": {"memory": "79.1 GiB", "peak_flops": {"bf16": "312 TFLOP/s"}, "memory_bandwidth": "2039 GB/s"},
        "old": dict(SLOW),
    }
    return costs({"cluster/nodes": nodes, "cluster/gpu_types": types, **(changes or {})}, **sections)
