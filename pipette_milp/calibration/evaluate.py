"""Estimate of one expressed run: seconds an iteration and the memory figure its source reports."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipette_milp import simulator
from pipette_milp.calibration.express import Expressed
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.memory import StageMemory
from pipette_milp.cost.placement import placement_durations
from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.plans import default_cells
from pipette_milp.schema.constants import CostConstants

GB, GIB = 1e9, 2.0**30
PERIODS = 4
"""Multiples of the pipeline depth after which an iteration grows evenly with every further micro-batch."""


@dataclass(frozen=True)
class Estimate:
    """What the cost model says about a run."""

    time_s: float
    allocated_bytes: tuple[float, ...]
    """By stage: compares with torch's max_memory_allocated."""
    device_bytes: tuple[float, ...]
    """By stage: compares with nvidia-smi and with what the GPU has."""
    usable_bytes: float

    @property
    def fits(self) -> bool:
        """Whether every stage stays within what is usable."""
        return max(self.device_bytes) <= self.usable_bytes

    def memory(self, metric: str) -> float:
        """The figure a source reports, in its unit (column ``mem_metric``)."""
        lower = metric.lower()
        by_stage = self.device_bytes if "nvidia-smi" in lower else self.allocated_bytes
        if "rank 0" in lower or "first stage" in lower or "nvidia-smi style" in lower:
            # "nvidia-smi style" is what the first node printed
            by_stage = by_stage[:1]
        elif "first/last" in lower:
            by_stage = (by_stage[0], by_stage[-1])
        unit = GIB if "gib" in lower else GB
        return max(by_stage) / unit


def cost_model(expressed: Expressed, constants: CostConstants | None = None) -> CostModel:
    """Cost model of a run, with other constants than those of its instance where given."""
    instance = expressed.instance
    if constants is not None:
        compute = instance.compute.model_copy(update={"constants": constants})
        instance = instance.model_copy(update={"compute": compute})
    return CostModel.of(instance)


def estimate_run(expressed: Expressed, constants: CostConstants | None = None) -> Estimate:
    """Time and memory of a run in the default rank order.

    Raises:
        IllegalConfigurationError: a tensor group would cross nodes.
    """
    costs = cost_model(expressed, constants)
    memory = costs.stage_memory(expressed.configuration)
    return Estimate(
        time_s=iteration_s(costs, expressed),
        allocated_bytes=tuple(stage.allocated_peak_bytes for stage in memory),
        device_bytes=tuple(stage.peak_bytes for stage in memory),
        usable_bytes=float(costs.usable_bytes_of_type.min()),
    )


def stage_memory(expressed: Expressed, constants: CostConstants | None = None) -> list[StageMemory]:
    """Memory of every stage, term by term."""
    return cost_model(expressed, constants).stage_memory(expressed.configuration)


def memory_estimate(stages: list[StageMemory]) -> Estimate:
    """An estimate of memory alone."""
    return Estimate(
        math.nan,
        tuple(stage.allocated_peak_bytes for stage in stages),
        tuple(stage.peak_bytes for stage in stages),
        math.nan,
    )


def run_durations(costs: CostModel, expressed: Expressed) -> Durations:
    """Durations of a run in the default rank order; replicas that behave alike are kept once.

    Raises:
        IllegalConfigurationError: a tensor group would cross nodes.
    """
    configuration = expressed.configuration
    cells = default_cells(costs.cluster, configuration)
    if cells is None:
        raise IllegalConfigurationError("a tensor group would cross nodes in the default rank order")
    layers = np.array(configuration.layers_per_stage, dtype=np.int64)
    return distinct_replicas(placement_durations(costs.tables(configuration), layers, cells))


def iteration_s(costs: CostModel, expressed: Expressed) -> float:
    """Simulated seconds of one iteration.

    With many micro-batches the longest path repeats itself from a few times the pipeline depth on (the graph
    is periodic in the micro-batch, so its longest path grows by the mean of the heaviest cycle): two
    simulations give the period, the rest is added.
    """
    configuration, durations = expressed.configuration, run_durations(costs, expressed)
    pipeline, micro_batches = configuration.pipeline, configuration.num_micro_batches

    def simulated_s(count: int) -> float:
        graph = simulator.event_graph(
            configuration.schedule,
            pipeline,
            configuration.virtual_stages,
            count,
            configuration.pipeline_transfers,
        )
        return simulator.simulated_s(graph, durations)

    short = PERIODS * pipeline + micro_batches % pipeline
    long = short + pipeline
    if micro_batches <= long:
        return simulated_s(micro_batches)
    after = simulated_s(long)
    return after + (micro_batches - long) / pipeline * (after - simulated_s(short))


def distinct_replicas(durations: Durations) -> Durations:
    """The same iteration with every kind of replica once: equal replicas finish at the same time."""
    columns = [durations.forward_s, durations.backward_s, durations.hop_forward_s, durations.hop_backward_s]
    if durations.weight_gradient_s is not None:
        columns.append(durations.weight_gradient_s)
    stacked = np.concatenate([np.asarray(array) for array in columns], axis=0)
    _, index = np.unique(stacked, axis=1, return_index=True)

    def chosen(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.asarray(array)[:, index])

    return Durations(
        forward_s=chosen(durations.forward_s),
        backward_s=chosen(durations.backward_s),
        weight_gradient_s=(
            None if durations.weight_gradient_s is None else chosen(durations.weight_gradient_s)
        ),
        hop_forward_s=chosen(durations.hop_forward_s),
        hop_backward_s=chosen(durations.hop_backward_s),
        gradient_sync_s=durations.gradient_sync_s,
        embedding_sync_s=durations.embedding_sync_s,
        optimizer_s=durations.optimizer_s,
        parameter_gather_s=durations.parameter_gather_s,
        fixed_s=durations.fixed_s,
    )
