"""Path cuts: the rows that the cut loop adds to a model.

A path cut states that the iteration lasts at least as long as one path through the event graph
(formulation, section 3): for every replica ``z``

    T >= counts . durations[:, z] + sync[end_stage] + tail

where ``tail`` is the embedding exchange if ``end_stage`` is the first or the last stage, then the
slowest stage's optimizer and parameter gather, then ``fixed_s``. It holds for every ``z`` because a stage
synchronises after its last replica, and for every placement and layer split because the event graph
depends on neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.cost.durations import Durations


@dataclass(frozen=True)
class PathCut:
    """How often a path that ends with the synchronisation of ``end_stage`` takes each duration."""

    family: int
    """Index in the list of cost tables."""
    end_stage: int
    forward: tuple[int, ...]
    """[V]"""
    backward: tuple[int, ...]
    """[V]"""
    weight_gradient: tuple[int, ...]
    """[V], zeros where the schedule does not separate it."""
    hop_forward: tuple[int, ...]
    """[V-1]"""
    hop_backward: tuple[int, ...]
    """[V-1]"""

    def value_s(self, durations: Durations) -> float:
        """Right-hand side at given durations, largest over the replicas, in seconds."""
        path = (
            np.array(self.forward) @ durations.forward_s
            + np.array(self.backward) @ durations.backward_s
            + np.array(self.hop_forward, dtype=float) @ durations.hop_forward_s
            + np.array(self.hop_backward, dtype=float) @ durations.hop_backward_s
        )
        if durations.weight_gradient_s is not None:
            path = path + np.array(self.weight_gradient) @ durations.weight_gradient_s
        stages = len(durations.gradient_sync_s)
        embedding_s = durations.embedding_sync_s if self.end_stage in (0, stages - 1) else 0.0
        step_s = float(np.max(durations.optimizer_s + durations.parameter_gather_s))
        sync_s = float(durations.gradient_sync_s[self.end_stage])
        return float(path.max()) + sync_s + embedding_s + step_s + durations.fixed_s
