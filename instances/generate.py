"""Makes the instances of this folder: ``python instances/generate.py [DIRECTORY]``.

Shapes are those of published models and of the two clusters of the Pipette paper (16 nodes of 8 V100 on
EDR 100 Gbit/s, 16 nodes of 8 A100 on HDR 200 Gbit/s). Link matrices are drawn as follows, all in GB/s per
node pair, all cards together, row = sender:

* every pair has a mean of ``base * fabric * (1 + noise)``, and its two directions differ by a factor of up
  to 1.14, the largest asymmetry in one snapshot of a real 16-node HDR cluster; most pairs are nearly
  symmetric; both together give directed links a coefficient of variation of 3 % (measured there: 2.9 to 3.7);
* ``base`` is the cards' line rate times 0.77, what one of four simultaneous flows attained of its card there;
* ``fabric`` is the kind: ``flat`` 1 everywhere; ``pods`` 1 inside a pod of four nodes drawn at random,
  0.35 across (a spine with about a third of the leaf bandwidth); ``slow`` 0.5 on every link of the slow
  nodes (a card lost); ``nominal`` has one figure for all pairs, 0.92 of the line rate, as ``init`` does;
  ``groups`` has two nominal figures, inside pods of 32 consecutive nodes and between pods.

Nothing here is measured; the files say so. Same seed, same files.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

SPREAD = 0.03
"""Coefficient of variation between the directed links of one snapshot."""
ASYMMETRY = 0.14
"""Largest relative difference between the two directions of a pair."""
RARITY = 6
"""Exponent on a uniform draw: how few pairs come near the largest asymmetry."""
ATTAINED = 0.77
"""Of the line rate by one of four simultaneous flows, each on its own card (measured)."""
ATTAINED_NOMINAL = 0.92
"""What ``init`` assumes for an idle network."""
ACROSS_PODS = 0.35
SLOW = 0.5
POD_SIZE = 4
LARGE_POD = 32
"""Nodes of a pod in the groups form: 256 GPUs, about the size of a rail-optimised block of leaf switches."""

GPUS: dict[str, dict[str, Any]] = {
    "V100-SXM2-32GB": {
        "memory": "31.7 GiB",
        "peak_flops": {"fp16": "125 TFLOP/s", "fp32": "15.7 TFLOP/s"},
        "memory_bandwidth": "900 GB/s",
    },
    "A100-SXM4-80GB": {
        "memory": "79.1 GiB",
        "peak_flops": {
            "bf16": "312 TFLOP/s",
            "fp16": "312 TFLOP/s",
            "tf32": "156 TFLOP/s",
            "fp32": "19.5 TFLOP/s",
        },
        "memory_bandwidth": "2039 GB/s",
    },
}
"""Vendor data sheets; memory as the driver reports it."""
SCALE_UP = {
    "V100-SXM2-32GB": {"kind": "switch", "per_gpu_bandwidth": "120 GB/s", "latency": "3.4 us"},
    "A100-SXM4-80GB": {"kind": "switch", "per_gpu_bandwidth": "240 GB/s", "latency": "3.4 us"},
}
"""NVLink as NCCL counts it, 20 GB/s per link and direction."""
PRECISION = {"V100-SXM2-32GB": "fp16", "A100-SXM4-80GB": "bf16"}
CARD_GB_PER_S = {"V100-SXM2-32GB": 12.5, "A100-SXM4-80GB": 25.0}
"""Line rate of one card: EDR 100 Gbit/s, HDR 200 Gbit/s."""
CARDS = {"V100-SXM2-32GB": 1, "A100-SXM4-80GB": 4}
"""Per node: one EDR card beside V100s, four HDR cards beside A100s (as on the measured cluster)."""
NETWORK_LATENCY = "14 us"

SHAPES = {
    "gpt-3.2b": (64, 1920, 24),
    "gpt-8.1b": (64, 3072, 24),
    "gpt-18b": (40, 6144, 48),
    "gpt-175b": (96, 12288, 96),
    "gpt-tiny-6": (6, 1024, 16),
    "gpt-tiny-4": (4, 2048, 16),
}
"""Layers, hidden size, heads. The first four are shapes of the Pipette reference code."""


def model(name: str, sequence_length: int) -> dict[str, Any]:
    layers, hidden, heads = SHAPES[name]
    return {
        "name": name,
        "layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden,
        "attention_heads": heads,
        "kv_heads": heads,
        "vocab_size": 50257,
        "sequence_length": sequence_length,
        "gated_mlp": False,
        "tied_embeddings": True,
        "position_embedding": "learned",
        "normalization": "layernorm",
        "biases": True,
    }


def matrix(
    kind: str, nodes: int, base: float, seed: int, slow: tuple[int, ...] = ()
) -> list[list[float | None]]:
    """[nodes][nodes] GB/s, None on the diagonal."""
    draw = random.Random(seed)
    pod = list(range(nodes))
    draw.shuffle(pod)
    pod_of = {node: position // POD_SIZE for position, node in enumerate(pod)}
    # Variance of log(link) from the asymmetry: a draw u**RARITY of the largest half difference.
    from_asymmetry = (math.log(1 + ASYMMETRY) / 2) ** 2 / (2 * RARITY + 1)
    half_width = math.sqrt(3 * (SPREAD**2 - from_asymmetry))  # of the uniform distribution with the rest
    values: list[list[float | None]] = [[None] * nodes for _ in range(nodes)]
    for a in range(nodes):
        for b in range(a + 1, nodes):
            fabric = 1.0
            if kind == "pods" and pod_of[a] != pod_of[b]:
                fabric = ACROSS_PODS
            if kind == "slow" and (a in slow or b in slow):
                fabric = SLOW
            mean = base * fabric * (1 + draw.uniform(-half_width, half_width))
            # Both directions around their mean: their ratio is skew squared, at most 1 + ASYMMETRY.
            skew = (1 + ASYMMETRY) ** (draw.random() ** RARITY / 2)
            forth, back = (skew, 1 / skew) if draw.random() < 0.5 else (1 / skew, skew)
            values[a][b] = round(mean * forth, 4)
            values[b][a] = round(mean * back, 4)
    return values


def instance(
    name: str,
    *,
    shape: str,
    gpu: str,
    nodes: int,
    gpus: int,
    kind: str,
    batch: int,
    sequence_length: int,
    seed: int = 1,
    slow: tuple[int, ...] = (),
    search: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    cards = min(CARDS[gpu], gpus)
    line_rate = cards * CARD_GB_PER_S[gpu]
    inter_node: dict[str, Any]
    if kind == "nominal":
        card = CARD_GB_PER_S[gpu] * ATTAINED_NOMINAL
        inter_node = {"bandwidth": f"{line_rate * ATTAINED_NOMINAL:.12g} GB/s", "latency": NETWORK_LATENCY}
        origin = (
            f"one nominal figure for all pairs: {ATTAINED_NOMINAL} of {cards} x {CARD_GB_PER_S[gpu]:g} GB/s"
        )
    elif kind == "groups":
        card = CARD_GB_PER_S[gpu] * ATTAINED_NOMINAL
        names = [f"node-{n:03d}" for n in range(nodes)]
        within = line_rate * ATTAINED_NOMINAL
        inter_node = {
            "bandwidth": {
                "groups": [names[n : n + LARGE_POD] for n in range(0, nodes, LARGE_POD)],
                "within": f"{within:.12g} GB/s",
                "between": f"{within * ACROSS_PODS:.12g} GB/s",
            },
            "latency": NETWORK_LATENCY,
        }
        origin = (
            f"nominal: {ATTAINED_NOMINAL} of {cards} x {CARD_GB_PER_S[gpu]:g} GB/s inside pods of "
            f"{LARGE_POD} nodes, {ACROSS_PODS} of that between them"
        )
    else:
        # A matrix is what pairs attain; the cards' own ceiling is the line rate.
        card = CARD_GB_PER_S[gpu]
        values = matrix(kind, nodes, line_rate * ATTAINED, seed, slow)
        inter_node = {
            "bandwidth": {"unit": "GB/s", "values": values},
            "measures": "node_pair",
            "latency": NETWORK_LATENCY,
        }
        origin = f"drawn by instances/generate.py, kind {kind}, seed {seed}, nothing measured"
    inter_node["source"] = "nominal"
    return {
        "schema_version": 1,
        "name": name,
        "provenance": {
            "model": "shape table of the Pipette reference code" if shape[4] != "t" else "made up, small",
            "cluster.gpu_types": "vendor data sheets, memory as the driver reports it",
            "cluster.network.inter_node.bandwidth": origin,
        },
        "model": model(shape, sequence_length),
        "training": {
            "global_batch_size": batch,
            "precision": PRECISION[gpu],
            "optimizer": "adam",
            "data_sharding": ["none", "optimizer"],
            "sequence_parallel": [False, True],
            "recompute": ["none", "selective", "full"],
            "flash_attention": False,
            **(training or {}),
        },
        "cluster": {
            "gpu_types": {gpu: GPUS[gpu]},
            "node_types": {
                "node": {
                    "gpus": [gpu, gpus],
                    **({"scale_up": SCALE_UP[gpu]} if gpus > 1 else {}),
                    "nics": {"count": cards, "bandwidth": f"{card:.12g} GB/s"},
                }
            },
            "nodes": [{"name": "node-{:03d}", "count": nodes, "type": "node"}],
            "network": {"inter_node": inter_node},
        },
        "compute": {"kind": "analytic"},
        "search": search or {"tensor": [1, 2, 4, 8], "micro_batch": [1, 2, 4, 8], "schedules": ["1f1b"]},
    }


PLAIN = {"data_sharding": "none", "sequence_parallel": False, "recompute": "none"}
TINY_SEARCH = {"micro_batch": [1, 2], "schedules": ["1f1b"]}


def all_instances() -> dict[str, dict[str, Any]]:
    """Every shipped instance by file name without suffix."""
    v100: dict[str, Any] = {"gpu": "V100-SXM2-32GB", "nodes": 16, "gpus": 8, "sequence_length": 1024}
    a100: dict[str, Any] = {"gpu": "A100-SXM4-80GB", "nodes": 16, "gpus": 8, "sequence_length": 2048}
    tiny: dict[str, Any] = {"sequence_length": 1024, "training": PLAIN, "search": TINY_SEARCH}
    wanted: list[tuple[str, dict[str, Any]]] = [
        (
            "tiny-2x2-a100-nominal",
            {
                **tiny,
                "shape": "gpt-tiny-6",
                "gpu": "A100-SXM4-80GB",
                "nodes": 2,
                "gpus": 2,
                "kind": "nominal",
                "batch": 8,
            },
        ),
        (
            "tiny-3x1-a100-flat",
            {
                **tiny,
                "shape": "gpt-tiny-6",
                "gpu": "A100-SXM4-80GB",
                "nodes": 3,
                "gpus": 1,
                "kind": "flat",
                "batch": 6,
            },
        ),
        (
            "tiny-4x1-v100-slow",
            {
                **tiny,
                "shape": "gpt-tiny-4",
                "gpu": "V100-SXM2-32GB",
                "nodes": 4,
                "gpus": 1,
                "kind": "slow",
                "slow": (2,),
                "batch": 8,
            },
        ),
        (
            "tiny-4x2-a100-flat",
            {
                **tiny,
                "shape": "gpt-tiny-6",
                "gpu": "A100-SXM4-80GB",
                "nodes": 4,
                "gpus": 2,
                "kind": "flat",
                "batch": 8,
                "seed": 2,
            },
        ),
        ("gpt-3.2b-16x8-v100-flat", {**v100, "shape": "gpt-3.2b", "kind": "flat", "batch": 512}),
        ("gpt-8.1b-16x8-v100-flat", {**v100, "shape": "gpt-8.1b", "kind": "flat", "batch": 512}),
        ("gpt-8.1b-16x8-a100-flat", {**a100, "shape": "gpt-8.1b", "kind": "flat", "batch": 512}),
        ("gpt-18b-16x8-a100-flat", {**a100, "shape": "gpt-18b", "kind": "flat", "batch": 512}),
        ("gpt-18b-16x8-a100-pods", {**a100, "shape": "gpt-18b", "kind": "pods", "batch": 512}),
        (
            "gpt-8.1b-16x8-a100-slow",
            {**a100, "shape": "gpt-8.1b", "kind": "slow", "slow": (5, 11), "batch": 512},
        ),
        (
            "gpt-175b-2048x8-a100-groups",
            {**a100, "shape": "gpt-175b", "nodes": 2048, "kind": "groups", "batch": 3072},
        ),
        ("gpt-8.1b-16x8-a100-nominal", {**a100, "shape": "gpt-8.1b", "kind": "nominal", "batch": 512}),
    ]
    return {name: instance(name, **arguments) for name, arguments in wanted}


def text(value: Any, depth: int = 0) -> str:
    """JSON with one line per matrix row."""
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict) and value:
        items = [f"{pad}{json.dumps(key)}: {text(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{end}}}"
    if isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        return "[\n" + ",\n".join(pad + text(item, depth + 1) for item in value) + f"\n{end}]"
    return json.dumps(value)


def main(directory: str) -> None:
    for name, content in all_instances().items():
        path = Path(directory) / f"{name}.json"
        path.write_text(text(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parent))
