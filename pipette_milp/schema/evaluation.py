"""What is known about one plan: durations, order, longest path, breakdown, throughput, memory.

Parts of the result file and of what ``estimate`` and ``simulate`` print.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from pipette_milp.schema.plan import FrozenModel

Seconds = Annotated[float, Field(ge=0.0)]
ByteCount = Annotated[float, Field(ge=0.0)]
Table = tuple[tuple[Seconds, ...], ...]
Order = tuple[tuple[tuple[JsonValue, ...], ...], ...]
"""Per pipeline stage ``[kind, virtual stage, micro-batch]`` with kind F, B or W, in execution order; in
exchange mode also ``["X", [["send" | "recv", kind, boundary, micro-batch], ...]]``."""


class DurationsRecord(FrozenModel):
    """Seconds, ``[virtual stage][replica]`` unless said; replica = index along data."""

    forward_s: Table
    backward_s: Table
    weight_gradient_s: Table | None = None
    hop_forward_s: Table
    """``[boundary][replica]``"""
    hop_backward_s: Table
    gradient_sync_s: tuple[Seconds, ...]
    """``[stage]``, the exposed part."""
    embedding_sync_s: Seconds
    optimizer_s: tuple[Seconds, ...]
    parameter_gather_s: tuple[Seconds, ...]
    fixed_s: Seconds


class CriticalPath(FrozenModel):
    """Seconds along the longest path, by kind; they add up to the iteration."""

    compute_s: Seconds = 0.0
    tensor_comm_s: Seconds = 0.0
    pipeline_comm_s: Seconds = 0.0
    gradient_sync_s: Seconds = 0.0
    optimizer_s: Seconds = 0.0
    fixed_s: Seconds = 0.0


class Breakdown(FrozenModel):
    """The timeline of the GPU with least idle time; the seconds add up to the iteration."""

    stage: int = Field(ge=0)
    replica: int = Field(ge=0)
    compute_s: Seconds = 0.0
    tensor_comm_s: Seconds = 0.0
    pipeline_comm_s: Seconds = 0.0
    bubble_s: Seconds = 0.0
    gradient_sync_s: Seconds = 0.0
    """The embedding exchange included."""
    optimizer_s: Seconds = 0.0
    """The parameter gather included."""
    fixed_s: Seconds = 0.0


class Throughput(FrozenModel):
    """What the iteration time means."""

    tokens_per_s: float = Field(ge=0.0)
    tokens_per_s_per_gpu: float = Field(ge=0.0)
    model_flop_per_s_per_gpu: float = Field(ge=0.0)
    mfu: float = Field(ge=0.0)
    """``model_flop_per_s_per_gpu / peak_used``."""
    flop_convention: str
    peak_used: float = Field(ge=0.0)
    """FLOP/s per GPU at the training precision."""


class StageMemory(FrozenModel):
    """Memory of one pipeline stage on its tightest GPU. ``peak_bytes`` must fit into ``usable_bytes``."""

    weights_bytes: ByteCount
    gradients_bytes: ByteCount
    optimizer_bytes: ByteCount
    activations_bytes: ByteCount
    other_bytes: ByteCount
    allocated_peak_bytes: ByteCount
    reserved_peak_bytes: ByteCount
    peak_bytes: ByteCount
    """Device peak: reserved peak, communication buffers and context."""
    capacity_bytes: ByteCount
    usable_bytes: ByteCount
    """``(1 - reserve) * capacity_bytes``"""
    tightest_gpu: int | None = None
    """Global GPU id."""


class Uncertainty(FrozenModel):
    """How far estimates were from measured runs: standard deviations, relative."""

    time: float = Field(ge=0.0)
    memory: float = Field(ge=0.0)
    fit_probability: float = Field(ge=0.0, le=1.0)
    """That no GPU runs out of memory, from the residuals of the memory estimates; no reserve is taken off."""


class Memory(FrozenModel):
    """Memory by pipeline stage."""

    per_stage: tuple[StageMemory, ...]

    @property
    def peak_bytes(self) -> float:
        """Largest device peak of any stage."""
        return max(stage.peak_bytes for stage in self.per_stage)

    @property
    def fits(self) -> bool:
        """Whether every stage stays within what is usable."""
        return all(stage.peak_bytes <= stage.usable_bytes for stage in self.per_stage)
