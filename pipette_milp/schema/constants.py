"""Constants of the cost model that were fitted to measured runs, with their plausible ranges and their
origin.

The shipped ones (`presets/constants.json`) come from `pipette_milp.calibration.fit`; ``calibrate`` writes
a file of the same form from a user's own runs, ``--constants FILE`` uses it. Data-sheet figures (peak,
bandwidth, memory, multiprocessors) are no constants of this kind: they stand in the instance and in the
GPU presets.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Annotated, Any

from pydantic import Field, JsonValue

from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.strict import parse_json, read_text, validate

Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
Scale = Annotated[float, Field(ge=0.1, le=10.0)]

OTHER_ARCHITECTURE = "other"
"""Key for GPUs whose name says nothing: estimated from the data sheet and this efficiency alone."""
DEFAULT_PROFILE = "megatron"


class FrameworkProfile(FrozenModel):
    """What a framework costs on top of its kernels: at most four fitted figures, shared by all its
    sources."""

    host_overhead_per_task_s: Annotated[float, Field(ge=0.0, le=0.05)]
    """Host time exposed once per forward or backward of a stage (schedule, device synchronise), seconds."""
    launch_s: Annotated[float, Field(ge=0.0, le=2e-4)]
    """Host time to issue one kernel, seconds: a layer lasts at least as long as the host needs to issue
    it."""
    elementwise_passes: Annotated[float, Field(ge=0.3, le=4.0)]
    """Traffic of the element-wise kernels over that of perfectly fused ones; below 1 where even norms and
    activation functions are fused into the products."""
    attention_efficiency: Fraction = 0.5
    """Attained FLOP/s of its fused attention relative to a large product, forward and backward: which
    kernels a framework calls (FlashAttention 2, cuDNN) matters more than the GPU."""
    tensor_overlap: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of exposed tensor collectives that chunked overlap hides, where the run uses it."""
    activation_factor: Annotated[float, Field(ge=0.8, le=2.0)] = 1.0
    """Activations over the tensors that the products and norms need: copies that a framework keeps
    besides."""
    gradient_copy_bytes: Annotated[float, Field(ge=0.0, le=4.0)] = 0.0
    """Per parameter, 16-bit gradients kept beside an fp32 buffer: read in the sources, not fitted."""
    logit_bytes: Annotated[float, Field(ge=2.0, le=16.0)] = 8.0
    """Per logit at the loss, all copies together: read in the sources, not fitted."""
    bucket_parameters: Annotated[float, Field(ge=0.0, le=1e10)] = 0.0
    """Size of each of the two 16-bit buckets a sharded optimiser communicates with: the framework's
    default."""
    asynchronous_tensor_reduce: bool = True
    """Whether the backward's tensor collectives run under the weight gradient's products: read in the
    sources, not fitted (Megatron-LM since 2022)."""


class Residuals(FrozenModel):
    """What is left between estimates and measured runs: standard deviations of log(measured / estimated)."""

    time_sigma: Annotated[float, Field(ge=0.0)]
    """Of one estimate."""
    ranking_sigma: Annotated[float, Field(ge=0.0)]
    """Of the difference of two estimates for one model, GPU count and global batch: what tells plans
    apart."""
    memory_sigma: Annotated[float, Field(ge=0.0)]
    memory_bias: float = 0.0
    """Mean of log(measured / estimated) of the memory figures."""


class CostConstants(FrozenModel):
    """All fitted constants. Ranges are what physics and published kernel benchmarks allow."""

    matrix_efficiency: dict[str, Fraction]
    """Attained / peak FLOP/s of large, aligned matrix products, by architecture: clocks under load are
    below the boost clock of the data sheet, the more so the tighter the power limit."""
    fp8_matrix_efficiency: Fraction
    """The same for fp8 products relative to 16-bit ones: operands are cast and scaled, feeding takes
    longer."""
    exponential_efficiency: Fraction
    """Rate of exponentials that fused attention gets, over that of the GPU's special-function units; those
    that hide under its products count as free."""
    memory_efficiency: Fraction
    """Attained / peak bandwidth of element-wise kernels."""
    tile_s: Annotated[float, Field(ge=0.0, le=2e-5)]
    """Seconds a tile of a product takes besides its arithmetic: first operands loaded, result stored. A few
    times the latency of device memory (0.5 to 0.8 us)."""
    misalignment: Annotated[float, Field(ge=0.0, le=0.5)]
    """Speed lost per factor of two that a dimension of a product lacks to a multiple of 64 elements."""
    kernel_s: Annotated[float, Field(ge=0.0, le=2e-5)]
    """Device time of a kernel that moves nothing: start and end, seconds."""
    communicator_bytes: Annotated[float, Field(ge=0.0, le=2.0 * 2**30)]
    """Buffers of one NCCL communicator of more than one rank on a GPU: channels times buffers of 4 MiB."""
    frameworks: dict[str, FrameworkProfile]
    time_scale: Scale = 1.0
    """Of compute times; 1 except in a user's own calibration."""
    activation_scale: Scale = 1.0
    """Of activations; 1 except in a user's own calibration."""
    residuals: Residuals
    provenance: JsonValue
    """Source, date, number of runs, hash of their file, what was fitted."""

    def efficiency_of(self, architecture: str | None) -> float:
        """Matrix efficiency of an architecture; the one for unseen GPUs where it is unknown."""
        return self.matrix_efficiency.get(architecture or "", self.matrix_efficiency[OTHER_ARCHITECTURE])

    def profile(self, framework: str) -> FrameworkProfile:
        """Profile of a framework; a framework without its own has Megatron's."""
        return self.frameworks.get(framework, self.frameworks[DEFAULT_PROFILE])


@cache
def default_constants() -> CostConstants:
    """The shipped constants."""
    text = resources.files("pipette_milp.presets").joinpath("constants.json").read_text(encoding="utf-8")
    value: Any = json.loads(text)
    return CostConstants.model_validate(value)


def load_constants(path: str) -> CostConstants:
    """Constants from a file as ``calibrate`` writes it.

    Raises:
        InputError: unreadable, fields missing or outside their plausible range.
    """
    return validate(CostConstants, parse_json(read_text(path), path), path)
