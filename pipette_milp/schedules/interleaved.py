"""Interleaved 1F1B (Narayanan et al., arXiv 2104.04473), by the rules of Megatron-Core.

Source: Megatron-LM ``core/pipeline_parallel/schedules.py``, ``get_schedule_table``,
``get_pp_rank_microbatches`` and ``forward_backward_pipelining_with_interleaving``. The micro-batch group
size g is Megatron's default, p; g and M then obey ``p <= g <= M`` and ``M mod g = 0 or >= p`` exactly
when p divides M.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.schedules.base import ASYNC, InFlight, Schedule, Task


class Interleaved(Schedule):
    """Every pipeline stage runs v chunks of the model, micro-batches in groups of p per chunk.

    Only async: Megatron's interleaved schedule overlaps its transfers by default.
    """

    name = "interleaved"
    default_transfers = ASYNC
    transfer_modes = (ASYNC,)
    allows_virtual_stages = True

    def legality(
        self,
        pipeline: int,
        virtual_stages: int,
        num_micro_batches: int,
        transfers: str,
        layers_per_virtual_stage: Sequence[int] | None = None,
    ) -> str | None:
        """See :meth:`Schedule.legality`; rules of Megatron-Core."""
        reason = super().legality(pipeline, virtual_stages, num_micro_batches, transfers)
        if reason is not None:
            return reason
        if pipeline < 2:
            return "schedule interleaved needs pipeline >= 2 (Megatron with overlapped p2p transfers)"
        if virtual_stages < 2:
            return "schedule interleaved needs virtual_stages >= 2: with one it is 1f1b"
        if num_micro_batches < pipeline:
            return (
                f"schedule interleaved with pipeline {pipeline} and {num_micro_batches} micro-batches: "
                f"Megatron requires pipeline <= micro-batch group size <= micro-batches; use a smaller "
                f"micro_batch or data degree so that there are at least {pipeline}, or another schedule"
            )
        remainder = num_micro_batches % pipeline
        if remainder:
            return (
                f"schedule interleaved with pipeline {pipeline} and {num_micro_batches} micro-batches: "
                f"micro-batches modulo the group size (here pipeline) must be 0 or at least pipeline, "
                f"it is {remainder}"
            )
        if layers_per_virtual_stage is not None:
            return _uneven_chunks(pipeline, virtual_stages, layers_per_virtual_stage)
        return None

    def order(self, pipeline: int, virtual_stages: int, num_micro_batches: int) -> list[tuple[Task, ...]]:
        """See :meth:`Schedule.order`."""
        group = pipeline
        table = [
            (m, chunk)
            for first in range(0, num_micro_batches, group)
            for chunk in range(virtual_stages)
            for m in range(first, min(first + group, num_micro_batches))
        ]
        stages = []
        for stage in range(pipeline):
            forwards = [Task("F", chunk * pipeline + stage, m) for m, chunk in table]
            backwards = [Task("B", (virtual_stages - 1 - chunk) * pipeline + stage, m) for m, chunk in table]
            warmup = min(len(table), 2 * (pipeline - stage - 1) + (virtual_stages - 1) * group)
            steady = len(table) - warmup
            tasks = forwards[:warmup]
            for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
                tasks += [forward, backward]
            stages.append(tuple(tasks + backwards[steady:]))
        return stages

    def in_flight(
        self, stage: int, pipeline: int, virtual_stages: int, num_micro_batches: int, framework: str
    ) -> InFlight:
        """``min(M v, 2(p - s - 1) + (v - 1) g + 1)`` chunks, g = p."""
        warmup = 2 * (pipeline - stage - 1) + (virtual_stages - 1) * pipeline
        return InFlight(min(num_micro_batches * virtual_stages, warmup + 1), 0)


def virtual_stages_from_layers(layers: int, pipeline: int, layers_per_virtual_stage: int) -> int:
    """Virtual stages per pipeline stage for Megatron's ``--num-layers-per-virtual-pipeline-stage``.

    Raises:
        IllegalConfigurationError: the layers do not divide; Megatron once dropped what remained.
    """
    per_stage, left_over = divmod(layers, pipeline)
    if left_over:
        raise IllegalConfigurationError(
            Problem("pipeline", f"{layers} layers are not divisible by {pipeline} pipeline stages")
        )
    if per_stage % layers_per_virtual_stage:
        accepted = [size for size in range(1, per_stage + 1) if per_stage % size == 0]
        raise IllegalConfigurationError(
            Problem(
                "virtual_stages",
                f"{per_stage} layers per pipeline stage are not divisible by {layers_per_virtual_stage} "
                f"layers per virtual stage: accepted: {', '.join(map(str, accepted))}",
            )
        )
    return per_stage // layers_per_virtual_stage


def _uneven_chunks(pipeline: int, virtual_stages: int, layers: Sequence[int]) -> str | None:
    if len(layers) != pipeline * virtual_stages:
        return (
            f"layers_per_virtual_stage has {len(layers)} entries for {pipeline * virtual_stages} "
            f"virtual stages"
        )
    for stage in range(pipeline):
        chunks = list(layers[stage::pipeline])
        if len(set(chunks)) > 1:
            return (
                f"pipeline stage {stage} has {sum(chunks)} layers in chunks of {chunks}: without an explicit "
                f"pipeline layout its layers must be divisible by {virtual_stages} virtual stages"
            )
    return None
