"""The emulated clusters of the study and the training job that runs on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.measure.emulation.shaping import EmulatedNetwork
from pipette_milp.partial_configuration import complete_configuration
from pipette_milp.schema.instance import Instance, load_instance

NODES = 8
MBIT_BYTES = 1e6 / 8
SEQUENCES_PER_RANK = 4
"""Global batch over ranks: an iteration of three seconds of compute."""
SHORTEST_TASK_S = 0.031
"""Forward of one layer and one sequence: a sleeping process meets 30 ms to about a percent."""
MICRO_BATCH = (1, 2, 4)
"""Sequences of a micro-batch."""
SLOWEST_MBIT_PER_S, FASTEST_MBIT_PER_S = 20.0, 200.0
"""Rates between which the emulation was found to keep its shape on two cores."""


@dataclass(frozen=True)
class StudyCluster:
    """One emulated cluster."""

    name: str
    ranks_per_node: int
    network: EmulatedNetwork


def pods(rng: np.random.Generator) -> StudyCluster:
    """Two pods of four nodes drawn at random; across pods links have 0.4 of the rate. Two ranks a node."""
    pod = rng.permutation(np.arange(NODES) % 2)
    base = np.where(pod[:, None] == pod[None, :], 150.0, 60.0)
    return _cluster("pods", 2, base * rng.uniform(0.94, 1.06, (NODES, NODES)))


def slow_node(rng: np.random.Generator) -> StudyCluster:
    """All links alike but for those of one node, which lost half of its cards. One rank a node."""
    rates = 110.0 * rng.uniform(0.94, 1.06, (NODES, NODES))
    slow = int(rng.integers(NODES))
    rates[slow, :] *= 0.4
    rates[:, slow] *= 0.4
    return _cluster("slow-node", 1, rates)


def wild(rng: np.random.Generator) -> StudyCluster:
    """Every directed link a rate of its own. Two ranks a node."""
    return _cluster("wild", 2, np.exp(rng.uniform(np.log(40.0), np.log(160.0), (NODES, NODES))))


CLUSTERS = {"pods": pods, "slow-node": slow_node, "wild": wild}


def study_clusters(seed: int, names: list[str] | None = None) -> list[StudyCluster]:
    """The clusters of a seed; each has a generator of its own, so a part of them is the same as in all."""
    return [
        CLUSTERS[name](np.random.default_rng([seed, index]))
        for index, name in enumerate(CLUSTERS)
        if names is None or name in names
    ]


def _cluster(name: str, ranks_per_node: int, rates_mbit_per_s: np.ndarray) -> StudyCluster:
    clipped = np.clip(rates_mbit_per_s, SLOWEST_MBIT_PER_S, FASTEST_MBIT_PER_S)
    return StudyCluster(name, ranks_per_node, EmulatedNetwork.of(clipped * MBIT_BYTES))


def study_instance(name: str, network: dict[str, Any], nodes: list[str], ranks_per_node: int) -> Instance:
    """A small training job on a measured network.

    The model is sized so that on these links hops take tens of milliseconds and a gradient ring tenths of a
    second. The emulated GPU is as fast as it takes for `SHORTEST_TASK_S`.

    Args:
        network: section of an instance, as `measure network` writes it.
    """
    low, high = 1e9, 1e15
    while high / low > 1.001:  # a layer's time does not simply go with the peak
        middle = (low * high) ** 0.5
        job = _job(name, network, nodes, ranks_per_node, middle)
        tables = CostModel.of(job).tables(
            complete_configuration({"pipeline": 1, "tensor": 1, "micro_batch": 1}, job)
        )
        low, high = (middle, high) if tables.forward_layer_s > SHORTEST_TASK_S else (low, middle)
    return _job(name, network, nodes, ranks_per_node, low)


def _job(
    name: str, network: dict[str, Any], nodes: list[str], ranks_per_node: int, flop_per_s: float
) -> Instance:
    return load_instance(
        {
            "schema_version": 1,
            "name": f"emulated-{name}",
            "provenance": {"cluster.network": "measured on an emulated cluster", "model": "made up, small"},
            "model": {
                "name": "gpt-emulated",
                "layers": 8,
                "hidden_size": 96,
                "ffn_hidden_size": 384,
                "attention_heads": 4,
                "vocab_size": 1024,
                "sequence_length": 1024,
                "gated_mlp": False,
                "tied_embeddings": False,
                "position_embedding": "rope",
                "normalization": "layernorm",
                "biases": True,
            },
            "training": {
                "global_batch_size": SEQUENCES_PER_RANK * len(nodes) * ranks_per_node,
                "precision": "bf16",
                "pipeline_transfers": ["exchange", "async"],
            },
            "cluster": {
                "gpu_types": {
                    "emulated": {
                        "memory": "16 GiB",
                        "peak_flops": {"bf16": flop_per_s},
                        "memory_bandwidth": "100 GB/s",
                    }
                },
                "nodes": [{"name": node, "gpu_type": "emulated", "gpus": ranks_per_node} for node in nodes],
                "network": network,
            },
            "search": {"micro_batch": list(MICRO_BATCH), "schedules": ["1f1b", "gpipe"]},
        }
    )
