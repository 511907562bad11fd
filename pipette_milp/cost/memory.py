"""Device memory of one stage, term by term, in the three figures people measure.

Written from Megatron-LM's distributed-optimizer page, ``theoretical_memory_usage.py`` and arXiv 2205.05198
(costs, section 6). The estimate is steady state: the first iteration is lower, Adam's state appears in its
step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipette_milp.cost.compute import ELEMENT_BYTES
from pipette_milp.cost.measured_layers import MeasuredLayers
from pipette_milp.layer_shapes import LayerKind
from pipette_milp.schedules.base import InFlight
from pipette_milp.schema.constants import FrameworkProfile
from pipette_milp.schema.plan import Configuration, DataSharding
from pipette_milp.schema.profile import ProfiledKind
from pipette_milp.schema.training import TrainingSection
from pipette_milp.transformer import Transformer

FRAGMENTATION = 0.05
"""reserved = allocated * (1 + this): the middle of 1.028 to 1.069, measured on 9 B200 topologies (SimuMax
v1.2)."""
GEMM_WORKSPACE_BYTES = 32 * 2**20
"""cuBLAS workspace on Hopper, bytes; smaller on older GPUs."""
CONTEXT_BYTES = 0.65 * 2**30
"""CUDA context and libraries, bytes: the middle of 0.5 to 0.8 GiB seen in practice."""
FP8_WEIGHT_BYTES = 2.0
"""Per parameter of the layers: the fp8 copy of a weight and its transpose, kept beside the bf16 one
(Transformer Engine)."""
GATHERED_UNITS = 2
"""Layers whose parameters are whole at one time with fully sharded data parallelism: the current one and the
one fetched ahead."""
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
    communication_bytes: float = 0.0
    """Buffers of NCCL, outside of torch."""

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
        return self.reserved_peak_bytes + self.communication_bytes + CONTEXT_BYTES


@dataclass(frozen=True)
class StaticBytes:
    """Bytes per parameter a rank holds, resident all the time."""

    weights: float
    gradients: float
    optimizer: float


def static_bytes_per_parameter(
    precision: str, gradient_dtype: str, replicas: int, *, sharding: DataSharding
) -> StaticBytes:
    """Weights, gradient buffer and Adam state (Megatron-LM ``dist_optimizer.md``).

    ``sharding`` divides the optimiser's part, then the gradients', then the weights' by the ranks that hold
    the same parameters (``replicas``).
    """
    share = {
        name: replicas if sharding in holders else 1
        for name, holders in (
            ("weights", ("parameters",)),
            ("gradients", ("gradients", "parameters")),
            ("optimizer", ("optimizer", "gradients", "parameters")),
        )
    }
    if precision in ("fp32", "tf32"):
        weights, gradients, state = 4.0, 4.0, 8.0
    elif precision == "fp16":
        # the optimiser's 16 include an fp32 copy of the gradients
        weights = 2.0
        gradients, state = (2.0, 16.0) if gradient_dtype == "fp16" else (4.0, 12.0)
    else:
        weights, gradients, state = 2.0, 4.0 if gradient_dtype == "fp32" else 2.0, 12.0
    return StaticBytes(weights / share["weights"], gradients / share["gradients"], state / share["optimizer"])


@dataclass(frozen=True)
class MemoryModel:
    """Memory of the stages of one configuration family."""

    transformer: Transformer
    training: TrainingSection
    profile: FrameworkProfile
    communicator_bytes: float
    """Buffers of one communicator of more than one rank."""
    activation_scale: float = 1.0
    """Of all analytic activations; 1 unless a user's own runs say otherwise."""
    measured: tuple[MeasuredLayers, ...] = ()
    """What a compute profile says, by kind of GPU: the largest counts."""

    def stage(
        self,
        configuration: Configuration,
        layers: Mapping[LayerKind, int],
        in_flight: InFlight,
        *,
        stage: int,
    ) -> StageMemory:
        """Memory of pipeline stage ``stage``.

        Args:
            layers: how many layers of each kind it holds in all its chunks; kinds are taken to be spread
                evenly over chunks.
            in_flight: chunks (virtual stages) whose activations are held.
        """
        weights, gradients, optimizer = self._static(configuration, layers, stage)
        return StageMemory(
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer,
            activations_bytes=self._activations(configuration, layers, in_flight, stage),
            other_bytes=self._other(configuration, layers) + self._fp8_copies(configuration, layers),
            communication_bytes=self._communicators(configuration) * self.communicator_bytes,
        )

    def _communicators(self, configuration: Configuration) -> int:
        """The world, tensor, context, pipeline, data, model-parallel and embedding groups of more than one
        rank."""
        c = configuration
        sizes = (c.num_gpus, c.tensor, c.context, c.pipeline, c.data * c.context, c.expert)
        both = c.tensor > 1 and c.pipeline > 1
        tied = self.transformer.model.tied_embeddings and c.pipeline > 1
        return sum(size > 1 for size in sizes) + both + tied

    def _static(
        self, configuration: Configuration, layers: Mapping[LayerKind, int], stage: int
    ) -> tuple[float, float, float]:
        """Weights, gradients and optimiser state. Routed experts have fewer replicas than the rest."""
        transformer, tensor = self.transformer, configuration.tensor
        first, last = stage == 0, stage == configuration.pipeline - 1
        routed = float(
            sum(
                count * transformer.routed_parameters(tensor, kind, configuration.expert)
                for kind, count in layers.items()
            )
        )
        held = float(
            sum(
                count * transformer.layer_parameters(tensor, kind, configuration.expert)
                for kind, count in layers.items()
            )
        )
        dense = held - routed
        if first:
            dense += transformer.embedding_parameters(tensor)
        if last:
            dense += transformer.head_parameters(tensor, embedding_on_same_stage=first)
        ranks = configuration.data * configuration.context
        weights = gradients = optimizer = 0.0
        for parameters, replicas in ((dense, ranks), (routed, ranks // configuration.expert)):
            static = static_bytes_per_parameter(
                self.training.precision,
                configuration.gradient_dtype,
                replicas,
                sharding=configuration.data_sharding,
            )
            if configuration.gradient_dtype == "fp32" and self.training.precision not in ("fp32", "tf32"):
                gradients += parameters * self.profile.gradient_copy_bytes
            weights += parameters * static.weights
            gradients += parameters * static.gradients
            optimizer += parameters * static.optimizer
        return weights, gradients, optimizer

    def _activations(
        self,
        configuration: Configuration,
        layers: Mapping[LayerKind, int],
        in_flight: InFlight,
        stage: int,
    ) -> float:
        transformer, training = self.transformer, self.training
        model, tensor = transformer.model, configuration.tensor
        tokens = configuration.micro_batch * model.sequence_length / configuration.context
        element = ELEMENT_BYTES[training.precision]
        split = tensor if configuration.sequence_parallel else 1
        # of analytic terms; measured bytes are what they are
        scale = self.profile.activation_factor * self.activation_scale
        full = {
            kind: scale
            * tokens
            * transformer.layer_activation_bytes(
                tensor,
                element_bytes=element,
                sequence_parallel=configuration.sequence_parallel,
                flash=training.flash_attention,
                recompute=configuration.recompute,
                kind=kind,
            )
            for kind in layers
        }
        for kind in layers:
            full[kind] = self._measured_bytes(kind, configuration) or full[kind]
        kept, working_set = full, 0.0
        if configuration.recompute == "full":
            checkpoint = (
                scale
                * tokens
                * transformer.layer_checkpoint_bytes(
                    tensor, element_bytes=element, sequence_parallel=configuration.sequence_parallel
                )
            )
            kept = dict.fromkeys(layers, checkpoint)
            working_set = max((full[kind] for kind, count in layers.items() if count), default=0.0)
        chunks = in_flight.full + WEIGHT_GRADIENT_SHARE * in_flight.weight_only
        per_pass = sum(count * kept[kind] for kind, count in layers.items())
        activations = chunks / configuration.virtual_stages * per_pass + working_set
        if stage == 0:
            mask = model.hidden_size / split if transformer.dropout else 0.0
            embedding = self._measured_bytes("embedding", configuration) or scale * tokens * (8.0 + mask)
            activations += in_flight.full / configuration.virtual_stages * embedding
        if stage == configuration.pipeline - 1:
            # one micro-batch: logits, their fp32 copy kept as softmax, the cast gradient; and the head's
            # input
            logits = tokens * transformer.padded_vocabulary(tensor) / tensor
            head = logits * (self.profile.logit_bytes + 2 * (element - 2))
            head = scale * (head + element * tokens * model.hidden_size / split)
            # what is kept for the backward is no more than the peak, which the backward itself reaches
            activations += max(head, self._measured_bytes("head", configuration) or 0.0)
        return activations

    def _measured_bytes(self, kind: ProfiledKind, configuration: Configuration) -> float | None:
        """What a profile says one rank keeps, on the kind of GPU where it is most."""
        found = [measured.kept_bytes(kind, configuration) for measured in self.measured]
        return max((kept for kept in found if kept is not None), default=None)

    def _other(self, configuration: Configuration, layers: Mapping[LayerKind, int]) -> float:
        """Workspace, gather buffer of sequence parallelism, whole parameters or gradients of sharded
        layers."""
        model, tensor = self.transformer.model, configuration.tensor
        element = ELEMENT_BYTES[self.training.precision]
        other = float(GEMM_WORKSPACE_BYTES)
        if configuration.sequence_parallel and tensor > 1:
            other += (
                element
                * configuration.micro_batch
                * model.sequence_length
                / configuration.context
                * (model.hidden_size)
            )
        largest = max(
            (
                self.transformer.layer_parameters(tensor, kind, configuration.expert)
                for kind, count in layers.items()
                if count
            ),
            default=0,
        )
        ranks = configuration.data * configuration.context
        if configuration.data_sharding == "optimizer" and ranks > 1:
            # no larger than an even stage: whatever the split, so that memory stays linear in layers
            even = model.layers * largest / configuration.pipeline
            other += 2 * element * min(self.profile.bucket_parameters, even)
        if configuration.data_sharding == "parameters" and ranks > 1:
            other += GATHERED_UNITS * largest * element
        elif configuration.data_sharding == "gradients" and ranks > 1:
            other += largest * (4.0 if configuration.gradient_dtype == "fp32" else 2.0)
        return other

    def _fp8_copies(self, configuration: Configuration, layers: Mapping[LayerKind, int]) -> float:
        if self.training.precision != "fp8":
            return 0.0
        held = sum(
            count * self.transformer.layer_matrix_parameters(configuration.tensor, kind, configuration.expert)
            for kind, count in layers.items()
        )
        whole = configuration.data_sharding != "parameters"
        return FP8_WEIGHT_BYTES * held if whole else 0.0
