"""Varuna-like (Athlur et al., EuroSys 2022, arXiv 2111.04007; code: microsoft/varuna, ``auto_config.py``).

Pipeline and data parallelism only. For every number of stages that divides the layers the largest micro-batch
is taken that the memory estimate allows; a simulation of the pipeline with one mean link speed and the
all-reduce gives the time; the fastest depth wins. As in the code, the estimate holds weights, optimiser and
the activations of *one* micro-batch, and compares with the whole capacity of the GPU: stashed inputs of the
micro-batches in flight, buffers and fragmentation are missing.

Not Varuna: its own schedule (recomputation moved into gaps, backward first) is replaced by 1F1B with
recomputation, and ranks are in default order. Choices after the first are the other depths, then smaller
micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from pipette_milp.baselines.amp import gradient_element_bytes, stage_parameters
from pipette_milp.baselines.choices import (
    Choice,
    Option,
    Resources,
    flows_per_node,
    node_bytes_per_s,
    options,
)
from pipette_milp.cost.build import CostModel
from pipette_milp.schedules.base import InFlight
from pipette_milp.simulator import event_graph, finish_times


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """By simulated time at the mean link speed; the largest micro-batch of every depth first."""
    del resources
    chosen = [
        option
        for option in options(costs, recompute="full")
        if option.configuration.tensor == 1 and option.even and estimated_bytes(option) <= _capacity(costs)
    ]
    largest: dict[int, int] = {}
    for option in chosen:
        configuration = option.configuration
        largest[configuration.pipeline] = max(
            largest.get(configuration.pipeline, 0), configuration.micro_batch
        )
    timed = []
    for number, option in enumerate(chosen):
        smaller = option.configuration.micro_batch < largest[option.configuration.pipeline]
        timed.append((smaller, iteration_s(option), number, option))
    for _, predicted_s, _, option in sorted(timed, key=lambda one: one[:3]):
        choice = option.in_default_order(predicted_s)
        if choice is not None:
            yield choice


def _capacity(costs: CostModel) -> float:
    return costs.cluster.gpu.memory_bytes


def estimated_bytes(option: Option) -> float:
    """The fullest stage with one micro-batch in flight and nothing but the model's own tensors."""
    configuration = option.configuration
    one = InFlight(1, 0)
    kinds = option.costs.transformer.layer_kinds
    ends = np.concatenate([[0], np.cumsum(option.layers)])
    stages = [
        option.costs.memory.stage(configuration, Counter(kinds[low:high]), one, stage=stage)
        for stage, (low, high) in enumerate(pairwise(ends))
    ]
    return max(
        stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes + stage.activations_bytes
        for stage in stages
    )


def iteration_s(option: Option) -> float:
    """Pipeline and all-reduce with every link at the mean speed of one flow."""
    configuration, costs = option.configuration, option.costs
    pipeline = configuration.pipeline
    graph = event_graph("1f1b", pipeline, 1, configuration.num_micro_batches, "async")
    flow = float(node_bytes_per_s(costs).mean()) / flows_per_node(costs)
    hop_s = np.full((pipeline - 1, 1), option.activation_bytes / flow)
    forward, backward = option.forward_s[:, None], option.backward_s[:, None]
    finish_s = finish_times(graph, forward, backward, hop_s, hop_s, None)
    share = 2.0 * (configuration.data - 1) / configuration.data
    sync_s = share * stage_parameters(option) * gradient_element_bytes(option) / flow
    return float((finish_s[:, 0] + sync_s).max())
