"""A family's costs by kind of GPU and kind of layer, and what of them the linear tables cannot say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.cost.communication import (
    COLLECTIVE_BASE_S,
    LOCAL_STEP_S,
    NODE_STEP_S,
    ReplicaGroup,
)
from pipette_milp.cost.detail import Detail
from pipette_milp.cost.expert_exchange import ExpertExchange
from pipette_milp.cost.sharded_layers import ShardedLayers
from pipette_milp.cost.tables import Ring
from pipette_milp.schema.plan import Configuration

if TYPE_CHECKING:
    from pipette_milp.cost.build import CostModel


def gradient_bytes(configuration: Configuration) -> float:
    """Bytes of a gradient where it is accumulated and reduced."""
    return 4.0 if configuration.gradient_dtype == "fp32" else 2.0


@dataclass(frozen=True)
class FamilyParts:
    """Index letters as in `pipette_milp.cost.detail`; parameters are those of one rank."""

    configuration: Configuration
    separate: bool
    """The schedule separates the weight gradient."""
    layer_s: Array
    """[T, K, 3]"""
    task_s: Array
    """[T, V, 3]"""
    dense_parameters: Array
    """[K] of a layer, held by every replica."""
    routed_parameters: Array
    """[K] of a layer, spread over the expert group."""
    extra_parameters: Array
    """[p] embedding and head."""
    gradient_bytes: float
    sync_passes: int
    gather_passes: int
    replicas: ReplicaGroup
    optimizer_layer_s: Array
    """[T, K]"""
    optimizer_extra_s: Array
    """[T, p]"""
    memory_layer_bytes: Array
    """[p, K]"""
    memory_extra_bytes: Array
    """[p]"""
    memory_once_bytes: Array
    """[p, K]"""

    @property
    def ring_parameters(self) -> Array:
        """[K] of a layer that the ring over all replicas carries: experts join it while nobody shares
        them."""
        alone = self.configuration.expert == 1
        return self.dense_parameters + (self.routed_parameters if alone else 0.0)

    def ring(self, passes: int, element_bytes: float) -> Ring:
        """The ring of the kind of layer with the fewest parameters."""
        least = float(self.ring_parameters.min())
        return self.replicas.ring(passes, element_bytes, least, self.extra_parameters)


def detail_of(parts: FamilyParts, costs: CostModel) -> Detail | None:
    """What makes the linear tables of a family lower estimates; None where they are exact."""
    c, cluster = parts.configuration, costs.cluster
    reasons = []
    if len(costs.layer_kinds) > 1:
        reasons.append("layers with and without experts")
    if len(cluster.gpu_types) > 1:
        reasons.append("several GPU types")
    if c.expert > 1:
        reasons.append("expert parallelism")
    ranks = parts.replicas.ranks
    if c.data_sharding in ("gradients", "parameters") and ranks > 1:
        reasons.append(f"sharded {c.data_sharding}")
    if c.context > 1 and not _cell_ring_is_linear(parts, costs):
        reasons.append("context parallelism with gradients reduced inside a node")
    return build_detail(parts, costs, tuple(reasons)) if reasons else None


def build_detail(parts: FamilyParts, costs: CostModel, reasons: tuple[str, ...]) -> Detail:
    """Exact costs of any family."""
    c, ranks = parts.configuration, parts.replicas.ranks
    cluster = costs.places(c)
    sharded = _sharded(parts, costs) if c.data_sharding in ("gradients", "parameters") and ranks > 1 else None
    gather_bytes = float(costs.compute.element_bytes)
    sync = _per_parameter(parts, parts.sync_passes, parts.gradient_bytes) * parts.ring_parameters
    gather = _per_parameter(parts, parts.gather_passes, gather_bytes) * parts.ring_parameters
    inside, inside_extra = _inside_cell(parts, costs, gather_bytes)
    return Detail(
        reasons=reasons,
        kind_of_layer=costs.kind_of_layer,
        type_of_node=cluster.type_of_node,
        layer_s=parts.layer_s,
        task_s=parts.task_s,
        optimizer_layer_s=parts.optimizer_layer_s,
        optimizer_extra_s=parts.optimizer_extra_s,
        sync_layer_bytes=sync,
        gather_layer_bytes=gather,
        memory_layer_bytes=parts.memory_layer_bytes,
        memory_extra_bytes=parts.memory_extra_bytes,
        memory_once_bytes=parts.memory_once_bytes,
        usable_bytes=costs.usable_bytes_of_type,
        local_ring_share=parts.replicas.split,
        cell_sync_s=inside,
        cell_sync_extra_s=inside_extra,
        experts=_experts(parts, costs) if c.expert > 1 else None,
        sharded=sharded,
    )


def _cell_ring_is_linear(parts: FamilyParts, costs: CostModel) -> bool:
    """Whether a scale-up port inside a cell can never be what slows a ring down.

    On one node the tables count scale-up ports in full. Elsewhere a ring that leaves its node is slower on
    its network ports, or on the cards that the rings of all tensor ranks share, if these are slow enough; and
    it leaves its node if no node has room for all replicas.
    """
    c, cluster = parts.configuration, costs.cluster
    if c.data == 1:
        return False
    if cluster.num_nodes == 1:
        return True
    places = costs.places(c)
    most = int((places.gpus_per_node // c.cell_size).max())
    slowest = float(cluster.local_bytes_per_s.min())
    by_port = slowest >= parts.replicas.split * most * cluster.port_bytes_per_s
    rings = min(c.tensor, int(cluster.gpus_per_node.min()))
    by_card = bool(np.all(rings * cluster.local_bytes_per_s >= cluster.egress_bytes_per_s))
    return c.data > most and (by_port or by_card)


def _per_parameter(parts: FamilyParts, passes: int, element_bytes: float) -> float:
    """Bytes that a ring sends per parameter of a layer."""
    return parts.replicas.ring(passes, element_bytes, 1.0, np.zeros(1)).bytes_per_layer


def _inside_cell(
    parts: FamilyParts, costs: CostModel, gather_bytes: float
) -> tuple[Array | None, Array | None]:
    """[2, K] and [2, p] seconds of reduction and gather inside a cell, where there is one replica only."""
    c = parts.configuration
    if c.data > 1 or c.context == 1:
        return None, None
    links = costs.links(c)
    share = (c.context - 1) / c.context / links.ring_bytes_per_s
    per_parameter = np.array(
        [[parts.sync_passes * parts.gradient_bytes * share], [parts.gather_passes * gather_bytes * share]]
    )
    passes = np.array([[parts.sync_passes], [parts.gather_passes]])
    steps = (c.context - links.ring_nodes) * LOCAL_STEP_S + (links.ring_nodes - 1) * NODE_STEP_S
    latency = np.where(passes > 0, COLLECTIVE_BASE_S + passes * steps, 0.0)
    # experts are spread over the cell, so nobody reduces them
    layers = per_parameter * (parts.ring_parameters if c.expert == 1 else parts.dense_parameters)[None, :]
    return layers, per_parameter * parts.extra_parameters[None, :] + latency


def _experts(parts: FamilyParts, costs: CostModel) -> ExpertExchange:
    c, model = parts.configuration, costs.instance.model
    moe = model.moe
    if moe is None:
        raise ValueError("an expert degree needs a model with experts")
    tasks = costs.tasks(c)
    cells = c.expert // c.context
    held = replace(parts.replicas, data=c.data // cells, context=1, split=1.0)
    gather_bytes = float(costs.compute.element_bytes)
    per_gradient = held.ring(parts.sync_passes, parts.gradient_bytes, 1.0, np.zeros(1)).bytes_per_layer
    per_weight = held.ring(parts.gather_passes, gather_bytes, 1.0, np.zeros(1)).bytes_per_layer
    again = 2.0 if c.recompute == "full" else 0.0
    return ExpertExchange(
        cells=cells,
        peers=c.expert,
        peers_per_cell=c.context,
        sent_bytes=tasks.activation_bytes * moe.top_k / c.tensor,
        passes=(2.0, 2.0 + again, 0.0),
        layer_kinds=tuple(kind == "moe" for kind in costs.layer_kinds),
        latency_s=COLLECTIVE_BASE_S,
        node_step_s=NODE_STEP_S,
        sync_layer_bytes=per_gradient * parts.routed_parameters,
        gather_layer_bytes=per_weight * parts.routed_parameters,
    )


def _sharded(parts: FamilyParts, costs: CostModel) -> ShardedLayers:
    c = parts.configuration
    gathers = 1 if c.data_sharding == "parameters" else 0
    gather_bytes = float(costs.compute.element_bytes)
    gather = parts.replicas.ring(gathers, gather_bytes, 1.0, parts.extra_parameters)
    reduce = parts.replicas.ring(1, parts.gradient_bytes, 1.0, parts.extra_parameters)
    return ShardedLayers(
        gather=gather,
        gather_layer_bytes=gather.bytes_per_layer * parts.ring_parameters,
        reduce=reduce,
        reduce_layer_bytes=reduce.bytes_per_layer * parts.ring_parameters,
    )
