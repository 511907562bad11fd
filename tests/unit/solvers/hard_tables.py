"""A placement problem that no back end closes within a few seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipette_milp.cost.tables import CostTables
from pipette_milp.schema.plan import Configuration, split_stages
from tests.oracle.tiny_tables import random_tables


def hard_tables(nodes: int = 12) -> CostTables:
    """Four stages by three replicas, one cell a node, directed links between 1 and 30 GB/s."""
    rng = np.random.default_rng(1)
    stages = 4
    configuration = Configuration(
        pipeline=stages,
        tensor=1,
        data=nodes // stages,
        micro_batch=1,
        num_micro_batches=16,
        stages=split_stages((6,) * stages),
    )
    tiny = random_tables(np.random.default_rng(0), (stages, nodes // stages, 1, nodes, (1,) * nodes))
    return replace(
        tiny,
        configuration=configuration,
        total_layers=6 * stages,
        min_layers=np.ones(stages, dtype=int),
        max_layers=np.full(stages, 12),
        weight_gradient_layer_s=0.0,
        memory_usable_bytes=1e3,
        pair_bytes_per_s=rng.uniform(1e9, 30e9, (nodes, nodes)),
        latency_s=rng.uniform(1e-6, 2e-3, (nodes, nodes)),
        egress_bytes_per_s=np.full(nodes, 30e9),
        ingress_bytes_per_s=np.full(nodes, 30e9),
        hop_bytes=2e7,
    )
