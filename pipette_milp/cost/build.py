"""Cost tables of a configuration family on a cluster: compute, communication and memory put together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cluster import Cluster, GpuType
from pipette_milp.cost import communication
from pipette_milp.cost.cells import CellLinks, cell_links
from pipette_milp.cost.compute import ELEMENT_BYTES, ComputeModel, TaskTime
from pipette_milp.cost.family_parts import FamilyParts, detail_of, gradient_bytes
from pipette_milp.cost.gpu_level import GpuLevel, TaskTimes, best_local_bytes_per_s, group_rates, wirings_of
from pipette_milp.cost.measured_layers import MeasuredLayers, profile_warnings
from pipette_milp.cost.memory import MemoryModel, StageMemory
from pipette_milp.cost.tables import CostTables
from pipette_milp.cost.tasks import TaskCosts
from pipette_milp.errors import InputError, Problem
from pipette_milp.layer_shapes import LayerKind
from pipette_milp.schedules import get_schedule
from pipette_milp.schedules.base import InFlight
from pipette_milp.schema.constants import CostConstants, FrameworkProfile, default_constants
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.transformer import Transformer

OPTIMIZER_BYTES_PER_PARAMETER = 30.0
"""Adam: fp32 weights and two moments read and written, gradients read, bf16 weights written (costs, 4)."""
GRADIENT_PASS_BYTES_PER_PARAMETER = 8.0
"""4 read for the norm, 4 cleared in the gradient buffer (costs, section 4)."""


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
            InputError: unmeasured links, no usable GPU, or what the cluster has does not go together.
        """
        model = cls(instance, Cluster.of(instance), Transformer(instance.model))
        model.refuse_mixed_meshes()
        return model

    def refuse_mixed_meshes(self) -> None:
        """Nodes wired as a mesh go with one kind of GPU and of layer.

        Raises:
            InputError: there are several.
        """
        several = []
        if len(self.cluster.gpu_types) > 1:
            several.append("several GPU types")
        if len(self.layer_kinds) > 1 or "moe" in self.layer_kinds:
            several.append("mixture of experts")
        if self.cluster.meshes and several:
            raise InputError(
                Problem(
                    "cluster.node_types", f"not supported yet: {' and '.join(several)} on nodes of kind mesh"
                )
            )

    @cached_property
    def computes(self) -> tuple[ComputeModel, ...]:
        """One for every kind of GPU of the cluster."""
        return tuple(self._compute(gpu) for gpu in self.cluster.gpu_types)

    def _compute(self, gpu: GpuType) -> ComputeModel:
        return ComputeModel(self.transformer, gpu, self.instance.training, self.constants, self.profile)

    @property
    def compute(self) -> ComputeModel:
        """That of the first kind of GPU."""
        return self.computes[0]

    @cached_property
    def measured_layers(self) -> tuple[MeasuredLayers, ...]:
        """Entries of the compute profile for every kind of GPU; empty without a profile."""
        if not self.instance.compute.entries:
            return ()
        return tuple(MeasuredLayers.of(self.instance, compute) for compute in self.computes)

    def warnings(self, configurations: Iterable[Configuration]) -> list[str]:
        """What of these configurations a compute profile does not cover."""
        return profile_warnings(self.measured_layers, self.layer_kinds, configurations)

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
        return MemoryModel(
            self.transformer,
            self.instance.training,
            self.profile,
            self.constants.communicator_bytes,
            self.constants.activation_scale,
            self.measured_layers,
        )

    @cached_property
    def usable_bytes_of_type(self) -> Array:
        """[T] capacity of each kind of GPU less the reserve."""
        capacity = np.array([gpu.memory_bytes for gpu in self.cluster.gpu_types])
        return np.asarray((1.0 - self.instance.search.memory_reserve) * capacity)

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds the model has."""
        return tuple(dict.fromkeys(self.transformer.layer_kinds))

    @cached_property
    def kind_of_layer(self) -> IntArray:
        """[L] index into `layer_kinds`."""
        return np.array([self.layer_kinds.index(kind) for kind in self.transformer.layer_kinds])

    def tasks(
        self,
        configuration: Configuration,
        compute: ComputeModel | None = None,
        group_bytes_per_s: float | None = None,
    ) -> TaskCosts:
        """Times of a configuration's tasks; default: on the first kind of GPU, and where tensor groups attain
        different bandwidths the best of them."""
        group = self._tensor_group(configuration, group_bytes_per_s)
        own = compute or self.compute
        measured = next(
            (layers for layers in self.measured_layers if layers.compute.gpu.name == own.gpu.name), None
        )
        return TaskCosts(configuration, own, group, self.links(configuration), measured)

    def places(self, configuration: Configuration) -> Cluster:
        """The cluster as the cells of a configuration see it (`Cluster.for_cells`).

        Raises:
            ValueError: the cells do not come out even; `tensor_refusal` says so first.
        """
        places = self.cluster.for_cells(configuration.cell_size)
        if places is None:
            raise ValueError(f"no places for cells of {configuration.cell_size} GPUs")
        return places

    def links(self, configuration: Configuration) -> CellLinks:
        """Links inside the cells of a configuration."""
        return cell_links(self.cluster, configuration)

    # ------------------------------------------------------------------ memory
    def stage_memory(self, configuration: Configuration) -> list[StageMemory]:
        """Memory of every pipeline stage of a configuration with its own layer split."""
        ends = np.concatenate([[0], np.cumsum(configuration.layers_per_stage)])
        pipeline = configuration.pipeline
        memory = []
        for stage in range(pipeline):
            held = dict.fromkeys(self.layer_kinds, 0)
            for j in range(stage, configuration.num_virtual_stages, pipeline):
                for kind in self.transformer.layer_kinds[ends[j] : ends[j + 1]]:
                    held[kind] += 1
            memory.append(
                self.memory.stage(configuration, held, self._in_flight(configuration, stage), stage=stage)
            )
        return memory

    def _in_flight(self, configuration: Configuration, stage: int) -> InFlight:
        return get_schedule(configuration.schedule).in_flight(
            stage,
            configuration.pipeline,
            configuration.virtual_stages,
            configuration.num_micro_batches,
            self.instance.training.framework,
        )

    def _memory_parts(self, configuration: Configuration) -> tuple[Array, Array, Array]:
        """Device memory of each stage: [p, K] per layer, [p] besides, [p, K] once where it holds a layer of
        the kind, the largest of which counts. Exact, because every term is linear from one layer on."""
        pipeline, kinds = configuration.pipeline, self.layer_kinds
        per_layer, once = np.zeros((pipeline, len(kinds))), np.zeros((pipeline, len(kinds)))
        extra = np.zeros(pipeline)
        known: dict[tuple[InFlight, bool, bool], int] = {}
        for stage in range(pipeline):
            in_flight = self._in_flight(configuration, stage)
            alike = known.setdefault((in_flight, stage == 0, stage == pipeline - 1), stage)
            if alike != stage:
                per_layer[stage], extra[stage], once[stage] = per_layer[alike], extra[alike], once[alike]
                continue

            def peak(
                held: dict[LayerKind, int], stage: int = stage, in_flight: InFlight = in_flight
            ) -> float:
                return self.memory.stage(configuration, held, in_flight, stage=stage).peak_bytes

            extra[stage] = peak({})
            for k, kind in enumerate(kinds):
                one, two = peak({kind: 1}), peak({kind: 2})
                per_layer[stage, k] = two - one
                once[stage, k] = one - (two - one) - extra[stage]
        return per_layer, extra, once

    # ------------------------------------------------------------------ tables
    def tables(self, configuration: Configuration) -> CostTables:
        """Everything about the configuration's family that does not depend on layer split and placement."""
        transformer, training = self.transformer, self.instance.training
        model, cluster = self.instance.model, self.places(configuration)
        tensor, pipeline = configuration.tensor, configuration.pipeline
        virtual = configuration.num_virtual_stages
        parts = self.parts(configuration)
        detail = detail_of(parts, self)
        level = self._gpu_level(configuration)
        # the best of all kinds of layer and of GPU: lower estimates where there are several
        layer_s = parts.layer_s.min(axis=(0, 1))
        task_s = parts.task_s.min(axis=0)
        once = parts.memory_once_bytes.min(axis=1)
        per_layer, per_stage = parts.memory_layer_bytes.min(axis=1), parts.memory_extra_bytes + once
        low, high = self.layer_bounds(configuration, per_layer, per_stage)

        separate = parts.separate
        activation = self.tasks(configuration).activation_bytes
        scatter = self._scatters_hops(configuration)
        tied_exchange = model.tied_embeddings and pipeline > 1
        rows = transformer.padded_vocabulary(tensor) // tensor
        overlapped = configuration.overlap.gradient_reduce and parts.sync_passes and configuration.data > 1
        reduced_parameters = (
            model.layers / pipeline * float(parts.dense_parameters.mean() + parts.routed_parameters.mean())
        )
        return CostTables(
            configuration=configuration,
            total_layers=model.layers,
            min_layers=low,
            max_layers=high,
            forward_layer_s=float(layer_s[0]),
            backward_layer_s=float(layer_s[1]),
            weight_gradient_layer_s=float(layer_s[2]),
            forward_extra_s=task_s[:, 0],
            backward_extra_s=task_s[:, 1],
            weight_gradient_extra_s=task_s[:, 2] if separate else np.zeros(virtual),
            memory_layer_bytes=np.tile(per_layer, configuration.virtual_stages),
            memory_extra_bytes=per_stage,
            memory_usable_bytes=float(self.usable_bytes_of_type.max()),
            slots=cluster.gpus_per_node // configuration.cell_size,
            latency_s=cluster.latency_s,
            pair_bytes_per_s=cluster.pair_bytes_per_s,
            egress_bytes_per_s=cluster.egress_bytes_per_s,
            ingress_bytes_per_s=cluster.ingress_bytes_per_s,
            port_bytes_per_s=cluster.port_bytes_per_s,
            local_bytes_per_s=(
                cluster.local_bytes_per_s
                if level is None
                else np.array(
                    [
                        best_local_bytes_per_s(level.wiring(n), tensor, configuration.data)
                        for n in range(cluster.num_nodes)
                    ]
                )
            ),
            local_latency_s=cluster.local_latency_s,
            hop_bytes=communication.hop_bytes(
                activation, tensor, split=configuration.sequence_parallel or scatter
            ),
            hop_gather_s=self._tensor_group(configuration).all_gather_s(activation) if scatter else 0.0,
            sync=parts.ring(parts.sync_passes, parts.gradient_bytes),
            sync_buckets=(
                communication.bucket_count(
                    reduced_parameters + float(parts.extra_parameters[0]), parts.replicas.ranks
                )
                if overlapped
                else 1
            ),
            gather=parts.ring(parts.gather_passes, float(ELEMENT_BYTES[training.precision])),
            gather_exposed=not configuration.overlap.parameter_gather,
            embedding_bytes=(
                float(rows * model.hidden_size) * self._tied_gradient_bytes(configuration)
                if tied_exchange
                else 0.0
            ),
            embedding_latency_s=(
                communication.COLLECTIVE_BASE_S + 2 * communication.NODE_STEP_S if tied_exchange else 0.0
            ),
            optimizer_layer_s=float(parts.optimizer_layer_s.min()),
            optimizer_extra_s=parts.optimizer_extra_s.min(axis=0),
            fixed_s=self.barrier_s,
            uplinks=cluster.uplinks,
            detail=detail,
            gpu_level=level,
        )

    def _gpu_level(self, configuration: Configuration) -> GpuLevel | None:
        """What depends on the GPUs of a cell; None where those of every node are joined alike."""
        if not self.cluster.meshes:
            return None
        of_node, wirings = wirings_of(self.cluster, configuration.tensor, configuration.data)
        rates = group_rates(wirings, configuration.tensor)
        tasks = tuple(self._task_times(configuration, float(rate)) for rate in rates)
        return GpuLevel(of_node, wirings, rates, tasks)

    def _task_times(self, configuration: Configuration, group_bytes_per_s: float) -> TaskTimes:
        """Tasks of a cell whose collectives attain a bandwidth; of the one kind of GPU and of layer there
        is."""
        tasks = self.tasks(configuration, group_bytes_per_s=group_bytes_per_s)
        virtual = configuration.num_virtual_stages
        separate = get_schedule(configuration.schedule).separates_weight_gradient
        (kind,) = self.layer_kinds
        layer = tasks.layer(kind)
        extra_s = np.full((3, virtual), self.compute.host_overhead_per_task_s)
        for index, extra in ((0, tasks.embedding()), (-1, tasks.head())):
            backward_s = extra.input_gradient_s if separate else extra.backward_s
            extra_s[:, index] += (extra.forward_s, backward_s, extra.weight_gradient_s)
        return TaskTimes(
            forward_layer_s=layer.forward_s,
            backward_layer_s=layer.input_gradient_s if separate else layer.backward_s,
            weight_gradient_layer_s=layer.weight_gradient_s if separate else 0.0,
            forward_extra_s=extra_s[0],
            backward_extra_s=extra_s[1],
            weight_gradient_extra_s=extra_s[2] if separate else np.zeros(virtual),
            hop_gather_s=(
                tasks.group.all_gather_s(tasks.activation_bytes)
                if self._scatters_hops(configuration)
                else 0.0
            ),
        )

    def _tied_gradient_bytes(self, configuration: Configuration) -> float:
        """Bytes of one gradient of the tied embedding where its two copies are added up.

        DeepSpeed adds the 16-bit gradients of an fp16 run (``pipe/module.py``,
        ``allreduce_tied_weight_gradients``), others what the gradients are accumulated in.
        """
        training = self.instance.training
        if training.framework == "deepspeed" and training.precision == "fp16":
            return 2.0
        return gradient_bytes(configuration)

    def _scatters_hops(self, configuration: Configuration) -> bool:
        """Whether the tensor ranks send a share of the activation each, gathered on arrival."""
        scatter = self.instance.training.scatter_gather_hops
        return scatter and not configuration.sequence_parallel and configuration.tensor > 1

    @property
    def barrier_s(self) -> float:
        """The gradient norm's all-reduce over all GPUs before the step: a few bytes, so latency only.

        NCCL takes a tree for so little: along the GPUs of a node, then ``log2`` of the nodes, there and back
        (``tuning.cc``).
        """
        cluster = self.cluster
        inside = (int(cluster.gpus_per_node.max()) - 1) * communication.LOCAL_STEP_S
        between = math.ceil(math.log2(cluster.num_nodes)) * communication.NODE_STEP_S
        return communication.COLLECTIVE_BASE_S + 2 * (inside + between)

    def parts(self, configuration: Configuration) -> FamilyParts:
        """Costs of the family by kind of GPU and of layer."""
        transformer, cluster = self.transformer, self.cluster
        tensor, pipeline = configuration.tensor, configuration.pipeline
        virtual, kinds = configuration.num_virtual_stages, self.layer_kinds
        separate = get_schedule(configuration.schedule).separates_weight_gradient

        def parts_of(time: TaskTime) -> list[float]:
            backward = time.input_gradient_s if separate else time.backward_s
            return [time.forward_s, backward, time.weight_gradient_s if separate else 0.0]

        layer_s = np.zeros((len(self.computes), len(kinds), 3))
        task_s = np.zeros((len(self.computes), virtual, 3))
        for t, compute in enumerate(self.computes):
            tasks = self.tasks(configuration, compute)
            layer_s[t] = [parts_of(tasks.layer(kind)) for kind in kinds]
            task_s[t, :, : 3 if separate else 2] = compute.host_overhead_per_task_s
            task_s[t, 0] += parts_of(tasks.embedding())
            task_s[t, -1] += parts_of(tasks.head())

        routed = np.array(
            [transformer.routed_parameters(tensor, kind, configuration.expert) for kind in kinds], dtype=float
        )
        whole = np.array(
            [transformer.layer_parameters(tensor, kind, configuration.expert) for kind in kinds], dtype=float
        )
        extra = np.zeros(pipeline)
        extra[0] += transformer.embedding_parameters(tensor)
        extra[-1] += transformer.head_parameters(tensor, embedding_on_same_stage=pipeline == 1)
        per_layer, per_stage, once = self._memory_parts(configuration)
        sync_passes, gather_passes = communication.sync_passes(configuration.data_sharding)
        links = self.links(configuration)
        replicas = communication.ReplicaGroup(
            configuration.data, configuration.context, links.ring_share, links.ring_nodes
        )
        sharded = configuration.data_sharding != "none"
        rates = np.array([gpu.memory_bytes_per_s for gpu in cluster.gpu_types])
        ranks, expert_ranks = replicas.ranks, replicas.ranks // configuration.expert

        adam_s = OPTIMIZER_BYTES_PER_PARAMETER / rates
        for t, measured in enumerate(self.measured_layers):
            step = measured.step_s_per_parameter(tensor)[0]
            adam_s[t] = adam_s[t] if step is None else step

        def step_s(parameters: Array, holders: int) -> Array:
            seconds = adam_s / (holders if sharded else 1) + GRADIENT_PASS_BYTES_PER_PARAMETER / rates
            return np.asarray(seconds[:, None] * parameters[None, :])

        return FamilyParts(
            configuration=configuration,
            separate=separate,
            layer_s=layer_s,
            task_s=task_s,
            dense_parameters=whole - routed,
            routed_parameters=routed,
            extra_parameters=extra,
            gradient_bytes=gradient_bytes(configuration),
            sync_passes=sync_passes,
            gather_passes=gather_passes,
            replicas=replicas,
            optimizer_layer_s=step_s(whole - routed, ranks) + step_s(routed, expert_ranks),
            optimizer_extra_s=step_s(extra, ranks),
            memory_layer_bytes=per_layer,
            memory_extra_bytes=per_stage,
            memory_once_bytes=once,
        )

    def tensor_communication_s(
        self, configuration: Configuration, group_bytes_per_s: float | None = None
    ) -> tuple[Array, Array]:
        """[V] seconds of exposed collectives of cells within each virtual stage's forward and backward.

        They are part of the tasks' durations; this is what of them is communication. Where the schedule
        separates the weight gradient, the backward counts the input-gradient part only. On several kinds of
        GPU those of the first.

        Args:
            group_bytes_per_s: what the cell's collectives attain; None where all cells attain the same.
        """
        tasks = self.tasks(configuration, group_bytes_per_s=group_bytes_per_s)
        separate = get_schedule(configuration.schedule).separates_weight_gradient

        def seconds(time: TaskTime) -> Array:
            return np.array([time.forward_s, time.input_gradient_s if separate else time.backward_s])

        of_kind = np.stack([seconds(tasks.layer_collectives(kind)) for kind in self.layer_kinds])
        ends = np.cumsum(configuration.layers_per_stage)[:-1]
        counts = [
            np.bincount(held, minlength=len(self.layer_kinds)) for held in np.split(self.kind_of_layer, ends)
        ]
        both = np.stack(counts) @ of_kind
        both[0] += seconds(tasks.embedding_collectives())
        both[-1] += seconds(tasks.head_collectives())
        return both[:, 0], both[:, 1]

    def _tensor_group(
        self, configuration: Configuration, bytes_per_s: float | None = None
    ) -> communication.TensorGroup:
        if bytes_per_s is None and self.cluster.meshes:
            wirings = wirings_of(self.cluster, configuration.tensor, configuration.data)[1]
            bytes_per_s = float(group_rates(wirings, configuration.tensor)[0])
        links = self.links(configuration)
        return communication.TensorGroup(
            configuration.tensor,
            links.tensor_bytes_per_s if bytes_per_s is None else bytes_per_s,
            configuration.overlap.tensor,
            self.profile.asynchronous_tensor_reduce,
            links.tensor_nodes,
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
        room = float(self.usable_bytes_of_type.max()) - per_stage
        most = np.where(room >= 0, np.floor(room / per_layer), -1).astype(np.int64)
        others = virtual - 1
        cap = self.instance.model.layers - others
        high = np.minimum(np.tile(most, configuration.virtual_stages), cap)
        return np.ones(virtual, dtype=np.int64), high
