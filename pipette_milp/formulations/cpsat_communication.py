"""Rows of the CP-SAT model that turn a placement into communication times.

The constraint families are those of `pipette_milp.formulations.milp_communication`. Where the MILP takes
a big-M off a row, the row here is enforced by the literal that says whether the resource is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pipette_milp.formulations.coefficients import UplinkLoad
from pipette_milp.formulations.cpsat_family import CpSatFamily

AtNode = Callable[[int], Any]


def _match(part: CpSatFamily, arcs: Mapping[tuple[int, int], Any], source: AtNode, target: AtNode) -> None:
    """Exactly one arc, from the node of ``source`` to the node of ``target``."""
    for n in part.family.hosts:
        leaving = [arc for (a, _), arc in arcs.items() if a == n]
        entering = [arc for (_, b), arc in arcs.items() if b == n]
        part.model.add_exactly_one([*leaving, ~source(n)])
        part.model.add_exactly_one([*entering, ~target(n)])


def hop_arcs(part: CpSatFamily) -> None:
    for q, arcs in part.arcs.items():
        source, target = part.family.boundary_cells(q)
        if source == target:
            continue
        for z in range(part.family.replicas):
            flows = {(a, b): part.hop[q, z, a, b] for a, b in arcs}
            _match(part, flows, partial(part.cell_at, source, z), partial(part.cell_at, target, z))


def hop_time(part: CpSatFamily) -> None:
    link_s = part.family.hop_s
    for q, arcs in part.arcs.items():
        source, target = part.family.boundary_cells(q)
        for z in range(part.family.replicas):
            if source == target:
                local = part.weighted([(part.on[source, z, n], link_s[n, n]) for n in part.family.hosts])
                part.model.add(part.hop_forward[q, z] >= local)
                part.model.add(part.hop_backward[q, z] >= local)
                continue
            flows = [(part.hop[q, z, a, b], a, b) for a, b in arcs]
            part.model.add(
                part.hop_forward[q, z] >= part.weighted([(arc, link_s[a, b]) for arc, a, b in flows])
            )
            part.model.add(
                part.hop_backward[q, z] >= part.weighted([(arc, link_s[b, a]) for arc, a, b in flows])
            )


def hop_sharing(part: CpSatFamily) -> None:
    family = part.family
    for q, arcs in part.arcs.items():
        # forward flows run along the arcs, backward flows against them
        directions = (
            (part.hop_forward, lambda z, a, b, q=q: part.hop[q, z, a, b], arcs),
            (part.hop_backward, lambda z, a, b, q=q: part.hop[q, z, b, a], [(b, a) for a, b in arcs]),
        )
        for time, flow, links in directions:
            for resource in part.links.shared_by_hops(links):
                step = part.ticks(resource.per_byte_s * family.tables.hop_bytes)
                flows = [[(a, b, flow(z, a, b)) for a, b in resource.links] for z in range(family.replicas)]
                load = step * sum(arc for replica in flows for _, _, arc in replica)
                for z, replica in enumerate(flows):
                    latency = part.weighted(
                        [
                            (arc, family.tables.latency_s[a, b] + family.tables.hop_gather_s)
                            for a, b, arc in replica
                        ]
                    )
                    uses = part.model.new_bool_var("uses")
                    part.model.add(sum(arc for _, _, arc in replica) == uses)
                    part.model.add(time[q, z] >= latency + load).only_enforce_if(uses)


def ring_members(part: CpSatFamily) -> None:
    family = part.family
    if not family.rings:
        return
    for s in range(family.stages):
        for n in family.hosts:
            literals = [part.members[s, n, k] for k in range(family.slots[n] + 1)]
            hosted = sum(part.on[s, z, n] for z in range(family.replicas))
            part.model.add_exactly_one([*literals, part.use.negated()])
            part.model.add(sum(k * literal for k, literal in enumerate(literals)) == hosted)
            most = min(family.slots[n], family.replicas - 1)
            part.model.add(sum(literals[1 : most + 1]) == part.leaves[s, n])


def ring_arcs(part: CpSatFamily) -> None:
    family = part.family
    if family.ring_model == "members":
        return
    at = part.cell_at if family.ring_model == "replicas" else part.newest_at
    for s in range(family.stages):
        for i in family.ring_steps:
            arcs = {(a, b): part.ring[s, i, a, b] for k, a, b in part.links.ring(s) if k == i}
            closing = i == family.replicas - 1
            target = partial(part.cell_at, s, 0) if closing else partial(at, s, i + 1)
            _match(part, arcs, partial(at, s, i), target)
    for (s, a, b), edge in part.edge.items():
        # no two steps take the same edge: each node appears first once
        steps = [part.ring[s, i, a, b] for i in family.ring_steps]
        if family.replicas == 2:  # the arc is travelled both ways
            steps.append(part.ring[s, 0, b, a])
        part.model.add(sum(steps) == edge)


def ring_order(part: CpSatFamily) -> None:
    """``first`` follows from ``on``; a step leads to another node exactly where one appears."""
    family = part.family
    if family.ring_model != "appearance":
        return
    for (s, z, n), first in part.first.items():
        here, before = part.on[s, z, n], [part.on[s, k, n] for k in range(z)]
        part.model.add_implication(first, here)
        part.model.add_bool_or([first, ~here, *before])
        for earlier in before:
            part.model.add_implication(first, ~earlier)
        moved = [part.ring[s, i, a, b] for i, a, b in part.links.ring(s) if (i, b) == (z - 1, n) and a != n]
        part.model.add(sum(moved) == first)


def ring_time(part: CpSatFamily) -> None:
    family = part.family
    for name, cost in family.rings.items():
        times = part.sync if name == "sync" else part.gather
        for s in range(family.stages):
            latency = part.ring_latency(name, s)
            uses = [
                (family.member_s(n, k), part.members[s, n, k])
                for n in family.hosts
                for k in range(1, family.slots[n] + 1)
                if family.member_s(n, k) > 0
            ]
            uses += [
                (float(family.pair_s[a, b]), part.edge[s, a, b])
                for a, b in family.binding_edges
                if (s, a, b) in part.edge
            ]
            for per_byte_s, used in uses:
                sent = part.ring_bytes_ticks(name, s, per_byte_s)
                part.model.add(times[s] >= latency + sent).only_enforce_if(used)
            _ring_relaxation(part, times[s], latency, float(cost.low_bytes[s]), s)


def _ring_relaxation(part: CpSatFamily, time: Any, latency: Any, low: float, stage: int) -> None:
    """For the linear relaxation: the arc of every step costs at least the fewest bytes."""
    family, cost_s = part.family, part.family.edge_s
    if family.ring_model == "members":
        return
    if family.replicas == 2:  # the arc is travelled both ways
        cost_s = np.maximum(cost_s, cost_s.T)
    for i in family.ring_steps:
        arcs = [
            (part.ring[stage, k, a, b], low * cost_s[a, b]) for k, a, b in part.links.ring(stage) if k == i
        ]
        part.model.add(time >= latency + part.weighted(arcs))


def ring_sharing(part: CpSatFamily) -> None:
    """Loads of several stages: ``load`` is the time one stage's bytes take on the resource, if it uses it."""
    family = part.family
    stages = range(family.stages)
    for name, cost in family.rings.items():
        times = part.sync if name == "sync" else part.gather
        # seconds per byte, and for each stage the literal that says whether it uses the resource, if it can
        resources: list[tuple[float, dict[int, Any]]] = []
        for n in family.hosts:
            if family.shared_by_stages(n):
                per_byte_s = max(float(family.egress_s[n]), float(family.ingress_s[n]))
                resources.append((per_byte_s, {s: part.leaves[s, n] for s in stages}))
        for a, b in family.binding_edges if part.edge else ():
            if family.shared_by_stages(a) and family.shared_by_stages(b):
                edges = {s: part.edge[s, a, b] for s in stages if (s, a, b) in part.edge}
                resources.append((float(family.pair_s[a, b]), edges))
        for per_byte_s, uses in resources:
            loads = []
            for s, used in uses.items():
                most = part.ticks(per_byte_s * float(cost.high_bytes[s])) + 1
                load = part.model.new_int_var(0, most, "load")
                sent = part.ring_bytes_ticks(name, s, per_byte_s)
                part.model.add(load >= sent).only_enforce_if(used)
                least = part.ticks(per_byte_s * float(cost.low_bytes[s]))
                part.model.add(load >= least * used)
                loads.append((s, used, load))
            total = sum(load for _, _, load in loads)
            for s, used, _ in loads:
                part.model.add(times[s] >= part.ring_latency(name, s) + total).only_enforce_if(used)


def ring_uplinks(part: CpSatFamily) -> None:
    """As in the MILP: what each step loads if it leaves the group, and the rings of stages that share a
    node."""
    family, model = part.family, part.model
    if not family.uplinks or not family.rings:
        return
    stages, steps = range(family.stages), family.ring_steps
    meet = {(s, t): model.new_bool_var("meet") for s in stages for t in stages if s < t}
    for (s, t), shared in meet.items():
        for n in family.hosts:
            if family.tables.slots[n] >= 2:
                absent = [part.members[s, n, 0], part.members[t, n, 0]]
                model.add_bool_or([shared, *absent, part.use.negated()])
    for uplink in family.uplinks:
        leaving = {(s, i): _leaves_group(part, s, i, uplink) for s in stages for i in steps}
        for name, cost in family.rings.items():
            times = part.sync if name == "sync" else part.gather
            loads = {}
            for s in stages:
                most = part.ticks(uplink.per_byte_s * float(cost.high_bytes[s])) + 1
                sent = part.ring_bytes_ticks(name, s, uplink.per_byte_s)
                loaded = {i: model.new_int_var(0, most, "uplink_step") for i in steps}
                for i, load in loaded.items():
                    model.add(load >= sent).only_enforce_if(leaving[s, i])
                loads[s] = (sum(loaded.values()), most * len(loaded))
            for s in stages:
                joints = []
                for t in stages:
                    if t != s:
                        joint = model.new_int_var(0, loads[t][1], "uplink_joint")
                        model.add(joint >= loads[t][0]).only_enforce_if(meet[min(s, t), max(s, t)])
                        joints.append(joint)
                total = loads[s][0] + sum(joints)
                for i in steps:
                    latency = part.ring_latency(name, s)
                    model.add(times[s] >= latency + total).only_enforce_if(leaving[s, i])


def _leaves_group(part: CpSatFamily, stage: int, step: int, uplink: UplinkLoad) -> Any:
    """Whether a step of a stage's ring leads out of the group; with two replicas one step is both ways."""
    both = part.family.replicas == 2
    arcs = [
        part.ring[stage, i, a, b]
        for i, a, b in part.links.ring(stage)
        if i == step and (uplink.leaves(a, b) or (both and uplink.leaves(b, a)))
    ]
    leaving = part.model.new_bool_var("leaves_group")
    part.model.add(sum(arcs) == leaving)
    return leaving


def sync_overlap(part: CpSatFamily) -> None:
    tables, buckets = part.family.tables, part.family.tables.sync_buckets
    if buckets <= 1:
        return
    # multiplied by the number of buckets: whole coefficients
    hidden = [(part.layers[0], tables.backward_layer_s), (part.use, float(tables.backward_extra_s[0]))]
    ceiling = sum((part.ticks(seconds) + 1) * variable for variable, seconds in hidden)
    # every bucket has its own latency
    whole = part.sync[0]
    if "sync" in part.family.rings:
        whole = whole + (buckets - 1) * part.ring_latency("sync", 0)
    part.model.add(buckets * part.exposed_sync >= whole - buckets + 1)
    part.model.add(buckets * part.exposed_sync >= buckets * whole - (buckets - 1) * ceiling)


def embedding_arcs(part: CpSatFamily) -> None:
    arcs, last = part.links.exchange(), part.family.stages - 1
    if not arcs:
        return
    for z in range(part.family.replicas):
        flows = {(a, b): part.exchange[z, a, b] for a, b in arcs}
        _match(part, flows, partial(part.cell_at, 0, z), partial(part.cell_at, last, z))


def embedding_time(part: CpSatFamily) -> None:
    """The slowest flow: its own link, or its latency and all that its resource carries."""
    family, tables = part.family, part.family.tables
    if tables.embedding_bytes <= 0:
        return
    replicas = range(family.replicas)
    if family.stages == 1:
        for z in replicas:
            alone = part.weighted([(part.on[0, z, n], family.embedding_s[n, n]) for n in family.hosts])
            part.model.add(part.embedding >= alone)
        return

    def pair(z: int, a: int, b: int) -> Any:
        """1 if replica z exchanges between two nodes, whichever of its cells is on which."""
        return part.exchange[z, a, b] + part.exchange[z, b, a]

    for z in replicas:
        alone = [(part.exchange[z, a, b], family.embedding_s[a, b]) for a, b in part.links.exchange()]
        part.model.add(part.embedding >= part.weighted(alone))
    start = part.ticks(tables.embedding_latency_s) * part.use
    for resource in part.links.shared_by_exchanges():
        step = part.ticks(resource.per_byte_s * tables.embedding_bytes)
        load = step * sum(pair(z, a, b) for z in replicas for a, b in resource.links)
        for z in replicas:
            latency = part.weighted([(pair(z, a, b), tables.latency_s[a, b]) for a, b in resource.links])
            part.model.add(part.embedding >= start + latency + load)


def step_time(part: CpSatFamily) -> None:
    tables = part.family.tables
    for s in range(part.family.stages):
        per_layer = part.ticks(tables.optimizer_layer_s) * part.stage_layers(s)
        constant = part.ticks(tables.optimizer_extra_s[s] + tables.fixed_s) * part.use
        part.model.add(part.step >= per_layer + constant + part.gather[s])


BUILDERS: dict[str, Callable[[CpSatFamily], None]] = {
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
"""Constraint families that need nothing but one family's variables."""
