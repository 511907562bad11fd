"""Rows of the Pyomo model that turn a placement into communication times.

Constraint families, every one per family of configurations
    hop_arcs        sum_b hop[q,z,a,b] = on[source,z,a], sum_a hop[q,z,a,b] = on[target,z,b]
    hop_time        hop_forward[q,z] >= sum link_s[a,b]*hop[q,z,a,b]; backward with the transposed links
    hop_sharing     a flow through a resource that k flows of its group use lasts latency + k loads
    ring_members    members[s,n,.] one-hot of the cells of a stage on a node
    ring_arcs       arcs follow the replicas, or the node that appeared last (`RingModel`)
    ring_order      which replica is the first of its stage on its node
    ring_time       a stage's own traffic: scale-up port, network ports, egress, ingress, edges; latency
    ring_sharing    rings of all stages on one egress, ingress or node pair
    ring_uplinks    rings that leave a group of nodes, with those of stages that share a node with them
    sync_overlap    exposed part of stage 0's reduction when it is cut into buckets
    embedding_arcs, embedding_time   exchange between cells (0,z) and (p-1,z), all replicas together
    step_time       step >= optimizer[s] + gather[s] + fixed_s

A product of bytes and a 0/1 expression e is bounded below by ``bytes - high_bytes*(use - e)``, which is
exact at both values of e because bytes never exceed ``high_bytes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyomo.environ as pyo

from pipette_milp.formulations.coefficients import Family, UplinkLoad
from pipette_milp.formulations.milp_family import MilpFamily

ArcVariables = Mapping[tuple[int, int], Any]
AtNode = Callable[[int], Any]


def _match(rows: Any, nodes: Iterable[int], arcs: ArcVariables, source: AtNode, target: AtNode) -> None:
    """As much leaves a node as ``source`` has there, as much enters as ``target`` has."""
    for n in nodes:
        rows.add(pyo.quicksum(arc for (a, _), arc in arcs.items() if a == n) == source(n))
        rows.add(pyo.quicksum(arc for (_, b), arc in arcs.items() if b == n) == target(n))


def hop_arcs(part: MilpFamily) -> None:
    rows, hop = part.rows("hop_arcs"), part.block.hop
    for q, arcs in part.arcs.items():
        source, target = part.family.boundary_cells(q)
        if source == target:
            continue
        for z in range(part.family.replicas):
            flows = {(a, b): hop[q, z, a, b] for a, b in arcs}
            _match(rows, part.family.hosts, flows, partial(part.on, source, z), partial(part.on, target, z))


def hop_time(part: MilpFamily) -> None:
    rows, block = part.rows("hop_time"), part.block
    link_s = part.family.hop_s
    for q, arcs in part.arcs.items():
        source, target = part.family.boundary_cells(q)
        for z in range(part.family.replicas):
            if source == target:
                local = pyo.quicksum(
                    part.seconds(link_s[n, n]) * part.on(source, z, n) for n in part.family.hosts
                )
                rows.add(block.hop_forward[q, z] >= local)
                rows.add(block.hop_backward[q, z] >= local)
                continue
            flows = [(block.hop[q, z, a, b], link_s[a, b], link_s[b, a]) for a, b in arcs]
            rows.add(
                block.hop_forward[q, z] >= pyo.quicksum(part.seconds(there) * y for y, there, _ in flows)
            )
            rows.add(block.hop_backward[q, z] >= pyo.quicksum(part.seconds(back) * y for y, _, back in flows))


def hop_sharing(part: MilpFamily) -> None:
    """One row per flow and resource; the big-M is the load of all other flows that could be there."""
    family, block = part.family, part.block
    rows = part.rows("hop_sharing")
    for q, arcs in part.arcs.items():
        # forward flows run along the arcs, backward flows against them
        directions = (
            (block.hop_forward, lambda z, a, b, q=q: block.hop[q, z, a, b], arcs),
            (block.hop_backward, lambda z, a, b, q=q: block.hop[q, z, b, a], [(b, a) for a, b in arcs]),
        )
        for time, flow, links in directions:
            for resource in part.links.shared_by_hops(links):
                step = part.seconds(resource.per_byte_s * family.tables.hop_bytes)
                others = min(family.replicas - 1, resource.room)
                flows = [[(a, b, flow(z, a, b)) for a, b in resource.links] for z in range(family.replicas)]
                load = step * pyo.quicksum(y for replica in flows for _, _, y in replica)
                for z, replica in enumerate(flows):
                    own = pyo.quicksum(y for _, _, y in replica)
                    latency = pyo.quicksum(
                        part.seconds(family.tables.latency_s[a, b] + family.tables.hop_gather_s) * y
                        for a, b, y in replica
                    )
                    rows.add(time[q, z] >= latency + load - step * others * (block.use - own))


def ring_members(part: MilpFamily) -> None:
    rows, family = part.rows("ring_members"), part.family
    for s in range(family.stages):
        for n in family.hosts:
            if not family.rings or family.slots[n] < 2:
                continue
            counts = range(family.slots[n] + 1)
            hosted = pyo.quicksum(part.on(s, z, n) for z in range(family.replicas))
            rows.add(pyo.quicksum(part.block.members[s, n, k] for k in counts) == part.block.use)
            rows.add(pyo.quicksum(k * part.block.members[s, n, k] for k in counts) == hosted)


def ring_arcs(part: MilpFamily) -> None:
    rows, family, ring = part.rows("ring_arcs"), part.family, part.block.ring
    if family.ring_model == "members":
        return
    at = part.on if family.ring_model == "replicas" else part.newest
    for s in range(family.stages):
        for i in family.ring_steps:
            arcs = {(a, b): ring[s, i, a, b] for k, a, b in part.links.ring(s) if k == i}
            closing = i == family.replicas - 1
            target = partial(part.on, s, 0) if closing else partial(at, s, i + 1)
            _match(rows, family.hosts, arcs, partial(at, s, i), target)


def ring_order(part: MilpFamily) -> None:
    """``first`` follows from ``on``; a step leads to another node exactly where one appears."""
    family, block = part.family, part.block
    if family.ring_model != "appearance":
        return
    rows = part.rows("ring_order")
    for s, z in part.cells:
        if z == 0:
            continue
        arcs = [(a, b) for i, a, b in part.links.ring(s) if i == z - 1]
        for n in family.hosts:
            first, before = block.first[s, z, n], [part.on(s, k, n) for k in range(z)]
            rows.add(first <= part.on(s, z, n))
            rows.add(first >= part.on(s, z, n) - pyo.quicksum(before))
            for earlier in before:
                rows.add(first <= block.use - earlier)
            moved = pyo.quicksum(block.ring[s, z - 1, a, b] for a, b in arcs if b == n and a != n)
            rows.add(moved == first)


def ring_time(part: MilpFamily) -> None:
    rows, family = part.rows("ring_time"), part.family
    for name, cost in family.rings.items():
        for s in range(family.stages):
            time = part.block.component(name)[s]
            latency = part.ring_latency(name, s)
            sent = part.ring_bytes(name, s)
            # seconds per byte of everything the ring may use, and whether it uses it
            uses = [
                (family.member_s(n, k), part.members(s, n, k))
                for n in family.hosts
                for k in range(1, family.slots[n] + 1)
                if family.member_s(n, k) > 0
            ]
            if family.ring_model != "members":
                uses += [
                    (float(family.pair_s[a, b]), part.ring_edge(s, a, b))
                    for a, b in family.binding_edges
                    if not part.links.edge_excluded(s, a, b)
                ]
                _ring_relaxation(part, rows, time, latency, sent, float(cost.low_bytes[s]), s)
            for per_byte_s, used in uses:
                rate = part.seconds(per_byte_s)
                high = float(cost.high_bytes[s])
                rows.add(time >= latency + rate * sent - rate * high * (part.block.use - used))


def _ring_relaxation(
    part: MilpFamily, rows: Any, time: Any, latency: Any, sent: Any, low: float, stage: int
) -> None:
    """For the linear relaxation: the arc of every step costs at least its bytes."""
    family, cost_s = part.family, part.family.edge_s
    if family.replicas == 2:  # the arc is travelled both ways
        cost_s = np.maximum(cost_s, cost_s.T)
    arcs = part.links.ring(stage)
    least = min((float(cost_s[a, b]) for _, a, b in arcs), default=0.0)
    for i in family.ring_steps:
        own = pyo.quicksum(
            part.seconds(low * cost_s[a, b]) * part.block.ring[stage, i, a, b] for k, a, b in arcs if k == i
        )
        more = part.seconds(least) * (sent - low * part.block.use)
        rows.add(time >= latency + own + more)


def ring_sharing(part: MilpFamily) -> None:
    """Loads of several stages: ``load`` is the time one stage's bytes take on the resource, if it uses it."""
    rows, family, block = part.rows("ring_sharing"), part.family, part.block
    stages = range(family.stages)
    for name, cost in family.rings.items():
        # seconds per byte, most stages at once, and for each stage whether it uses the resource
        resources: list[tuple[float, int, list[Any]]] = []
        for n in family.hosts:
            if family.shared_by_stages(n):
                per_byte = max(float(family.egress_s[n]), float(family.ingress_s[n]))
                resources.append((per_byte, family.stages_at(n), [part.leaves(s, n) for s in stages]))
        if family.ring_model != "members":
            for a, b in family.binding_edges:
                if family.shared_by_stages(a) and family.shared_by_stages(b):
                    room = min(family.stages_at(a), family.stages_at(b))
                    edges = [part.ring_edge(s, a, b) for s in stages]
                    resources.append((float(family.pair_s[a, b]), room, edges))
        load = pyo.Var(range(len(resources)), stages, domain=pyo.NonNegativeReals)
        block.add_component(f"load_{name}", load)
        for index, (per_byte, room, uses) in enumerate(resources):
            rate = part.seconds(per_byte)
            for s in stages:
                high, low = float(cost.high_bytes[s]), float(cost.low_bytes[s])
                sent = part.ring_bytes(name, s)
                rows.add(load[index, s] >= rate * sent - rate * high * (block.use - uses[s]))
                rows.add(load[index, s] >= rate * low * uses[s])
                others = np.sort(np.delete(cost.high_bytes, s))[::-1][:room]
                big = rate * float(others.sum())
                total = pyo.quicksum(load[index, t] for t in stages)
                latency = part.ring_latency(name, s)
                time = block.component(name)[s]
                rows.add(time >= latency + total - big * (block.use - uses[s]))


def ring_uplinks(part: MilpFamily) -> None:
    """``step`` is what one step of a ring loads on an uplink if it leaves the group, ``meet`` whether two
    stages share a node, ``joint`` what the other stage then adds; the load of a ring that does not pass the
    uplink is no limit for it."""
    family, block = part.family, part.block
    if not family.uplinks or not family.rings:
        return
    rows = part.rows("ring_uplinks")
    stages, uplinks, steps = range(family.stages), range(len(family.uplinks)), family.ring_steps
    pairs = [(s, t) for s in stages for t in stages if s < t]
    block.meet = pyo.Var(pairs, bounds=(0, 1))
    for s, t in pairs:
        for n in family.hosts:
            if family.tables.slots[n] >= 2:
                rows.add(block.meet[s, t] >= part.used(s, n) + part.used(t, n) - block.use)
    for name, cost in family.rings.items():
        step = pyo.Var(stages, steps, uplinks, domain=pyo.NonNegativeReals)
        joint = pyo.Var(stages, stages, uplinks, domain=pyo.NonNegativeReals)
        block.add_component(f"uplink_step_{name}", step)
        block.add_component(f"uplink_joint_{name}", joint)
        high = {
            (s, u): _most_crossings(family, u) * family.uplinks[u].per_byte_s * float(cost.high_bytes[s])
            for s in stages
            for u in uplinks
        }
        for u, uplink in enumerate(family.uplinks):
            rate = part.seconds(uplink.per_byte_s)
            leaving = {(s, i): _leaves_group(part, s, i, uplink) for s in stages for i in steps}
            loads = {s: pyo.quicksum(step[s, i, u] for i in steps) for s in stages}
            for s in stages:
                sent, most = part.ring_bytes(name, s), rate * float(cost.high_bytes[s])
                for i in steps:
                    rows.add(step[s, i, u] >= rate * sent - most * (block.use - leaving[s, i]))
            for s in stages:
                others = [t for t in stages if t != s]
                for t in others:
                    meet = block.meet[min(s, t), max(s, t)]
                    rows.add(joint[s, t, u] >= loads[t] - part.seconds(high[t, u]) * (block.use - meet))
                big = part.seconds(high[s, u] + sum(high[t, u] for t in others))
                total = loads[s] + pyo.quicksum(joint[s, t, u] for t in others)
                time = block.component(name)[s]
                for i in steps:
                    rows.add(time >= part.ring_latency(name, s) + total - big * (block.use - leaving[s, i]))


def _leaves_group(part: MilpFamily, stage: int, step: int, uplink: UplinkLoad) -> Any:
    """1 if a step of a stage's ring leads out of the group; with two replicas one step is both ways."""
    both = part.family.replicas == 2
    return pyo.quicksum(
        part.block.ring[stage, i, a, b]
        for i, a, b in part.links.ring(stage)
        if i == step and (uplink.leaves(a, b) or (both and uplink.leaves(b, a)))
    )


def _most_crossings(family: Family, uplink: int) -> int:
    """Most edges of one ring that leave a group: each from another node, to another node outside."""
    sides = (family.uplinks[uplink].inside, family.uplinks[uplink].outside)
    return min(family.replicas, *(len(side) for side in sides))


def sync_overlap(part: MilpFamily) -> None:
    tables, block, buckets = part.family.tables, part.block, part.family.tables.sync_buckets
    if buckets <= 1:
        return
    rows = part.rows("sync_overlap")
    backward = (
        part.seconds(tables.backward_layer_s) * block.layers[0]
        + part.seconds(tables.backward_extra_s[0]) * block.use
    )
    # every bucket has its own latency
    whole = block.sync[0]
    if "sync" in part.family.rings:
        whole = whole + (buckets - 1) * part.ring_latency("sync", 0)
    rows.add(block.exposed_sync >= whole / buckets)
    rows.add(block.exposed_sync >= whole - (buckets - 1) / buckets * backward)


def embedding_arcs(part: MilpFamily) -> None:
    arcs, exchange = part.links.exchange(), part.block.exchange
    if not arcs:
        return
    rows, last = part.rows("embedding_arcs"), part.family.stages - 1
    for z in range(part.family.replicas):
        flows = {(a, b): exchange[z, a, b] for a, b in arcs}
        _match(rows, part.family.hosts, flows, partial(part.on, 0, z), partial(part.on, last, z))


def embedding_time(part: MilpFamily) -> None:
    """The slowest flow: its own link, or its latency and all that its resource carries."""
    family, tables, block = part.family, part.family.tables, part.block
    if tables.embedding_bytes <= 0:
        return
    rows, replicas = part.rows("embedding_time"), range(part.family.replicas)
    start = part.seconds(tables.embedding_latency_s) * block.use
    if family.stages == 1:
        for z in replicas:
            alone = pyo.quicksum(
                part.seconds(family.embedding_s[n, n]) * part.on(0, z, n) for n in family.hosts
            )
            rows.add(block.embedding >= alone)
        return

    def pair(z: int, a: int, b: int) -> Any:
        """1 if replica z exchanges between two nodes, whichever of its cells is on which."""
        return block.exchange[z, a, b] + block.exchange[z, b, a]

    for z in replicas:
        alone = pyo.quicksum(
            part.seconds(family.embedding_s[a, b]) * block.exchange[z, a, b] for a, b in part.links.exchange()
        )
        rows.add(block.embedding >= alone)
    for resource in part.links.shared_by_exchanges():
        step = part.seconds(resource.per_byte_s * tables.embedding_bytes)
        load = step * pyo.quicksum(pair(z, a, b) for z in replicas for a, b in resource.links)
        for z in replicas:
            latency = pyo.quicksum(
                part.seconds(tables.latency_s[a, b]) * pair(z, a, b) for a, b in resource.links
            )
            rows.add(block.embedding >= start + latency + load)


def step_time(part: MilpFamily) -> None:
    rows, tables, block = part.rows("step_time"), part.family.tables, part.block
    for s in range(part.family.stages):
        optimizer = (
            part.seconds(tables.optimizer_layer_s) * part.stage_layers(s)
            + part.seconds(tables.optimizer_extra_s[s] + tables.fixed_s) * block.use
        )
        rows.add(block.step >= optimizer + block.gather[s])


BUILDERS: dict[str, Callable[[MilpFamily], None]] = {
    "hop_arcs": hop_arcs,
    "hop_time": hop_time,
    "hop_sharing": hop_sharing,
    "ring_members": ring_members,
    "ring_arcs": ring_arcs,
    "ring_order": ring_order,
    "ring_time": ring_time,
    "ring_sharing": ring_sharing,
    "ring_uplinks": ring_uplinks,
    "sync_overlap": sync_overlap,
    "embedding_arcs": embedding_arcs,
    "embedding_time": embedding_time,
    "step_time": step_time,
}
"""Constraint families that need nothing but one family's block."""
