"""What a baseline may choose from, what it chose, and what our simulator says about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.baselines import BASELINES
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.plans import default_cells
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.search_space import legal_configurations
from pipette_milp.solvers.evaluation import Candidate, Evaluator, stage_memory_bytes


@dataclass(frozen=True)
class Choice:
    """A configuration with its layer split, and where its cells go."""

    configuration: Configuration
    node_of_cell: IntArray
    """[p, d]"""
    predicted_s: float | None = None
    """Iteration time by the baseline's own model; None where its rule has none."""


@dataclass(frozen=True)
class Judged:
    """A choice simulated."""

    choice: Choice
    simulated_s: float
    fits: bool
    """Every stage within the usable memory of our model."""


@dataclass(frozen=True)
class Resources:
    """What a baseline may use beside the cost model."""

    rng: np.random.Generator
    stop: Callable[[], bool] = lambda: False
    """Asked by searches; once it says True the rest of the ranking comes unsearched."""


Rank = Callable[[CostModel, Resources], Iterator[Choice]]


def ranking(name: str) -> Rank:
    """The function behind a name of `BASELINES`."""
    module, _, attribute = BASELINES[name].partition(":")
    function: Rank = getattr(import_module(module), attribute)
    return function


def judge(costs: CostModel, choice: Choice) -> Judged:
    """Simulated seconds and memory of a choice."""
    tables = costs.tables(choice.configuration)
    layers = np.array(choice.configuration.layers_per_stage, dtype=np.int64)
    evaluator = Evaluator(tables)
    simulated_s = evaluator.simulated_s(Candidate(layers, choice.node_of_cell))
    return Judged(choice, simulated_s, evaluator.fits(layers, choice.node_of_cell))


@dataclass(frozen=True)
class Option:
    """One legal configuration, seen as the papers see it: times per micro-batch, sizes, memory."""

    costs: CostModel
    configuration: Configuration

    @cached_property
    def tables(self) -> CostTables:
        return self.costs.tables(self.configuration)

    @cached_property
    def layers(self) -> IntArray:
        """[p]"""
        return np.array(self.configuration.layers_per_stage, dtype=np.int64)

    @property
    def even(self) -> bool:
        """All stages have as many layers: what Megatron-LM ran when these papers were written."""
        return len(set(self.configuration.layers_per_stage)) == 1

    @cached_property
    def forward_s(self) -> Array:
        """[p] forward of one micro-batch, tensor collectives included, as a profile shows it."""
        return np.asarray(self.tables.forward_layer_s * self.layers + self.tables.forward_extra_s)

    @cached_property
    def backward_s(self) -> Array:
        """[p]"""
        return np.asarray(self.tables.backward_layer_s * self.layers + self.tables.backward_extra_s)

    @property
    def activation_bytes(self) -> float:
        """The whole activation that crosses a boundary for one micro-batch."""
        model, training = self.costs.instance.model, self.costs.instance.training
        element = {"fp32": 4, "tf32": 4}.get(training.precision, 2)
        return float(element * self.configuration.micro_batch * model.sequence_length * model.hidden_size)

    @cached_property
    def memory_bytes(self) -> Array:
        """[p] device memory by our model."""
        return stage_memory_bytes(self.tables, self.layers)

    @property
    def fits(self) -> bool:
        """What a trial would show."""
        return bool(np.all(self.memory_bytes <= self.tables.memory_usable_bytes))

    def with_layers(self, layers: IntArray) -> Option:
        """The same with another layer split."""
        stages = split_stages(tuple(int(value) for value in layers))
        return Option(self.costs, self.configuration.model_copy(update={"stages": stages}))

    def in_default_order(self, predicted_s: float | None = None) -> Choice | None:
        """Rank r on the r-th GPU; None where that would spread a tensor group over nodes."""
        cells = default_cells(self.costs.cluster, self.configuration)
        return None if cells is None else Choice(self.configuration, cells, predicted_s)


def house_options(costs: CostModel) -> dict[str, object]:
    """What the papers leave open, chosen as a careful user of today's Megatron-LM would, if the instance
    allows it: sequence parallelism, sharded optimiser, no recompute, 1F1B with its usual transfers."""
    training, search = costs.instance.training, costs.instance.search
    schedules = search.schedules or ("1f1b",)
    schedule = "1f1b" if "1f1b" in schedules else schedules[0]
    return {
        "sequence_parallel": True in training.sequence_parallel,
        "data_sharding": "optimizer" if "optimizer" in training.data_sharding else training.data_sharding[0],
        "recompute": "none" if "none" in training.recompute else training.recompute[0],
        "schedule": schedule,
        "pipeline_transfers": training.transfers_for(schedule)[0],
    }


def options(costs: CostModel, **changes: object) -> list[Option]:
    """All legal configurations with the house options, the largest data degree for each pipeline and tensor
    degree, one virtual stage, the first global batch, the least context and expert degrees.

    Args:
        changes: house options that a method decides otherwise, where the instance allows it.
    """
    wanted = house_options(costs)
    allowed = costs.instance.training
    for name, value in changes.items():
        if value in getattr(allowed, name):
            wanted[name] = value
    batch = allowed.global_batch_size[0]
    largest: dict[tuple[int, int], int] = {}
    found: list[Configuration] = []
    for configuration in legal_configurations(costs):
        if configuration.virtual_stages > 1 or configuration.global_batch_size != batch:
            continue
        if not _as_wanted(configuration, wanted):
            continue
        degrees = configuration.pipeline, configuration.tensor
        largest[degrees] = max(largest.get(degrees, 0), configuration.data)
        found.append(configuration)
    least = min(((one.context, one.expert) for one in found), default=None)
    return [
        Option(costs, configuration)
        for configuration in found
        if configuration.data == largest[configuration.pipeline, configuration.tensor]
        and (configuration.context, configuration.expert) == least
    ]


def _as_wanted(configuration: Configuration, wanted: dict[str, object]) -> bool:
    """Enumeration turns options off where they change nothing: one tensor rank, one replica."""
    sharding = wanted["data_sharding"] if configuration.data > 1 else "none"
    parallel = bool(wanted["sequence_parallel"]) and configuration.tensor > 1
    return (
        configuration.recompute == wanted["recompute"]
        and configuration.schedule == wanted["schedule"]
        and configuration.pipeline_transfers == wanted["pipeline_transfers"]
        and configuration.data_sharding == sharding
        and configuration.sequence_parallel == parallel
    )


def node_bytes_per_s(costs: CostModel) -> Array:
    """[N] what a node is taken to send to any other, all its cards together: the mean of its links."""
    pair = costs.cluster.pair_bytes_per_s
    size = costs.cluster.num_nodes
    if size == 1:
        return costs.cluster.local_bytes_per_s
    off_diagonal = np.where(np.eye(size, dtype=bool), 0.0, pair)
    sending = off_diagonal.sum(axis=1) / (size - 1)
    return np.asarray(np.minimum(sending, costs.cluster.egress_bytes_per_s))


def flows_per_node(costs: CostModel) -> int:
    """Simultaneous flows of a node pair in the measurement the papers made: one on each card.

    Without word of cards or flows, one for each GPU.
    """
    section = costs.instance.cluster
    inter_node = section.network.inter_node
    if inter_node is not None and inter_node.measures == "flow":
        return int(inter_node.flows_per_pair)
    cards = [nics.count for node in section.nodes if (nics := section.nics_of(node)) is not None]
    return min(cards) if cards else int(costs.cluster.gpus_per_node.max())
