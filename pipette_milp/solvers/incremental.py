"""Durations of candidates for search: flat arrays, compiled, and only what a change touches.

`pipette_milp.cost.placement` is the plain evaluation; the kernel here computes the same numbers (tested to
1e-12) into arrays that a search keeps. A *lane* is the column of durations of one replica in the row order of
`pipette_milp.simulator.EventGraph.rows`: forward [V], backward [V], weight gradient [V] where the schedule
separates it, hop forward [V-1], hop backward [V-1].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.uplinks import flow_uplink_times, ring_uplink_times


class Figures(NamedTuple):
    """What the kernels read of `CostTables`; fields of the same name have the same meaning."""

    pipeline: int
    virtual: int
    """V"""
    data: int
    nodes: int
    tensor: float
    separate: int
    """1 where the weight gradient is a task of its own, else 0."""
    layer_s: Array
    """[3] forward, backward, weight gradient"""
    extra_s: Array
    """[3, V]"""
    hop_bytes: float
    hop_gather_s: float
    port: float
    latency_s: Array
    pair: Array
    egress: Array
    ingress: Array
    local: Array
    local_latency_s: Array
    ring_bytes_per_layer: Array
    """[2] synchronisation, exposed parameter gather"""
    ring_bytes_extra: Array
    """[2, p]"""
    ring_latency_s: Array
    """[2, 3] once, per step between nodes, per step inside a node"""
    ring_active: IntArray
    """[2] 0 where the collective does not take place"""
    sync_buckets: int
    embedding_bytes: float
    embedding_latency_s: float
    optimizer_layer_s: float
    optimizer_extra_s: Array
    fixed_s: float
    uplinks_of_node: IntArray
    uplink_bytes_per_s: Array
    """[U] `pipette_milp.uplinks.Uplinks`"""

    @property
    def rows(self) -> int:
        """Length of a lane."""
        return (2 + self.separate) * self.virtual + 2 * (self.virtual - 1)


class Scratch(NamedTuple):
    """Work space of the kernels; counts and loads are zero between calls."""

    leaving: IntArray
    entering: IntArray
    pairs: IntArray
    egress_load: Array
    ingress_load: Array
    pair_load: Array
    position: IntArray
    """[N] -1 between calls"""
    order: IntArray
    """[p, d] distinct nodes of every stage in order of first appearance"""
    members: IntArray
    """[p, d] cells on each of them"""
    lengths: IntArray
    """[p] how many they are"""
    uplink_counts: IntArray
    uplink_crossings: IntArray
    uplink_flow_s: Array
    """[d]"""
    uplink_ring_s: Array
    """[p]"""
    ring_loads: Array
    """[p] bytes over each edge, all tensor ranks"""


def figures_of(tables: CostTables) -> Figures:
    """Copy the tables into the form the kernels read."""

    def floats(values: Array) -> Array:
        return np.array(values, dtype=np.float64, order="C")

    def whole(values: IntArray) -> IntArray:
        return np.array(values, dtype=np.int64, order="C")

    def active(ring: Ring) -> bool:
        return tables.data > 1 and (ring.bytes_per_layer > 0 or bool(np.any(ring.bytes_extra > 0)))

    rings = (tables.sync, tables.gather)
    return Figures(
        pipeline=tables.pipeline,
        virtual=tables.num_virtual_stages,
        data=tables.data,
        nodes=tables.num_nodes,
        tensor=float(tables.tensor),
        separate=int(tables.weight_gradient_layer_s != 0),
        layer_s=floats(
            np.array([tables.forward_layer_s, tables.backward_layer_s, tables.weight_gradient_layer_s])
        ),
        extra_s=floats(
            np.stack((tables.forward_extra_s, tables.backward_extra_s, tables.weight_gradient_extra_s))
        ),
        hop_bytes=float(tables.hop_bytes),
        hop_gather_s=float(tables.hop_gather_s),
        port=float(tables.port_bytes_per_s),
        latency_s=floats(tables.latency_s),
        pair=floats(tables.pair_bytes_per_s),
        egress=floats(tables.egress_bytes_per_s),
        ingress=floats(tables.ingress_bytes_per_s),
        local=floats(tables.local_bytes_per_s),
        local_latency_s=floats(tables.local_latency_s),
        ring_bytes_per_layer=floats(np.array([ring.bytes_per_layer for ring in rings])),
        ring_bytes_extra=floats(np.stack([ring.bytes_extra for ring in rings])),
        ring_latency_s=floats(
            np.array(
                [
                    (ring.latency_s, ring.latency_per_node_step_s, ring.latency_per_local_step_s)
                    for ring in rings
                ]
            )
        ),
        ring_active=whole(
            np.array([active(tables.sync), tables.gather_exposed and active(tables.gather)], dtype=np.int64)
        ),
        sync_buckets=int(tables.sync_buckets),
        embedding_bytes=float(tables.embedding_bytes),
        embedding_latency_s=float(tables.embedding_latency_s),
        optimizer_layer_s=float(tables.optimizer_layer_s),
        optimizer_extra_s=floats(tables.optimizer_extra_s),
        fixed_s=float(tables.fixed_s),
        uplinks_of_node=whole(tables.uplinks.of_node),
        uplink_bytes_per_s=floats(tables.uplinks.bytes_per_s),
    )


def scratch_of(figures: Figures) -> Scratch:
    """Work space for the kernels."""
    n, p, d = figures.nodes, figures.pipeline, figures.data
    uplinks = len(figures.uplink_bytes_per_s)
    return Scratch(
        leaving=np.zeros(n, dtype=np.int64),
        entering=np.zeros(n, dtype=np.int64),
        pairs=np.zeros((n, n), dtype=np.int64),
        egress_load=np.zeros(n),
        ingress_load=np.zeros(n),
        pair_load=np.zeros((n, n)),
        position=np.full(n, -1, dtype=np.int64),
        order=np.zeros((p, d), dtype=np.int64),
        members=np.zeros((p, d), dtype=np.int64),
        lengths=np.zeros(p, dtype=np.int64),
        uplink_counts=np.zeros((2, uplinks), dtype=np.int64),
        uplink_crossings=np.zeros((p, uplinks), dtype=np.int64),
        uplink_flow_s=np.zeros(d),
        uplink_ring_s=np.zeros(p),
        ring_loads=np.zeros(p),
    )


@compiled
def update_durations(
    f: Figures,
    work: Scratch,
    layers: IntArray,
    cells: IntArray,
    touched: IntArray,
    lanes: Array,
    guard: Array,
    step: Array,
) -> float:
    """Durations after a change.

    Args:
        layers, cells: [V], [p, d] the candidate
        touched: [p + 1] 1 for stages whose cells differ from those that ``lanes`` and ``work`` hold, else 0;
            the last entry is 1 if the layers differ
        lanes: [d, rows] in and out
        guard: [p] out; what follows the last backward of a stage up to the barrier: exposed synchronisation,
            and the embedding exchange after the first and the last stage
        step: [p] out; optimiser and exposed parameter gather
    Returns:
        The sum of all synchronisations, gathers and of the embedding exchange: a measure of communication.
    """
    p = f.pipeline
    if touched[p] == 1:
        for kind in range(2 + f.separate):
            for j in range(f.virtual):
                duration = f.layer_s[kind] * layers[j] + f.extra_s[kind, j]
                for z in range(f.data):
                    lanes[z, kind * f.virtual + j] = duration
    update_hops(f, work, cells, touched, lanes)
    for s in range(p):
        if touched[s] == 1:
            find_ring(work, cells, s)
        guard[s] = 0.0
        step[s] = f.optimizer_layer_s * layers_of_stage(f.pipeline, layers, s) + f.optimizer_extra_s[s]
    communication = 0.0
    for ring in range(2):
        if f.ring_active[ring] == 1:
            communication += add_rings(f, work, layers, ring, guard if ring == 0 else step)
    if f.embedding_bytes > 0:
        exchange = embedding_exchange(f, work, cells)
        guard[0] += exchange
        if p > 1:
            guard[p - 1] += exchange
        communication += exchange
    return communication


@compiled
def layers_of_stage(pipeline: int, layers: IntArray, s: int) -> int:
    """Layers of all virtual stages of pipeline stage s."""
    total = 0
    for j in range(s, len(layers), pipeline):
        total += layers[j]
    return total


@compiled
def update_hops(f: Figures, work: Scratch, cells: IntArray, touched: IntArray, lanes: Array) -> None:
    """Hops of the boundaries between touched stages; all replicas of a boundary and direction at once."""
    first_hop = (2 + f.separate) * f.virtual
    load = f.tensor * f.hop_bytes
    alone = f.hop_bytes / f.port
    for j in range(min(f.virtual - 1, f.pipeline)):  # boundaries j and j + p join the same cells
        s, t = j % f.pipeline, (j + 1) % f.pipeline
        if touched[s] == 0 and touched[t] == 0:
            continue
        for z in range(f.data):
            a, b = cells[s, z], cells[t, z]
            if a != b:
                work.leaving[a] += 1
                work.entering[b] += 1
                work.pairs[a, b] += 1
        find_flow_uplinks(f, work, cells, s, t, load, 0)
        for z in range(f.data):
            a, b = cells[s, z], cells[t, z]
            if a == b:
                forward = f.local_latency_s[a] + f.hop_bytes / f.local[a]
                backward = forward
            else:
                # the backward flows are the forward ones turned around
                count = work.pairs[a, b] * load
                out, into = work.leaving[a] * load, work.entering[b] * load
                forward = max(max(alone, count / f.pair[a, b]), max(out / f.egress[a], into / f.ingress[b]))
                backward = max(max(alone, count / f.pair[b, a]), max(into / f.egress[b], out / f.ingress[a]))
                forward = max(forward, work.uplink_flow_s[z])
                backward = max(backward, work.uplink_flow_s[z])
                forward += f.latency_s[a, b]
                backward += f.latency_s[b, a]
            for k in range(j, f.virtual - 1, f.pipeline):
                lanes[z, first_hop + k] = forward + f.hop_gather_s
                lanes[z, first_hop + f.virtual - 1 + k] = backward + f.hop_gather_s
        for z in range(f.data):
            a, b = cells[s, z], cells[t, z]
            work.leaving[a] = 0
            work.entering[b] = 0
            work.pairs[a, b] = 0


@compiled
def find_flow_uplinks(
    f: Figures, work: Scratch, cells: IntArray, s: int, t: int, load: float, both_ways: int
) -> None:
    """Time on uplinks of the flows between two stages, into the work space; 0 where there are none."""
    if f.uplink_bytes_per_s.shape[0] > 0:
        flow_uplink_times(
            cells[s],
            cells[t],
            load,
            both_ways,
            f.uplinks_of_node,
            f.uplink_bytes_per_s,
            work.uplink_counts,
            work.uplink_flow_s,
        )


@compiled
def find_ring(work: Scratch, cells: IntArray, s: int) -> None:
    """Distinct nodes of a stage in order of first appearance, and how many cells each hosts."""
    m = 0
    for z in range(cells.shape[1]):
        n = cells[s, z]
        if work.position[n] < 0:
            work.position[n] = m
            work.order[s, m] = n
            work.members[s, m] = 0
            m += 1
        work.members[s, work.position[n]] += 1
    work.lengths[s] = m
    for i in range(m):
        work.position[work.order[s, i]] = -1


@compiled
def add_rings(f: Figures, work: Scratch, layers: IntArray, ring: int, times: Array) -> float:
    """Add the exposed time of one collective of every stage to ``times[p]``; returns the sum over stages."""
    for s in range(f.pipeline):
        m = work.lengths[s]
        if m >= 2:
            sent = (
                f.ring_bytes_per_layer[ring] * layers_of_stage(f.pipeline, layers, s)
                + f.ring_bytes_extra[ring, s]
            )
            load = f.tensor * sent
            work.ring_loads[s] = load
            a = work.order[s, m - 1]
            for i in range(m):
                b = work.order[s, i]
                work.pair_load[a, b] += load
                work.egress_load[a] += load
                work.ingress_load[b] += load
                a = b
    if f.uplink_bytes_per_s.shape[0] > 0:
        ring_uplink_times(
            work.order,
            work.lengths,
            work.ring_loads,
            f.uplinks_of_node,
            f.uplink_bytes_per_s,
            work.uplink_crossings,
            work.uplink_ring_s,
        )
    total = 0.0
    for s in range(f.pipeline):
        m = work.lengths[s]
        sent = (
            f.ring_bytes_per_layer[ring] * layers_of_stage(f.pipeline, layers, s)
            + f.ring_bytes_extra[ring, s]
        )
        latency = f.ring_latency_s[ring, 0]
        latency += (m - 1) * f.ring_latency_s[ring, 1] + (f.data - m) * f.ring_latency_s[ring, 2]
        slowest = work.uplink_ring_s[s]
        for i in range(m):
            a = work.order[s, i]
            if work.members[s, i] >= 2:
                slowest = max(slowest, sent / f.local[a])
            if m >= 2:
                b = work.order[s, i + 1 if i + 1 < m else 0]
                slowest = max(slowest, sent / (work.members[s, i] * f.port))
                slowest = max(slowest, work.pair_load[a, b] / f.pair[a, b])
                slowest = max(slowest, work.egress_load[a] / f.egress[a])
                slowest = max(slowest, work.ingress_load[b] / f.ingress[b])
        time = latency + slowest
        if ring == 0 and s == 0 and f.sync_buckets > 1:
            backward = f.layer_s[1] * layers[0] + f.extra_s[1, 0]
            hidden = backward * (f.sync_buckets - 1) / f.sync_buckets
            time += (f.sync_buckets - 1) * latency
            time = max(time / f.sync_buckets, time - hidden)
        times[s] += time
        total += time
    for s in range(f.pipeline):
        m = work.lengths[s]
        a = work.order[s, m - 1]
        for i in range(m):
            b = work.order[s, i]
            work.pair_load[a, b] = 0.0
            work.egress_load[a] = 0.0
            work.ingress_load[b] = 0.0
            a = b
    return total


@compiled
def embedding_exchange(f: Figures, work: Scratch, cells: IntArray) -> float:
    """Both directions of every pair of first and last cell load the network at once; the slowest counts."""
    last = f.pipeline - 1
    for z in range(f.data):
        a, b = cells[0, z], cells[last, z]
        if a != b:
            work.leaving[a] += 1  # and as much enters
            work.leaving[b] += 1
            work.pairs[a, b] += 1
            work.pairs[b, a] += 1
    load = f.tensor * f.embedding_bytes
    alone = f.embedding_bytes / f.port
    find_flow_uplinks(f, work, cells, 0, last, load, 1)
    slowest = 0.0
    for z in range(f.data):
        a, b = cells[0, z], cells[last, z]
        if a == b:
            slowest = max(slowest, f.local_latency_s[a] + f.embedding_bytes / f.local[a])
        else:
            one, other = work.leaving[a] * load, work.leaving[b] * load
            count = work.pairs[a, b] * load
            there = max(max(alone, count / f.pair[a, b]), max(one / f.egress[a], other / f.ingress[b]))
            back = max(max(alone, count / f.pair[b, a]), max(other / f.egress[b], one / f.ingress[a]))
            there, back = max(there, work.uplink_flow_s[z]), max(back, work.uplink_flow_s[z])
            slowest = max(slowest, max(f.latency_s[a, b] + there, f.latency_s[b, a] + back))
    for z in range(f.data):
        a, b = cells[0, z], cells[last, z]
        work.leaving[a] = 0
        work.leaving[b] = 0
        work.pairs[a, b] = 0
        work.pairs[b, a] = 0
    return slowest + f.embedding_latency_s
