"""Device memory of one stage, term by term, in the three figures people measure.

Written from Megatron-LM's distributed-optimizer page, ``theoretical_memory_usage.py`` and arXiv 2205.05198
(costs, section 6). The estimate is steady state: the first iteration is lower, Adam's state appears in its
step.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.cost.compute import ELEMENT_BYTES
from pipette_milp.schedules.base import InFlight
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.training import TrainingSection
from pipette_milp.transformer import Transformer

FRAGMENTATION = 0.05
"""reserved = allocated * (1 + this): the middle of 1.028 to 1.069, measured on 9 B200 topologies (SimuMax
v1.2)."""
GEMM_WORKSPACE_BYTES = 32 * 2**20
"""cuBLAS workspace on Hopper, bytes; smaller on older GPUs."""
NCCL_BYTES = 1.5 * 2**30
"""Communication buffers of the tensor, pipeline, data, embedding and model-parallel communicators, bytes:
the middle of the 1 to 2 GiB seen in practice."""
CONTEXT_BYTES = 0.65 * 2**30
"""CUDA context and libraries, bytes: the middle of 0.5 to 0.8 GiB seen in practice."""
WEIGHT_GRADIENT_SHARE = 32 / 34
"""Share of a layer's activations that a separate weight-gradient pass still needs (arXiv 2401.10241, table
1)."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on each GPU of a stage.

    ``allocated_peak`` compares with torch's max_memory_allocated, ``reserved_peak`` with its reserved figure,
    ``peak`` (device) with nvidia-smi and with what the GPU has.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    other_bytes: float

    @property
    def allocated_peak_bytes(self) -> float:
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.other_bytes
        )

    @property
    def reserved_peak_bytes(self) -> float:
        return self.allocated_peak_bytes * (1 + FRAGMENTATION)

    @property
    def peak_bytes(self) -> float:
        return self.reserved_peak_bytes + NCCL_BYTES + CONTEXT_BYTES


@dataclass(frozen=True)
class StaticBytes:
    """Bytes per parameter a rank holds, resident all the time."""

    weights: float
    gradients: float
    optimizer: float


def static_bytes_per_parameter(
    precision: str, gradient_dtype: str, data: int, *, sharded: bool
) -> StaticBytes:
    """Weights, gradient buffer and Adam state (Megatron-LM ``dist_optimizer.md``).

    ``sharded`` divides the optimiser's part by the data degree.
    """
    divisor = data if sharded else 1
    if precision in ("fp32", "tf32"):
        return StaticBytes(4.0, 4.0, 8.0 / divisor)
    if precision == "fp16":
        # the optimiser's 16 include an fp32 copy of the gradients
        gradients, state = (2.0, 16.0) if gradient_dtype == "fp16" else (4.0, 12.0)
        return StaticBytes(2.0, gradients, state / divisor)
    return StaticBytes(2.0, 4.0 if gradient_dtype == "fp32" else 2.0, 12.0 / divisor)


@dataclass(frozen=True)
class MemoryModel:
    """Memory of the stages of one configuration family."""

    transformer: Transformer
    training: TrainingSection

    def stage(
        self,
        configuration: Configuration,
        layers: int,
        chunk_layers: float,
        in_flight: InFlight,
        *,
        stage: int,
    ) -> StageMemory:
        """Memory of pipeline stage ``stage`` with ``layers`` layers in all its chunks.

        Args:
            chunk_layers: layers of one chunk (virtual stage); ``in_flight`` counts chunks.
        """
        transformer, training = self.transformer, self.training
        model = transformer.model
        tensor, data = configuration.tensor, configuration.data
        tokens = configuration.micro_batch * model.sequence_length
        element = ELEMENT_BYTES[training.precision]
        first = stage == 0
        last = stage == configuration.pipeline - 1
        split = tensor if configuration.sequence_parallel else 1

        parameters = float(layers * transformer.layer_parameters(tensor))
        if first:
            parameters += transformer.embedding_parameters(tensor)
        if last:
            parameters += transformer.head_parameters(tensor, embedding_on_same_stage=first)
        static = static_bytes_per_parameter(
            training.precision,
            configuration.gradient_dtype,
            data,
            sharded=configuration.data_sharding == "optimizer",
        )

        full = tokens * transformer.layer_activation_bytes(
            tensor,
            element_bytes=element,
            sequence_parallel=configuration.sequence_parallel,
            flash=training.flash_attention,
            recompute=configuration.recompute,
        )
        working_set = 0.0
        kept = full
        if configuration.recompute == "full":
            kept = tokens * transformer.layer_checkpoint_bytes(
                tensor, element_bytes=element, sequence_parallel=configuration.sequence_parallel
            )
            working_set = full if layers else 0.0
        chunks = in_flight.full + WEIGHT_GRADIENT_SHARE * in_flight.weight_only
        activations = chunks * chunk_layers * kept + working_set
        if first:
            mask = model.hidden_size / split if transformer.dropout else 0.0
            activations += in_flight.full / configuration.virtual_stages * tokens * (8.0 + mask)
        if last:
            # one micro-batch: logits, their fp32 copy kept as softmax, the cast gradient
            logits = tokens * transformer.padded_vocabulary(tensor) / tensor
            activations += logits * (2 * element + 4.0) + element * tokens * model.hidden_size / split

        other = float(GEMM_WORKSPACE_BYTES)
        if configuration.sequence_parallel and tensor > 1:
            other += element * tokens * model.hidden_size
        return StageMemory(
            weights_bytes=parameters * static.weights,
            gradients_bytes=parameters * static.gradients,
            optimizer_bytes=parameters * static.optimizer,
            activations_bytes=activations,
            other_bytes=other,
        )
