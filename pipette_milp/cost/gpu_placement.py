"""Durations of a plan whose cells are GPUs, not places: `CostTables.gpu_level`, evaluated.

The evaluation by nodes (`pipette_milp.cost.placement`) has every figure inside a node at its best case; here
these are raised to what the GPUs of the plan attain. Between nodes nothing changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.gpu_level import GpuLevel
from pipette_milp.cost.placement import exposed_sync_s, placement_durations, ring_times
from pipette_milp.cost.tables import CostTables, Ring


def gpu_placement_durations(
    tables: CostTables, layers: IntArray, node_of_cell: IntArray, gpus_of_cell: IntArray
) -> Durations:
    """Durations of the plan with ``layers[V]``, ``node_of_cell[p, d]`` and ``gpus_of_cell[p, d, t]``.

    With overlap, a bucket hides under the backward of a cell of the fastest class, whatever its own: the
    exposed part is never taken for less than it is.

    Args:
        gpus_of_cell: local numbers among the usable GPUs of the cell's node, by tensor rank.

    Raises:
        ValueError: the tables do not tell GPUs apart.

    Source: formulation, sections 2 and 3 (slowest tensor rank); costs, section 4.
    """
    level = tables.gpu_level
    if level is None:
        raise ValueError("the GPUs of every node are joined alike: evaluate the placement by nodes")
    layers = np.asarray(layers, dtype=np.int64)
    nodes = np.ascontiguousarray(node_of_cell, dtype=np.int64)
    best = placement_durations(replace(tables, hop_gather_s=0.0), layers, nodes)
    classes = level.classes(nodes, gpus_of_cell)
    forward, backward, weight = _stage_times(tables, level, layers, classes)
    hop_forward, hop_backward = best.hop_forward_s.copy(), best.hop_backward_s.copy()
    gather_s = np.array([times.hop_gather_s for times in level.tasks])[classes]
    for j in range(tables.num_virtual_stages - 1):
        source, target = tables.boundary_cells(j)
        there, back = _local_flows_s(tables, level, nodes, gpus_of_cell, source, target, tables.hop_bytes)
        hop_forward[j] = np.maximum(hop_forward[j], there) + gather_s[target]
        hop_backward[j] = np.maximum(hop_backward[j], back) + gather_s[source]
    stage_layers = layers.reshape(-1, tables.pipeline).sum(axis=0)
    sync_s = _ring_times(tables, level, tables.sync, stage_layers, nodes, gpus_of_cell)
    gather = (
        _ring_times(tables, level, tables.gather, stage_layers, nodes, gpus_of_cell)
        if tables.gather_exposed
        else best.parameter_gather_s
    )
    return replace(
        best,
        forward_s=forward,
        backward_s=backward,
        weight_gradient_s=weight,
        hop_forward_s=hop_forward,
        hop_backward_s=hop_backward,
        gradient_sync_s=exposed_sync_s(tables, sync_s, layers, nodes),
        embedding_sync_s=_embedding_s(tables, level, nodes, gpus_of_cell, best.embedding_sync_s),
        parameter_gather_s=gather,
    )


def _stage_times(
    tables: CostTables, level: GpuLevel, layers: IntArray, classes: IntArray
) -> tuple[Array, Array, Array | None]:
    """Forward, backward, weight gradient, each [V, d]."""
    # cells of virtual stage j are those of pipeline stage j mod p
    own = np.tile(classes, (tables.configuration.virtual_stages, 1))

    def times(layer: str, extra: str) -> Array:
        per_layer = np.array([getattr(one, layer) for one in level.tasks])
        others = np.array([getattr(one, extra) for one in level.tasks])  # [R, V]
        stages = np.arange(tables.num_virtual_stages)[:, None]
        return np.asarray(per_layer[own] * layers[:, None] + others[own, stages])

    weight = None
    if tables.weight_gradient_layer_s != 0:
        weight = times("weight_gradient_layer_s", "weight_gradient_extra_s")
    return (
        times("forward_layer_s", "forward_extra_s"),
        times("backward_layer_s", "backward_extra_s"),
        weight,
    )


def _local_flows_s(
    tables: CostTables,
    level: GpuLevel,
    nodes: IntArray,
    gpus: IntArray,
    source: int,
    target: int,
    sent_bytes: float,
) -> tuple[Array, Array]:
    """[d] there and [d] back between the cells of two stages where they share a node; 0 where not."""
    there, back = np.zeros(tables.data), np.zeros(tables.data)
    if source == target:
        return there, back
    for z in np.flatnonzero(nodes[source] == nodes[target]):
        node = int(nodes[source, z])
        wiring, latency_s = level.wiring(node), float(tables.local_latency_s[node])
        ranks = list(zip(gpus[source, z].tolist(), gpus[target, z].tolist(), strict=True))
        there[z] = latency_s + sent_bytes / min(wiring.flow_bytes_per_s(a, b) for a, b in ranks)
        back[z] = latency_s + sent_bytes / min(wiring.flow_bytes_per_s(b, a) for a, b in ranks)
    return there, back


def _ring_times(
    tables: CostTables,
    level: GpuLevel,
    ring: Ring,
    stage_layers: IntArray,
    nodes: IntArray,
    gpus: IntArray,
) -> Array:
    """[p] ring collectives; the part inside a node is one ring per tensor rank over that rank's GPUs."""
    times = ring_times(tables, ring, stage_layers, nodes)
    sent_bytes = ring.bytes_per_layer * stage_layers + ring.bytes_extra
    if tables.data == 1 or not np.any(sent_bytes > 0):
        return times
    for s in range(tables.pipeline):
        hosts, members = np.unique(nodes[s], return_counts=True)
        latency_s = ring.latency_s + (len(hosts) - 1) * ring.latency_per_node_step_s
        latency_s += (tables.data - len(hosts)) * ring.latency_per_local_step_s
        for node in hosts[members >= 2]:
            wiring = level.wiring(int(node))
            on_node = gpus[s, nodes[s] == node]  # [members, t]
            slowest = min(wiring.collective_bytes_per_s(rank) for rank in on_node.T)
            times[s] = max(times[s], latency_s + sent_bytes[s] / slowest)
    return times


def _embedding_s(
    tables: CostTables, level: GpuLevel, nodes: IntArray, gpus: IntArray, best_s: float
) -> float:
    if tables.embedding_bytes <= 0:
        return 0.0
    there, back = _local_flows_s(tables, level, nodes, gpus, 0, tables.pipeline - 1, tables.embedding_bytes)
    local_s = float(np.maximum(there, back).max())
    return max(best_s, local_s + tables.embedding_latency_s if local_s > 0 else 0.0)
