"""Gathers and reductions of every pass where gradients or parameters are sharded over the replicas.

Fully sharded parameters (FSDP, ZeRO-3): a layer's parameters are gathered before its forward and again before
its backward, one layer ahead, and its gradients are reduced after its backward, while the neighbours compute;
ZeRO-2 reduces gradients only. A layer then takes the longer of its compute and its traffic; the first gather
of a pass and the last reduction of a backward have nothing to hide under. Source: PyTorch FSDP (arXiv
2304.11277, section 4.3), DeepSpeed ``stage_1_and_2.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import Ring

RingTimes = Callable[[Ring, Array], Array]
"""[p] times of a ring whose stages send [p] bytes, on a placement."""


@dataclass(frozen=True)
class ShardedLayers:
    """Traffic of sharded layers; ``gather`` sends nothing where only gradients are sharded."""

    gather: Ring
    gather_layer_bytes: Array
    """[K]"""
    reduce: Ring
    reduce_layer_bytes: Array
    """[K]"""

    def tasks_s(
        self, ring_times: RingTimes, counts: IntArray, layer_s: Array, task_s: Array, separate: bool
    ) -> Array:
        """[V, d, 3] duration of every task.

        Args:
            counts: [V, K] layers; ``layer_s`` [V, d, K, 3], ``task_s`` [V, d, 3].
            separate: the weight gradient is a task of its own, and reduces.
        """
        stages = len(self.gather.bytes_extra)
        gather = self._unit_times(ring_times, self.gather, self.gather_layer_bytes)
        reduce = self._unit_times(ring_times, self.reduce, self.reduce_layer_bytes)
        of_stage = np.arange(len(counts)) % stages
        gather, reduce = gather[of_stage], reduce[of_stage]  # [V, K + 1], the last for embedding and head
        traffic = np.zeros((*gather.shape, 3))
        traffic[..., 0] = gather
        traffic[..., 1] = gather if separate else gather + reduce
        traffic[..., 2] = reduce if separate else 0.0
        layers = np.maximum(layer_s, traffic[:, None, :-1, :])
        total = np.einsum("vk,vdkc->vdc", counts, layers)
        total = total + np.maximum(task_s, traffic[:, None, -1, :])
        held = np.where(counts > 0, 1.0, 0.0)
        first = np.where(held.any(axis=1), (held * gather[:, :-1]).max(axis=1), gather[:, -1])
        last = np.where(held.any(axis=1), (held * reduce[:, :-1]).max(axis=1), reduce[:, -1])
        total[..., 0] += first[:, None]
        total[..., 1] += first[:, None] + (0.0 if separate else last[:, None])
        total[..., 2] += last[:, None] if separate else 0.0
        return np.asarray(total)

    def _unit_times(self, ring_times: RingTimes, ring: Ring, layer_bytes: Array) -> Array:
        """[p, K + 1] seconds of one layer of each kind and of what a stage holds besides."""
        stages = len(ring.bytes_extra)
        columns = [ring_times(ring, np.full(stages, size)) for size in layer_bytes]
        extra = ring_times(ring, ring.bytes_extra)
        columns.append(np.where(ring.bytes_extra > 0, extra, 0.0))
        return np.stack(columns, axis=1)
