"""Cost tables of a configuration family on a cluster: compute, communication and memory put together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cluster import Cluster
from pipette_milp.cost import communication
from pipette_milp.cost.compute import ELEMENT_BYTES, ComputeModel, TaskTime
from pipette_milp.cost.memory import MemoryModel, StageMemory
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError, Problem
from pipette_milp.schedules import get_schedule
from pipette_milp.schema.constants import CostConstants, FrameworkProfile, default_constants
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.transformer import Transformer

OPTIMIZER_BYTES_PER_PARAMETER = 30.0
"""Adam: fp32 weights and two moments read and written, gradients read, bf16 weights written (costs, 4)."""
GRADIENT_PASS_BYTES_PER_PARAMETER = 8.0
"""4 read for the norm, 4 cleared in the gradient buffer (costs, section 4)."""
BARRIER_S = communication.COLLECTIVE_BASE_S
"""The gradient norm's own all-reduce, seconds: a few bytes, so latency only; steps are added per cluster."""


@dataclass(frozen=True)
class _TensorCollectives:
    """Exposed tensor collectives of one micro-batch."""

    layer: TaskTime
    embedding: TaskTime
    head: TaskTime


@dataclass(frozen=True)
class CostModel:
    """Costs of every configuration of one instance."""

    instance: Instance
    cluster: Cluster
    transformer: Transformer

    @classmethod
    def of(cls, instance: Instance) -> CostModel:
        """The cost model of an instance.

        Raises:
            InputError: the cluster has unmeasured links or no usable GPU.
        """
        if instance.model.moe is not None:
            raise InputError(Problem("model.moe", "not supported yet: costs of a mixture of experts"))
        return cls(instance, Cluster.of(instance), Transformer(instance.model))

    @cached_property
    def compute(self) -> ComputeModel:
        return ComputeModel(
            self.transformer, self.cluster.gpu, self.instance.training, self.constants, self.profile
        )

    @property
    def constants(self) -> CostConstants:
        """Fitted constants: the instance's own, else the shipped ones."""
        return self.instance.compute.constants or default_constants()

    @property
    def profile(self) -> FrameworkProfile:
        """Host and fusion figures of the framework."""
        named = self.instance.compute.framework_profile
        return self.constants.profile(named or self.instance.training.framework)

    @cached_property
    def memory(self) -> MemoryModel:
        return MemoryModel(self.transformer, self.instance.training)

    @cached_property
    def usable_memory_bytes(self) -> float:
        """Capacity less the reserve."""
        return (1.0 - self.instance.search.memory_reserve) * self.cluster.gpu.memory_bytes

    def stage_memory(self, configuration: Configuration) -> list[StageMemory]:
        """Memory of every pipeline stage of a configuration with its own layer split."""
        return self._stage_memory(configuration, configuration.layers_per_stage)

    def _stage_memory(self, configuration: Configuration, layers: tuple[int, ...]) -> list[StageMemory]:
        schedule = get_schedule(configuration.schedule)
        pipeline, chunks = configuration.pipeline, configuration.virtual_stages
        memory = []
        for stage in range(pipeline):
            own = layers[stage::pipeline]
            in_flight = schedule.in_flight(
                stage,
                pipeline,
                chunks,
                configuration.num_micro_batches,
                self.instance.training.framework,
            )
            memory.append(
                self.memory.stage(configuration, sum(own), sum(own) / chunks, in_flight, stage=stage)
            )
        return memory

    def tables(self, configuration: Configuration) -> CostTables:
        """Everything about the configuration's family that does not depend on layer split and placement."""
        transformer, training = self.transformer, self.instance.training
        model, cluster = self.instance.model, self.cluster
        tensor, data, pipeline = configuration.tensor, configuration.data, configuration.pipeline
        virtual = configuration.num_virtual_stages
        tokens = configuration.micro_batch * model.sequence_length
        element = ELEMENT_BYTES[training.precision]
        activation = float(element * tokens * model.hidden_size)
        sequence_parallel = configuration.sequence_parallel
        group = self._tensor_group(configuration)
        collectives = self._tensor_collectives(configuration)
        layer = _add(self._layer_compute(configuration), collectives.layer)
        embedding = _add(
            self.compute.embedding(tokens, sequence_parallel=sequence_parallel, tensor=tensor),
            collectives.embedding,
        )
        head = _add(self.compute.head(tokens, tensor), collectives.head)

        separate = get_schedule(configuration.schedule).separates_weight_gradient
        overhead_s = self.compute.host_overhead_per_task_s
        forward_extra = np.full(virtual, overhead_s)
        backward_extra = np.full(virtual, overhead_s)
        weight_extra = np.full(virtual, overhead_s if separate else 0.0)
        for index, extra in ((0, embedding), (virtual - 1, head)):
            forward_extra[index] += extra.forward_s
            backward_extra[index] += extra.input_gradient_s if separate else extra.backward_s
            weight_extra[index] += extra.weight_gradient_s if separate else 0.0

        layer_parameters = float(transformer.layer_parameters(tensor))
        extra_parameters = np.zeros(pipeline)
        extra_parameters[0] += transformer.embedding_parameters(tensor)
        extra_parameters[-1] += transformer.head_parameters(tensor, embedding_on_same_stage=pipeline == 1)
        sharded = configuration.data_sharding == "optimizer"
        gradient_bytes = 4.0 if configuration.gradient_dtype == "fp32" else 2.0
        step_s = OPTIMIZER_BYTES_PER_PARAMETER / (data if sharded else 1) + GRADIENT_PASS_BYTES_PER_PARAMETER
        step_s /= cluster.gpu.memory_bytes_per_s

        scatter = training.scatter_gather_hops and not sequence_parallel and tensor > 1
        split = sequence_parallel or scatter
        tied_exchange = model.tied_embeddings and pipeline > 1
        rows = transformer.padded_vocabulary(tensor) // tensor
        overlapped = configuration.overlap.gradient_reduce and data > 1
        first_stage_parameters = layer_parameters * model.layers / pipeline + float(extra_parameters[0])
        per_layer, per_stage = self._linear_memory(configuration)
        low, high = self.layer_bounds(configuration, per_layer, per_stage)
        return CostTables(
            configuration=configuration,
            total_layers=model.layers,
            min_layers=low,
            max_layers=high,
            forward_layer_s=layer.forward_s,
            backward_layer_s=layer.input_gradient_s if separate else layer.backward_s,
            weight_gradient_layer_s=layer.weight_gradient_s if separate else 0.0,
            forward_extra_s=forward_extra,
            backward_extra_s=backward_extra,
            weight_gradient_extra_s=weight_extra,
            memory_layer_bytes=np.tile(per_layer, configuration.virtual_stages),
            memory_extra_bytes=per_stage,
            memory_usable_bytes=self.usable_memory_bytes,
            slots=cluster.gpus_per_node // tensor,
            latency_s=cluster.latency_s,
            pair_bytes_per_s=cluster.pair_bytes_per_s,
            egress_bytes_per_s=cluster.egress_bytes_per_s,
            ingress_bytes_per_s=cluster.ingress_bytes_per_s,
            port_bytes_per_s=cluster.port_bytes_per_s,
            local_bytes_per_s=cluster.local_bytes_per_s,
            local_latency_s=cluster.local_latency_s,
            hop_bytes=communication.hop_bytes(activation, tensor, split=split),
            hop_gather_s=group.all_gather_s(activation) if scatter else 0.0,
            sync=communication.gradient_ring(
                data,
                sharded=sharded,
                element_bytes=gradient_bytes,
                layer_parameters=layer_parameters,
                extra_parameters=extra_parameters,
            ),
            sync_buckets=communication.bucket_count(first_stage_parameters, data) if overlapped else 1,
            gather=communication.parameter_ring(
                data,
                sharded=sharded,
                element_bytes=float(element),
                layer_parameters=layer_parameters,
                extra_parameters=extra_parameters,
            ),
            gather_exposed=not configuration.overlap.parameter_gather,
            embedding_bytes=float(rows * model.hidden_size) * gradient_bytes if tied_exchange else 0.0,
            embedding_latency_s=(
                communication.COLLECTIVE_BASE_S + 2 * communication.NODE_STEP_S if tied_exchange else 0.0
            ),
            optimizer_layer_s=step_s * layer_parameters,
            optimizer_extra_s=step_s * extra_parameters,
            fixed_s=BARRIER_S + 2 * (cluster.num_nodes - 1) * communication.NODE_STEP_S,
            uplinks=cluster.uplinks,
        )

    def tensor_communication_s(self, configuration: Configuration) -> tuple[Array, Array]:
        """[V] seconds of exposed tensor collectives within each virtual stage's forward and backward.

        They are part of the tasks' durations; this is what of them is communication. Where the schedule
        separates the weight gradient, the backward counts the input-gradient part only.
        """
        collectives = self._tensor_collectives(configuration)
        layers = np.array(configuration.layers_per_stage, dtype=float)
        separate = get_schedule(configuration.schedule).separates_weight_gradient

        def backward_s(time: TaskTime) -> float:
            return time.input_gradient_s if separate else time.backward_s

        forward = layers * collectives.layer.forward_s
        backward = layers * backward_s(collectives.layer)
        for index, extra in ((0, collectives.embedding), (-1, collectives.head)):
            forward[index] += extra.forward_s
            backward[index] += backward_s(extra)
        return forward, backward

    def _tensor_group(self, configuration: Configuration) -> communication.TensorGroup:
        return communication.TensorGroup(
            configuration.tensor,
            float(self.cluster.local_bytes_per_s.min()),
            configuration.overlap.tensor,
            self.profile.asynchronous_tensor_reduce,
        )

    def _layer_compute(self, configuration: Configuration) -> TaskTime:
        return self.compute.layer(
            configuration.micro_batch * self.instance.model.sequence_length,
            configuration.tensor,
            sequence_parallel=configuration.sequence_parallel,
            recompute=configuration.recompute,
        )

    def _tensor_collectives(self, configuration: Configuration) -> _TensorCollectives:
        """Exposed collectives of one micro-batch: of one layer, of the embedding, of head and loss."""
        tokens = configuration.micro_batch * self.instance.model.sequence_length
        element = ELEMENT_BYTES[self.instance.training.precision]
        activation = float(element * tokens * self.instance.model.hidden_size)
        group = self._tensor_group(configuration)
        sequence_parallel = configuration.sequence_parallel
        return _TensorCollectives(
            layer=group.layer(
                activation,
                self._layer_compute(configuration),
                sequence_parallel=sequence_parallel,
                recompute=configuration.recompute,
            ),
            embedding=group.embedding(activation, sequence_parallel=sequence_parallel),
            head=group.head(activation, 4.0 * tokens, sequence_parallel=sequence_parallel),
        )

    def layer_bounds(
        self, configuration: Configuration, per_layer: np.ndarray, per_stage: np.ndarray
    ) -> tuple[IntArray, IntArray]:
        """[V] fewest and most layers of each virtual stage: one at least, what memory allows, a fixed
        split."""
        fixed = self.instance.search.layers_per_stage
        virtual = configuration.num_virtual_stages
        if fixed is not None:
            split = np.asarray(fixed, dtype=np.int64)
            return split, split
        room = self.usable_memory_bytes - per_stage
        most = np.where(room >= 0, np.floor(room / per_layer), -1).astype(np.int64)
        others = virtual - 1
        cap = self.instance.model.layers - others
        high = np.minimum(np.tile(most, configuration.virtual_stages), cap)
        return np.ones(virtual, dtype=np.int64), high

    def _linear_memory(self, configuration: Configuration) -> tuple[np.ndarray, np.ndarray]:
        """Device memory of each stage as ``per_layer * layers + per_stage``, exact from one layer on."""
        virtual = configuration.num_virtual_stages
        one = self._stage_memory(configuration, (1,) * virtual)
        two = self._stage_memory(configuration, (2,) * virtual)
        chunks = configuration.virtual_stages
        at_one = np.array([memory.peak_bytes for memory in one])
        at_two = np.array([memory.peak_bytes for memory in two])
        per_layer = (at_two - at_one) / chunks
        return per_layer, at_one - per_layer * chunks


def _add(left: TaskTime, right: TaskTime) -> TaskTime:
    return TaskTime(
        left.forward_s + right.forward_s,
        left.input_gradient_s + right.input_gradient_s,
        left.weight_gradient_s + right.weight_gradient_s,
    )
