"""What the linear cost tables only bound from below: unlike layers, unlike GPUs, collectives inside tasks.

Index letters: ``V`` virtual stages, ``p`` stages, ``d`` replicas, ``N`` nodes, ``K`` kinds of layer, ``T``
kinds of GPU; the last axis of length 3 is forward, backward (the input's part where the schedule separates
the weight gradient) and weight gradient, seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.expert_exchange import ExpertExchange
from pipette_milp.cost.sharded_layers import ShardedLayers
from pipette_milp.cost.tables import Ring


@dataclass(frozen=True)
class Detail:
    """Exact costs of a family as functions of layer split and placement."""

    reasons: tuple[str, ...]
    """Why the linear tables are not exact, in words."""
    kind_of_layer: IntArray
    """[L]"""
    type_of_node: IntArray
    """[N]"""
    layer_s: Array
    """[T, K, 3] one layer, tensor and context collectives included."""
    task_s: Array
    """[T, V, 3] embedding, head and host overhead of a task."""
    optimizer_layer_s: Array
    """[T, K]"""
    optimizer_extra_s: Array
    """[T, p]"""
    sync_layer_bytes: Array
    """[K] of `CostTables.sync`, in place of ``bytes_per_layer``."""
    gather_layer_bytes: Array
    """[K]"""
    memory_layer_bytes: Array
    """[p, K] device memory."""
    memory_extra_bytes: Array
    """[p]"""
    memory_once_bytes: Array
    """[p, K] needed once on a stage that holds a layer of the kind; the largest counts."""
    usable_bytes: Array
    """[T]"""
    local_ring_share: float = 1.0
    """What a scale-up port carries over what `CostTables.sync` and ``gather`` say: the context degree where
    the tables divide a ring over the members of a cell."""
    cell_sync_s: Array | None = None
    """[2, K] seconds of reducing a layer's gradients and gathering its parameters inside a cell, one
    replica."""
    cell_sync_extra_s: Array | None = None
    """[2, p]"""
    experts: ExpertExchange | None = None
    sharded: ShardedLayers | None = None

    @property
    def kinds(self) -> int:
        return int(self.layer_s.shape[1])

    def kind_counts(self, layers: IntArray) -> IntArray:
        """[V, K] layers of each kind on each virtual stage of a split [V]."""
        ends = np.concatenate([[0], np.cumsum(layers)])
        counts = np.zeros((len(layers), self.kinds), dtype=np.int64)
        for j in range(len(layers)):
            counts[j] = np.bincount(self.kind_of_layer[ends[j] : ends[j + 1]], minlength=self.kinds)
        return counts

    def stage_counts(self, layers: IntArray) -> IntArray:
        """[p, K]"""
        pipeline = self.memory_layer_bytes.shape[0]
        return np.asarray(self.kind_counts(layers).reshape(-1, pipeline, self.kinds).sum(axis=0))

    def memory_bytes(self, layers: IntArray) -> Array:
        """[p] device memory of each stage."""
        counts = self.stage_counts(layers)
        once = np.where(counts > 0, self.memory_once_bytes, 0.0).max(axis=1)
        return np.asarray(self.memory_extra_bytes + (self.memory_layer_bytes * counts).sum(axis=1) + once)

    def usable_of_stage(self, node_of_cell: IntArray) -> Array:
        """[p] usable memory of the smallest GPU of each stage of a placement [p, d]."""
        return np.asarray(self.usable_bytes[self.type_of_node[node_of_cell]].min(axis=1))

    def sent_bytes(self, ring: Ring, layer_bytes: Array, layers: IntArray) -> Array:
        """[p] bytes of a ring of each stage."""
        return np.asarray(self.stage_counts(layers) @ layer_bytes + ring.bytes_extra)
