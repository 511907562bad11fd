"""Durations of a plan from its cost tables: the formulas of `pipette_milp.cost.tables`, evaluated.

Two levels. `placement_durations` is the plain evaluation everything is held to. Search needs the same
numbers many times, so the loops over cells live in small kernels on plain arrays, which
`pipette_milp.accelerate` compiles where numba is installed; without it they run as they stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.detail import Detail
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.uplinks import flow_uplink_times, ring_uplink_times


def placement_durations(tables: CostTables, layers: IntArray, node_of_cell: IntArray) -> Durations:
    """Durations of the plan with ``layers[V]`` and ``node_of_cell[p, d]``.

    Source: formulation, section 2; costs, section 4.
    """
    layers = np.asarray(layers, dtype=np.int64)
    node_of_cell = np.ascontiguousarray(node_of_cell, dtype=np.int64)
    if tables.detail is not None:
        return _detailed(tables, tables.detail, layers, node_of_cell)
    shape = (tables.num_virtual_stages, tables.data)
    forward, backward, weight = stage_times(tables, layers)
    hop_forward, hop_backward = hop_times(tables, node_of_cell)
    stage_layers = layers.reshape(tables.configuration.virtual_stages, tables.pipeline).sum(axis=0)
    gather = (
        ring_times(tables, tables.gather, stage_layers, node_of_cell)
        if tables.gather_exposed
        else np.zeros(tables.pipeline)
    )
    return Durations(
        forward_s=np.broadcast_to(forward[:, None], shape),
        backward_s=np.broadcast_to(backward[:, None], shape),
        weight_gradient_s=None if weight is None else np.broadcast_to(weight[:, None], shape),
        hop_forward_s=hop_forward,
        hop_backward_s=hop_backward,
        gradient_sync_s=exposed_sync_s(
            tables, ring_times(tables, tables.sync, stage_layers, node_of_cell), layers, node_of_cell
        ),
        embedding_sync_s=embedding_time(tables, node_of_cell),
        optimizer_s=tables.optimizer_layer_s * stage_layers + tables.optimizer_extra_s,
        parameter_gather_s=gather,
        fixed_s=tables.fixed_s,
    )


def _detailed(tables: CostTables, detail: Detail, layers: IntArray, node_of_cell: IntArray) -> Durations:
    """The same for a family whose linear figures are lower estimates only."""
    pipeline, virtual = tables.pipeline, tables.num_virtual_stages
    separate = tables.weight_gradient_layer_s > 0
    counts = detail.kind_counts(layers)
    types = detail.type_of_node[node_of_cell]  # [p, d]
    of_task = types[np.arange(virtual) % pipeline]  # [V, d]
    layer_s = detail.layer_s[of_task]  # [V, d, K, 3]
    if detail.experts is not None:
        exchange_s = detail.experts.seconds(
            node_of_cell,
            tables.tensor,
            tables.pair_bytes_per_s,
            tables.egress_bytes_per_s,
            tables.ingress_bytes_per_s,
            tables.port_bytes_per_s,
            tables.local_bytes_per_s,
            tables.uplinks,
        )[np.arange(virtual) % pipeline]
        passes = np.outer(detail.experts.layer_kinds, detail.experts.passes)  # [K, 3]
        layer_s = layer_s + exchange_s[:, :, None, None] * passes
    task_s = detail.task_s[of_task, np.arange(virtual)[:, None]]  # [V, d, 3]
    if detail.sharded is None:
        tasks = np.einsum("vk,vdkc->vdc", counts, layer_s) + task_s
    else:

        def on_placement(ring: Ring, sent_bytes: Array) -> Array:
            return _sent_ring_times(tables, ring, sent_bytes, node_of_cell, detail.local_ring_share)

        tasks = detail.sharded.tasks_s(on_placement, counts, layer_s, task_s, separate)
    sync = _detailed_ring(tables, detail, tables.sync, detail.sync_layer_bytes, 0, layers, node_of_cell)
    gather = np.zeros(pipeline)
    if tables.gather_exposed:
        gather = _detailed_ring(
            tables, detail, tables.gather, detail.gather_layer_bytes, 1, layers, node_of_cell
        )
    stage_counts = detail.stage_counts(layers)
    step = np.einsum("tk,pk->tp", detail.optimizer_layer_s, stage_counts) + detail.optimizer_extra_s
    hop_forward, hop_backward = hop_times(tables, node_of_cell)
    return Durations(
        forward_s=tasks[..., 0],
        backward_s=tasks[..., 1],
        weight_gradient_s=tasks[..., 2] if separate else None,
        hop_forward_s=hop_forward,
        hop_backward_s=hop_backward,
        gradient_sync_s=_exposed(tables, sync, float(tasks[0, :, 1].min()), node_of_cell),
        embedding_sync_s=embedding_time(tables, node_of_cell),
        optimizer_s=step[types, np.arange(pipeline)[:, None]].max(axis=1),
        parameter_gather_s=gather,
        fixed_s=tables.fixed_s,
    )


def exchanges_s(tables: CostTables, layers: IntArray, node_of_cell: IntArray) -> tuple[Array, Array]:
    """[V, d] what exchanges of experts and traffic of sharded layers add to forward and backward.

    They are part of the tasks' durations; this is what of them is communication.
    """
    detail = tables.detail
    shape = (tables.num_virtual_stages, tables.data)
    if detail is None or (detail.experts is None and detail.sharded is None):
        return np.zeros(shape), np.zeros(shape)
    alone = replace(tables, detail=replace(detail, experts=None, sharded=None))
    whole, rest = (placement_durations(t, layers, node_of_cell) for t in (tables, alone))
    return whole.forward_s - rest.forward_s, whole.backward_s - rest.backward_s


def _detailed_ring(
    tables: CostTables,
    detail: Detail,
    ring: Ring,
    layer_bytes: Array,
    which: int,
    layers: IntArray,
    node_of_cell: IntArray,
) -> Array:
    """[p] time of the gradients' reduction (``which`` 0) or the parameters' gather (1): the ring of what all
    replicas hold, that of the experts, and what happens inside a cell."""
    share = detail.local_ring_share
    sent = detail.sent_bytes(ring, layer_bytes, layers)
    times = _sent_ring_times(tables, ring, sent, node_of_cell, share)
    counts = detail.stage_counts(layers)
    if detail.cell_sync_s is not None and detail.cell_sync_extra_s is not None:
        times = times + counts @ detail.cell_sync_s[which] + detail.cell_sync_extra_s[which]
    experts = detail.experts
    if experts is not None:
        layer_bytes = experts.gather_layer_bytes if which else experts.sync_layer_bytes
        cells = experts.replica_cells(node_of_cell)
        sent = np.repeat(counts @ layer_bytes, experts.cells)
        rings = _sent_ring_times(tables, ring, sent, cells, share)
        times = times + rings.reshape(-1, experts.cells).max(axis=1)
    return times


def stage_times(tables: CostTables, layers: IntArray) -> tuple[Array, Array, Array | None]:
    """Forward, backward and (where the schedule separates it, else None) weight gradient, [V]."""
    forward = tables.forward_layer_s * layers + tables.forward_extra_s
    backward = tables.backward_layer_s * layers + tables.backward_extra_s
    if tables.weight_gradient_layer_s == 0:
        return forward, backward, None
    return forward, backward, tables.weight_gradient_layer_s * layers + tables.weight_gradient_extra_s


def exposed_sync_s(tables: CostTables, ring_s: Array, layers: IntArray, node_of_cell: IntArray) -> Array:
    """[p] exposed part of the gradient synchronisation.

    With overlap only stage 0 has buckets: ``k`` equal ones, bucket ``i`` ready after the share ``i/k`` of the
    last backward, reduced one after another, so the end is the later of "the last one starts on time" and
    "all of them back to back from the first one on". Each has a latency of its own.
    """
    backward = tables.backward_layer_s * layers[0] + tables.backward_extra_s[0]
    return _exposed(tables, ring_s, float(backward), node_of_cell)


def _exposed(tables: CostTables, ring_s: Array, backward_s: float, node_of_cell: IntArray) -> Array:
    buckets = tables.sync_buckets
    if buckets == 1 or ring_s[0] == 0:
        return ring_s
    exposed = ring_s.copy()
    whole = ring_s[0] + (buckets - 1) * ring_latency_s(tables.sync, node_of_cell[0])
    exposed[0] = max(whole / buckets, whole - backward_s * (buckets - 1) / buckets)
    return exposed


def ring_latency_s(ring: Ring, nodes: IntArray) -> float:
    """Latency of one ring over cells on ``nodes`` [d]."""
    members, distinct = len(nodes), len(np.unique(nodes))
    steps_s = (distinct - 1) * ring.latency_per_node_step_s
    return ring.latency_s + (steps_s + (members - distinct) * ring.latency_per_local_step_s)


def hop_times(tables: CostTables, node_of_cell: IntArray) -> tuple[Array, Array]:
    """[V-1, d] forward and backward hops with the load of their concurrency group."""
    boundaries = tables.num_virtual_stages - 1
    forward = np.zeros((boundaries, tables.data))
    backward = np.zeros((boundaries, tables.data))
    distinct = min(boundaries, tables.pipeline)  # boundaries j and j + p join the same cells
    for j in range(distinct):
        source, target = tables.boundary_cells(j)
        arguments = (tables.hop_bytes, float(tables.tensor), *_links(tables))
        _flow_times(node_of_cell[source], node_of_cell[target], *arguments, forward[j])
        _flow_times(node_of_cell[target], node_of_cell[source], *arguments, backward[j])
        _raise_to_uplinks(
            tables, node_of_cell[source], node_of_cell[target], tables.hop_bytes, forward[j], backward[j]
        )
    forward[:distinct] += tables.hop_gather_s
    backward[:distinct] += tables.hop_gather_s
    for j in range(distinct, boundaries):
        forward[j] = forward[j - tables.pipeline]
        backward[j] = backward[j - tables.pipeline]
    return forward, backward


def ring_times(tables: CostTables, ring: Ring, stage_layers: IntArray, node_of_cell: IntArray) -> Array:
    """[p] time of one ring collective of every stage, all stages loading the network at once."""
    sent_bytes = ring.bytes_per_layer * stage_layers + ring.bytes_extra
    return _sent_ring_times(tables, ring, sent_bytes, node_of_cell)


def _sent_ring_times(
    tables: CostTables, ring: Ring, sent_bytes: Array, node_of_cell: IntArray, local_share: float = 1.0
) -> Array:
    """[rows] time of rings, one a row of ``node_of_cell`` [rows, members], each sending so many bytes.

    A ring that sends nothing takes no time. ``local_share``: `Detail.local_ring_share`.
    """
    rows, members = node_of_cell.shape
    times = np.zeros(rows)
    if members > 1 and np.any(sent_bytes > 0):
        _ring_times(
            node_of_cell,
            np.ascontiguousarray(sent_bytes, dtype=np.float64),
            float(tables.tensor),
            ring.latency_s,
            ring.latency_per_node_step_s,
            ring.latency_per_local_step_s,
            tables.pair_bytes_per_s,
            tables.egress_bytes_per_s,
            tables.ingress_bytes_per_s,
            tables.port_bytes_per_s,
            tables.local_bytes_per_s / local_share,
            times,
        )
        if len(tables.uplinks):
            latency_s, uplink_s = _ring_uplink_parts(tables, ring, sent_bytes, node_of_cell)
            np.maximum(times, latency_s + uplink_s, out=times)
        if local_share > 1:
            # a cell's members pass the whole ring to each other, also where a node holds one cell of it
            slowest = tables.local_bytes_per_s[node_of_cell].min(axis=1)
            np.maximum(times, ring.latency_s + sent_bytes * local_share / slowest, out=times)
    return times


def _ring_uplink_parts(
    tables: CostTables, ring: Ring, sent_bytes: Array, node_of_cell: IntArray
) -> tuple[Array, Array]:
    """[p] latency of each stage's ring, and its time on the busiest uplink."""
    stages, data = node_of_cell.shape
    order = np.zeros((stages, data), dtype=np.int64)
    lengths = np.zeros(stages, dtype=np.int64)
    for s in range(stages):
        distinct = list(dict.fromkeys(node_of_cell[s].tolist()))
        order[s, : len(distinct)], lengths[s] = distinct, len(distinct)
    uplink_s = np.zeros(stages)
    crossings = np.zeros((stages, len(tables.uplinks)), dtype=np.int64)
    loads = tables.tensor * np.asarray(sent_bytes, dtype=float)
    of_node, capacity = tables.uplinks.of_node, tables.uplinks.bytes_per_s
    ring_uplink_times(order, lengths, loads, of_node, capacity, crossings, uplink_s)
    latency_s = ring.latency_s + (lengths - 1) * ring.latency_per_node_step_s
    return latency_s + (data - lengths) * ring.latency_per_local_step_s, uplink_s


def _raise_to_uplinks(
    tables: CostTables,
    source: IntArray,
    target: IntArray,
    sent_bytes: float,
    there: Array,
    back: Array,
    *,
    at_once: bool = False,
) -> None:
    """Raise [d] times of flows to what the uplinks they pass allow; ``at_once``: both ways together."""
    if not len(tables.uplinks):
        return
    seconds = np.zeros(len(source))
    counts = np.zeros((2, len(tables.uplinks)), dtype=np.int64)
    of_node, capacity = tables.uplinks.of_node, tables.uplinks.bytes_per_s
    load = float(tables.tensor * sent_bytes)
    flow_uplink_times(source, target, load, int(at_once), of_node, capacity, counts, seconds)
    crossing = seconds > 0
    a, b = source[crossing], target[crossing]
    there[crossing] = np.maximum(there[crossing], tables.latency_s[a, b] + seconds[crossing])
    back[crossing] = np.maximum(back[crossing], tables.latency_s[b, a] + seconds[crossing])


def embedding_time(tables: CostTables, node_of_cell: IntArray) -> float:
    """Exchange of the tied embedding's gradient between the first and the last stage, all replicas at
    once."""
    if tables.embedding_bytes <= 0:
        return 0.0
    first, last = node_of_cell[0], node_of_cell[-1]
    source, target = np.concatenate([first, last]), np.concatenate([last, first])
    times = np.zeros(2 * tables.data)
    _flow_times(source, target, tables.embedding_bytes, float(tables.tensor), *_links(tables), times)
    there, back = times[: tables.data], times[tables.data :]
    _raise_to_uplinks(tables, first, last, tables.embedding_bytes, there, back, at_once=True)
    return float(times.max()) + tables.embedding_latency_s


def _links(tables: CostTables) -> tuple[Array, Array, Array, Array, float, Array, Array]:
    return (
        tables.latency_s,
        tables.pair_bytes_per_s,
        tables.egress_bytes_per_s,
        tables.ingress_bytes_per_s,
        tables.port_bytes_per_s,
        tables.local_bytes_per_s,
        tables.local_latency_s,
    )


@compiled
def _flow_times(
    source: IntArray,
    target: IntArray,
    sent_bytes: float,
    ranks: float,
    latency: Array,
    pair: Array,
    egress: Array,
    ingress: Array,
    port: float,
    local: Array,
    local_latency: Array,
    out: Array,
) -> None:
    """One flow per replica and tensor rank from source[z] to target[z], all at once."""
    replicas = source.shape[0]
    for z in range(replicas):
        a, b = source[z], target[z]
        if a == b:
            out[z] = local_latency[a] + sent_bytes / local[a]
            continue
        leaving, entering, same = 0, 0, 0
        for other in range(replicas):
            c, e = source[other], target[other]
            if c == e:
                continue
            if c == a:
                leaving += 1
                if e == b:
                    same += 1
            if e == b:
                entering += 1
        load = ranks * sent_bytes
        time = sent_bytes / port
        time = max(time, same * load / pair[a, b])
        time = max(time, leaving * load / egress[a])
        time = max(time, entering * load / ingress[b])
        out[z] = latency[a, b] + time


@compiled
def _ring_times(
    node_of_cell: IntArray,
    sent_bytes: Array,
    ranks: float,
    latency: float,
    latency_per_node_step: float,
    latency_per_local_step: float,
    pair: Array,
    egress: Array,
    ingress: Array,
    port: float,
    local: Array,
    out: Array,
) -> None:
    """Rings over the distinct nodes of each stage in order of first appearance by replica index."""
    stages, replicas = node_of_cell.shape
    nodes = egress.shape[0]
    order = np.zeros((stages, replicas), dtype=np.int64)
    members = np.zeros((stages, replicas), dtype=np.int64)
    lengths = np.zeros(stages, dtype=np.int64)
    pair_load = np.zeros((nodes, nodes))
    egress_load = np.zeros(nodes)
    ingress_load = np.zeros(nodes)
    position = np.zeros(nodes, dtype=np.int64)
    for s in range(stages):
        position[:] = -1
        m = 0
        for z in range(replicas):
            n = node_of_cell[s, z]
            if position[n] < 0:
                position[n] = m
                order[s, m] = n
                members[s, m] = 0
                m += 1
            members[s, position[n]] += 1
        lengths[s] = m
        if m >= 2:
            load = ranks * sent_bytes[s]
            for i in range(m):
                a = order[s, i]
                b = order[s, (i + 1) % m]
                pair_load[a, b] += load
                egress_load[a] += load
                ingress_load[b] += load
    for s in range(stages):
        m = lengths[s]
        time = 0.0
        for i in range(m):
            a = order[s, i]
            if members[s, i] >= 2:
                time = max(time, sent_bytes[s] / local[a])
            if m >= 2:
                b = order[s, (i + 1) % m]
                time = max(time, sent_bytes[s] / (members[s, i] * port))
                time = max(time, pair_load[a, b] / pair[a, b])
                time = max(time, egress_load[a] / egress[a])
                time = max(time, ingress_load[b] / ingress[b])
        out[s] = latency + (m - 1) * latency_per_node_step + (replicas - m) * latency_per_local_step + time
