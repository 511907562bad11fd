"""Random small instances as files hold them, for solvers from end to end.

Models are small and networks slow, so that communication decides and a wrong duration changes the plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.exhaustive import candidate_count

MOST_PLANS = 6_000
"""Plans up to which an instance is small."""

CLUSTERS = (
    # GPUs of each node
    (1,),
    (2,),
    (1, 1),
    (2, 2),
    (1, 1, 1),
    (2, 1),
    (3, 1),
    (2, 2, 1),
    (4,),
    (1, 1, 1, 1),
)


def instance_data(rng: np.random.Generator) -> dict[str, Any]:
    """One instance; nothing says that it has a legal plan."""
    gpus = CLUSTERS[int(rng.integers(len(CLUSTERS)))]
    return {
        "schema_version": 1,
        "name": "random",
        "model": _model(rng),
        "training": _training(rng),
        "cluster": _cluster(rng, gpus),
        "compute": {"kind": "analytic"},
        "search": _search(rng),
    }


def _model(rng: np.random.Generator) -> dict[str, Any]:
    hidden = int(rng.choice([512, 768, 1024]))
    return {
        "name": "gpt-random",
        "layers": int(rng.integers(2, 6)),
        "hidden_size": hidden,
        "ffn_hidden_size": 4 * hidden,
        "attention_heads": int(rng.choice([6, 8, 12])),
        "head_dim": 64,
        "vocab_size": int(rng.choice([2000, 32000])),
        "sequence_length": int(rng.choice([256, 512, 1024])),
        "gated_mlp": bool(rng.random() < 0.5),
        "tied_embeddings": bool(rng.random() < 0.6),
        "position_embedding": "learned",
        "normalization": "layernorm",
        "biases": True,
    }


def _training(rng: np.random.Generator) -> dict[str, Any]:
    def some(*choices: Any) -> Any:
        """One of them, or a list of all to choose from."""
        pick = int(rng.integers(len(choices) + 1))
        return list(choices) if pick == len(choices) else choices[pick]

    training: dict[str, Any] = {
        "global_batch_size": some(6, 8) if rng.random() < 0.3 else int(rng.choice([4, 6, 8])),
        "precision": "bf16",
        "data_sharding": some("none", "optimizer"),
        "sequence_parallel": False if rng.random() < 0.6 else some(False, True),
        "recompute": "none" if rng.random() < 0.6 else some("none", "full"),
        "flash_attention": bool(rng.random() < 0.5),
    }
    if rng.random() < 0.7:
        training["pipeline_transfers"] = some("exchange", "async")
    if rng.random() < 0.3:
        training["scatter_gather_hops"] = True
    if rng.random() < 0.4:
        sharded = "optimizer" in training["data_sharding"]
        training["overlap"] = {"gradient_reduce": True, "parameter_gather": sharded and rng.random() < 0.5}
    return training


def _cluster(rng: np.random.Generator, gpus: tuple[int, ...]) -> dict[str, Any]:
    size = len(gpus)
    wild = rng.random() < 0.6
    rates = rng.uniform(0.3, 8.0, (size, size)) if wild else rng.choice([1.0, 6.0], (size, size))
    matrix = [[None if a == b else float(rates[a, b]) for b in range(size)] for a in range(size)]
    network: dict[str, Any] = {
        "intra_node": {
            "bandwidth": f"{float(rng.choice([0.5, 20.0, 200.0]))} GB/s",
            "latency": f"{float(rng.uniform(2, 50))} us",
        },
    }
    if size > 1:
        network["inter_node"] = {
            "bandwidth": {"unit": "GB/s", "values": matrix},
            "measures": "node_pair",
            "latency": f"{float(rng.uniform(5, 500))} us",
            "source": "measured",
        }
    if rng.random() < 0.5:
        network["node_bandwidth"] = f"{float(rng.uniform(0.5, 4.0))} GB/s"
    if rng.random() < 0.3:
        network["per_gpu_bandwidth"] = f"{float(rng.uniform(0.3, 4.0))} GB/s"
    cluster: dict[str, Any] = {
        "gpu_types": {
            "gpu": {
                "memory": f"{float(rng.choice([79.1, rng.uniform(2.5, 6.0)])):.3f} GiB",
                "peak_flops": {"bf16": "100 TFLOP/s", "fp32": "10 TFLOP/s"},
                "memory_bandwidth": "1500 GB/s",
            }
        },
        "node_types": {},
        "nodes": [{"name": f"n{i}", "gpu_type": "gpu", "gpus": count} for i, count in enumerate(gpus)],
        "network": network,
    }
    if sum(gpus) > 2 and rng.random() < 0.25:
        cluster["exclude"] = {"gpus": [f"n{size - 1}:{gpus[-1] - 1}"]} if gpus[-1] > 1 else {"nodes": ["n0"]}
    return cluster


def _search(rng: np.random.Generator) -> dict[str, Any]:
    schedules = [["1f1b"], ["gpipe"], ["1f1b", "gpipe"], ["zb-h1"], ["1f1b", "interleaved"]]
    search: dict[str, Any] = {
        "schedules": schedules[int(rng.integers(len(schedules)))],
        "micro_batch": [1] if rng.random() < 0.5 else [1, 2],
        "use_all_gpus": bool(rng.random() < 0.6),
    }
    if "interleaved" in search["schedules"]:
        search["virtual_stages"] = [1, 2]
    return search


def random_instance(seed: int) -> Instance:
    """The first of a seed's instances that enumeration is quick for; it may have no legal plan."""
    rng = np.random.default_rng(seed)
    while True:
        instance = load_instance(instance_data(rng))
        families = enumerate_space(CostModel.of(instance)).families
        if sum(candidate_count(tables) for tables in families) <= MOST_PLANS:
            return instance
