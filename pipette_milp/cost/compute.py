"""Compute time of one layer, the embedding and the head: a roofline over matrices and element-wise kernels.

Matrices run at a fraction of the peak, element-wise kernels at a fraction of the memory bandwidth, each task
pays a host overhead once. Right in structure, not fitted: the three constants below are round figures, and a
result says so in ``settings.model_error``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.cluster import GpuType
from pipette_milp.schema.training import TrainingSection
from pipette_milp.transformer import Transformer

MATRIX_EFFICIENCY = 0.70
"""Attained / peak FLOP/s of a layer's matrix products, dimensionless. Not fitted: large bf16 products reach
0.7 to 0.8 of an A100's 312 TFLOP/s in vendor library benchmarks."""
MEMORY_EFFICIENCY = 0.80
"""Attained / peak memory bandwidth of element-wise kernels, dimensionless. Not fitted: stream benchmarks
reach 0.8 to 0.9."""
HOST_OVERHEAD_PER_TASK_S = 50e-6
"""Kernel-launch latency exposed once per forward or backward of a stage, seconds: every exchange ends in a
device synchronise (costs, section 2). Not fitted."""

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""Bytes of an activation element by training precision."""


@dataclass(frozen=True)
class TaskTime:
    """Seconds of forward, gradient of the input (recompute included) and gradient of the weights."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    @property
    def backward_s(self) -> float:
        return self.input_gradient_s + self.weight_gradient_s


@dataclass(frozen=True)
class ComputeModel:
    """Compute times on one GPU type for one set of training options.

    ``tokens`` of a task are micro-batch times sequence length.
    """

    transformer: Transformer
    gpu: GpuType
    training: TrainingSection

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.training.precision]

    def matrix_s(self, flop: float) -> float:
        """Seconds of ``flop`` operations in matrix products."""
        return flop / (self.gpu.peak_flop_per_s[self.training.precision] * MATRIX_EFFICIENCY)

    def traffic_s(self, moved_bytes: float) -> float:
        """Seconds to move ``moved_bytes`` to and from device memory."""
        return moved_bytes / (self.gpu.memory_bytes_per_s * MEMORY_EFFICIENCY)

    def layer(self, tokens: int, tensor: int, *, sequence_parallel: bool, recompute: str) -> TaskTime:
        """One layer, one micro-batch, without communication."""
        flash = self.training.flash_attention
        matrices = self.matrix_s(tokens * self.transformer.layer_matrix_flop(tensor))
        attention = self.matrix_s(tokens * self.transformer.attention_flop(tensor, causal=flash))
        traffic = self.traffic_s(
            tokens
            * self.transformer.layer_memory_traffic_bytes(
                tensor, element_bytes=self.element_bytes, sequence_parallel=sequence_parallel, flash=flash
            )
        )
        scores = self.traffic_s(
            tokens
            * self.transformer.scores_memory_traffic_bytes(
                tensor, element_bytes=self.element_bytes, flash=flash
            )
        )
        forward = matrices + attention + traffic
        again = {"none": 0.0, "selective": attention + scores, "full": forward}[recompute]
        # scores and values have no weights: both of their gradients belong to the input's part
        return TaskTime(forward, matrices + 2 * attention + 2 * traffic + again, matrices)

    def embedding(self, tokens: int, *, sequence_parallel: bool, tensor: int) -> TaskTime:
        """Look-up, addition of positions and dropout."""
        hidden = self.transformer.model.hidden_size / (tensor if sequence_parallel else 1)
        moved = self.traffic_s(3.0 * tokens * hidden * self.element_bytes)
        return TaskTime(moved, 0.0, moved)

    def head(self, tokens: int, tensor: int) -> TaskTime:
        """Final norm, output matrix and loss; the loss works on fp32 copies of the logits."""
        matrix = self.matrix_s(tokens * self.transformer.head_flop(tensor))
        logits = tokens * self.transformer.padded_vocabulary(tensor) / tensor
        loss = self.traffic_s(logits * (self.element_bytes + 3 * 4.0))
        return TaskTime(matrix + loss, matrix + self.traffic_s(logits * (4.0 + self.element_bytes)), matrix)
