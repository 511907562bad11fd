"""The durations of one plan: all that the simulator needs besides the schedule's task order."""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.arrays import Array

__all__ = ["Array", "Durations"]


@dataclass(frozen=True)
class Durations:
    """Seconds of every kind of task of one plan.

    ``V = pipeline * virtual_stages`` virtual stages, ``d`` replicas, ``p`` pipeline stages.
    """

    forward_s: Array
    """[V, d] forward of one micro-batch, exposed tensor communication and host overhead included."""
    backward_s: Array
    """[V, d] backward of one micro-batch, recompute included; the input-gradient part for zb-h1."""
    weight_gradient_s: Array | None
    """[V, d] weight-gradient part where the schedule separates it, else None."""
    hop_forward_s: Array
    """[V-1, d] activation of boundary j, virtual stage j to j+1."""
    hop_backward_s: Array
    """[V-1, d] gradient of boundary j, virtual stage j+1 to j."""
    gradient_sync_s: Array
    """[p] exposed part of the gradient synchronisation of each pipeline stage."""
    embedding_sync_s: float
    """Exchange of the tied embedding's gradient after stages 0 and p-1; 0 where there is none."""
    optimizer_s: Array
    """[p]"""
    parameter_gather_s: Array
    """[p] exposed part of the parameter all-gather after the optimiser."""
    fixed_s: float
    """Per iteration, independent of everything above."""

    @property
    def replicas(self) -> int:
        """``d``, the data degree."""
        return int(self.forward_s.shape[1])
