"""``python -m pipette_milp.warm_up``: compile all kernels once, so that searches start at full speed.

Runs what a search runs, on a small made-up cluster, with compilation forced; numba keeps the result on disk.
Does nothing where numba is missing or everything was compiled before.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time

NODES, GPUS = 3, 4


def main() -> int:
    """Exit code 0, also where there is nothing to do."""
    if importlib.util.find_spec("numba") is None:
        print("numba is not installed: pip install 'pipette_milp[fast]'", file=sys.stderr)
        return 0
    from pipette_milp import accelerate

    done = accelerate.stamp()
    if done.exists():
        return 0
    if not accelerate.AVAILABLE:
        # the kernels of this process are plain already: start again with compilation forced
        os.environ.pop("PIPETTE_NO_NUMBA", None)
        os.environ["PIPETTE_COMPILE"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "pipette_milp.warm_up"])
    print("compiling kernels, once on this machine ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    _run_everything()
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()
    print(f"done in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


def _run_everything() -> None:
    """Every kernel with the argument types of a real search."""
    import numpy as np

    from pipette_milp.cost.build import CostModel
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.search_space import enumerate_space
    from pipette_milp.simulator import simulate, simulated_s
    from pipette_milp.solvers.annealing import anneal
    from pipette_milp.solvers.evaluation import Evaluator
    from pipette_milp.solvers.family_bound import bound_family
    from pipette_milp.solvers.greedy import greedy
    from pipette_milp.solvers.groups import one_group
    from pipette_milp.solvers.local_search import local_search

    rng = np.random.default_rng(0)
    for tables in enumerate_space(CostModel.of(load_instance(_instance()))).families:
        evaluator = Evaluator(tables)
        start = greedy(evaluator)
        durations = evaluator.durations(start)
        simulated_s(evaluator.graph, durations)
        simulate(evaluator.graph, durations)
        evaluator.simulated_s(start)
        local_search(evaluator, start, rng, iterations=200)
        anneal(evaluator, start, rng, iterations=200)
        bound_family(evaluator, one_group(tables), 1e9, time_limit_s=5.0)


def _instance() -> dict[str, object]:
    links = [[None if i == j else 20.0 + i + 0.5 * j for j in range(NODES)] for i in range(NODES)]
    return {
        "schema_version": 1,
        "name": "warm-up",
        "model": {
            "name": "small",
            "layers": 8,
            "hidden_size": 512,
            "ffn_hidden_size": 2048,
            "attention_heads": 8,
            "vocab_size": 8192,
            "sequence_length": 512,
            "gated_mlp": False,
            "tied_embeddings": True,
            "position_embedding": "learned",
            "normalization": "layernorm",
            "biases": True,
        },
        "training": {
            "global_batch_size": 48,
            "precision": "bf16",
            "data_sharding": ["optimizer"],
            "pipeline_transfers": ["exchange", "async"],
        },
        "cluster": {
            "gpu_types": {
                "gpu": {
                    "memory": "40 GiB",
                    "peak_flops": {"bf16": "300 TFLOP/s"},
                    "memory_bandwidth": "2 TB/s",
                }
            },
            "nodes": [{"name": f"node-{i}", "gpu_type": "gpu", "gpus": GPUS} for i in range(NODES)],
            "network": {
                "intra_node": {"bandwidth": "300 GB/s", "latency": "4 us"},
                "inter_node": {
                    "bandwidth": {"unit": "GB/s", "values": links},
                    "measures": "node_pair",
                    "latency": "8 us",
                    "source": "nominal",
                },
                "uplinks": [{"name": "pair", "nodes": ["node-0", "node-1"], "bandwidth": "30 GB/s"}],
            },
        },
        "compute": {"kind": "analytic"},
        "search": {"tensor": [1, 2], "pipeline": [2, 3], "micro_batch": [1], "schedules": ["1f1b"]},
    }


if __name__ == "__main__":
    sys.exit(main())
