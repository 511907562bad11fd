"""Everything a result says about one plan, worked out from the instance: time, path, throughput, memory.

One function for all who report or check a plan (`solve`, `estimate`, `simulate`, `verify`), so that they
cannot disagree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp import simulator
from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.gpu_level import GpuLevel
from pipette_milp.cost.gpu_placement import gpu_placement_durations
from pipette_milp.cost.placement import exchanges_s, placement_durations
from pipette_milp.cost.uncertainty import fit_probability
from pipette_milp.errors import InputError, Problem
from pipette_milp.plans import cells_of_plan, gpus_of_placement, placement_of_cells
from pipette_milp.schema.evaluation import (
    Breakdown,
    CriticalPath,
    DurationsRecord,
    Memory,
    Order,
    StageMemory,
    Throughput,
    Uncertainty,
)
from pipette_milp.schema.plan import Configuration, Placement, Plan

FLOP_CONVENTION = (
    "forward + backward = 3 x forward; weight matrices, full attention square and unpadded output matrix; "
    "no recompute (arXiv 2104.04473)"
)
"""What ``model_flop_per_s_per_gpu`` counts, see `Transformer.model_flop_per_token`."""


@dataclass(frozen=True)
class Assessment:
    """One plan with all that follows from it. Field names are those of the result file."""

    configuration: Configuration
    placement: Placement
    simulated_s: float
    critical_path: CriticalPath
    breakdown: Breakdown
    throughput: Throughput
    memory: Memory
    uncertainty: Uncertainty
    durations: DurationsRecord
    order: Order

    @property
    def plan(self) -> Plan:
        """Configuration and placement."""
        return Plan(configuration=self.configuration, placement=self.placement)

    @property
    def fits(self) -> bool:
        """Every stage stays within the usable memory."""
        return self.memory.fits

    def parts(self) -> dict[str, Any]:
        """What belongs to a plan in a result, by the keys of `SolveResult` and `RankedPlan`."""
        return {
            "durations": self.durations,
            "order": self.order,
            "critical_path": self.critical_path,
            "breakdown": self.breakdown,
            "throughput": self.throughput,
            "memory": self.memory,
            "uncertainty": self.uncertainty,
        }

    def to_dict(self) -> dict[str, Any]:
        """What ``estimate --json`` and ``simulate --json`` print (contract)."""
        return {
            "configuration": self.configuration.model_dump(mode="json"),
            "placement": self.placement.model_dump(mode="json"),
            "simulated_s": self.simulated_s,
            "fits": self.fits,
            "critical_path": self.critical_path.model_dump(mode="json"),
            "breakdown": self.breakdown.model_dump(mode="json"),
            "throughput": self.throughput.model_dump(mode="json"),
            "memory": self.memory.model_dump(mode="json"),
            "uncertainty": self.uncertainty.model_dump(mode="json"),
            "durations": self.durations.model_dump(mode="json"),
            "order": self.order,
        }


def assess(costs: CostModel, configuration: Configuration, where: Placement | IntArray) -> Assessment:
    """Simulate a plan and account for it.

    Whether the configuration is legal and fits is not asked: the caller decides what to do with either.

    Args:
        where: GPUs of all ranks, or node_of_cell [p, d].

    Raises:
        PlanError: the placement is malformed, see `cells_of_plan`.
    """
    if isinstance(where, Placement):
        placement = where
        cells = cells_of_plan(costs.cluster, Plan(configuration=configuration, placement=placement))
    else:
        cells = where
        placement = placement_of_cells(costs.cluster, configuration, cells)
    layers = np.array(configuration.layers_per_stage, dtype=np.int64)
    tables = costs.tables(configuration)
    if tables.gpu_level is None:
        durations = placement_durations(tables, layers, cells)
        classes = None
    else:
        gpus = gpus_of_placement(costs.cluster, configuration, placement)
        durations = gpu_placement_durations(tables, layers, cells, gpus)
        classes = tables.gpu_level.classes(cells, gpus)
    graph = simulator.event_graph(
        configuration.schedule,
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )
    tensor_s = _tensor_communication_s(costs, configuration, tables.gpu_level, classes)
    inside_s = [one + more for one, more in zip(tensor_s, exchanges_s(tables, layers, cells), strict=True)]
    timeline = simulator.simulate(graph, durations, *inside_s)
    needed = memory(costs, configuration, placement)
    return Assessment(
        configuration=configuration,
        placement=placement,
        simulated_s=timeline.simulated_s,
        critical_path=CriticalPath(**timeline.critical_path),
        breakdown=Breakdown(**timeline.breakdown),
        throughput=throughput(costs, configuration, placement, timeline.simulated_s),
        memory=needed,
        uncertainty=uncertainty(costs, needed),
        durations=durations_record(durations),
        order=tuple(tuple(tuple(step) for step in steps) for steps in simulator.execution_order(graph)),
    )


def _tensor_communication_s(
    costs: CostModel, configuration: Configuration, level: GpuLevel | None, classes: IntArray | None
) -> tuple[Array, Array]:
    """[V, d] exposed tensor collectives within each cell's forward and backward."""
    if level is None or classes is None:
        shape = (configuration.num_virtual_stages, configuration.data)
        alike = costs.tensor_communication_s(configuration)
        return np.broadcast_to(alike[0][:, None], shape), np.broadcast_to(alike[1][:, None], shape)
    by_class = [
        costs.tensor_communication_s(configuration, float(attained)) for attained in level.group_bytes_per_s
    ]
    own = np.tile(classes, (configuration.virtual_stages, 1))  # [V, d]
    stages = np.arange(configuration.num_virtual_stages)[:, None]
    forward_s, backward_s = (np.array([times[kind] for times in by_class]) for kind in (0, 1))
    return forward_s[own, stages], backward_s[own, stages]


def uncertainty(costs: CostModel, needed: Memory) -> Uncertainty:
    """Deviations of measured runs from their estimates, and what they mean for this plan's memory."""
    residuals = costs.constants.residuals
    return Uncertainty(
        time=residuals.time_sigma,
        memory=residuals.memory_sigma,
        fit_probability=fit_probability(
            ((stage.peak_bytes, stage.capacity_bytes) for stage in needed.per_stage), residuals
        ),
    )


def throughput(
    costs: CostModel, configuration: Configuration, placement: Placement, simulated_s: float
) -> Throughput:
    """What an iteration time means; per GPU counts the GPUs the plan uses, of several types the mean."""
    tokens = configuration.global_batch_size * costs.instance.model.sequence_length
    tokens_per_s = tokens / simulated_s
    per_gpu = tokens_per_s / configuration.num_gpus
    flop_per_s = per_gpu * costs.transformer.model_flop_per_token
    types, precision = costs.cluster.gpu_type_of_id, costs.instance.training.precision
    peaks = [types[gpu].peak_flop_per_s[precision] for gpu in placement.gpu_of_rank]
    peak = math.fsum(peaks) / len(peaks)
    return Throughput(
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=per_gpu,
        model_flop_per_s_per_gpu=flop_per_s,
        mfu=flop_per_s / peak,
        flop_convention=FLOP_CONVENTION,
        peak_used=peak,
    )


def memory(costs: CostModel, configuration: Configuration, placement: Placement) -> Memory:
    """Memory of every stage on its smallest GPU, the first of several."""
    ranks_per_stage = configuration.num_gpus // configuration.pipeline
    types = costs.cluster.gpu_type_of_id
    reserve = costs.instance.search.memory_reserve
    found = []
    for index, stage in enumerate(costs.stage_memory(configuration)):
        gpus = placement.gpu_of_rank[index * ranks_per_stage : (index + 1) * ranks_per_stage]
        tightest = min(gpus, key=lambda gpu: types[gpu].memory_bytes)
        capacity = types[tightest].memory_bytes
        found.append(
            StageMemory(
                weights_bytes=stage.weights_bytes,
                gradients_bytes=stage.gradients_bytes,
                optimizer_bytes=stage.optimizer_bytes,
                activations_bytes=stage.activations_bytes,
                other_bytes=stage.other_bytes,
                allocated_peak_bytes=stage.allocated_peak_bytes,
                reserved_peak_bytes=stage.reserved_peak_bytes,
                peak_bytes=stage.peak_bytes,
                capacity_bytes=capacity,
                usable_bytes=(1.0 - reserve) * capacity,
                tightest_gpu=tightest,
            )
        )
    return Memory(per_stage=tuple(found))


def durations_record(durations: Durations) -> DurationsRecord:
    """Durations as files hold them."""
    weight = durations.weight_gradient_s
    return DurationsRecord(
        forward_s=durations.forward_s.tolist(),
        backward_s=durations.backward_s.tolist(),
        weight_gradient_s=None if weight is None else weight.tolist(),
        hop_forward_s=durations.hop_forward_s.tolist(),
        hop_backward_s=durations.hop_backward_s.tolist(),
        gradient_sync_s=durations.gradient_sync_s.tolist(),
        embedding_sync_s=float(durations.embedding_sync_s),
        optimizer_s=durations.optimizer_s.tolist(),
        parameter_gather_s=durations.parameter_gather_s.tolist(),
        fixed_s=float(durations.fixed_s),
    )


def durations_of_record(configuration: Configuration, record: DurationsRecord) -> Durations:
    """What `durations_record` wrote, as arrays again; a plan without boundaries keeps their empty shape."""
    hops = (configuration.num_virtual_stages - 1, configuration.data)
    weight = record.weight_gradient_s
    return Durations(
        forward_s=np.array(record.forward_s),
        backward_s=np.array(record.backward_s),
        weight_gradient_s=None if weight is None else np.array(weight),
        hop_forward_s=np.array(record.hop_forward_s, dtype=np.float64).reshape(hops),
        hop_backward_s=np.array(record.hop_backward_s, dtype=np.float64).reshape(hops),
        gradient_sync_s=np.array(record.gradient_sync_s),
        embedding_sync_s=record.embedding_sync_s,
        optimizer_s=np.array(record.optimizer_s),
        parameter_gather_s=np.array(record.parameter_gather_s),
        fixed_s=record.fixed_s,
    )


def timeline_of(configuration: Configuration, record: DurationsRecord) -> simulator.Timeline:
    """The iteration that a result's durations make, simulated again.

    Raises:
        InputError: durations that do not belong to this configuration.
    """
    shape = (configuration.num_virtual_stages, configuration.data)
    found = (len(record.forward_s), len(record.forward_s[0]) if record.forward_s else 0)
    if found != shape:
        raise InputError(
            Problem("durations.forward_s", f"is {found[0]} x {found[1]}, expected {shape[0]} x {shape[1]}")
        )
    graph = simulator.event_graph(
        configuration.schedule,
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )
    return simulator.simulate(graph, durations_of_record(configuration, record))
