"""Best durations any placement can have: the ground floor of every bound.

Each function returns a value that no placement undercuts (monotone lemma, formulation section 3): every link
at its best, sharing counted only where a pigeonhole forces it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.solvers.link_extremes import least_between, most_between
from pipette_milp.solvers.ring_rates import best_ring_rate


@dataclass(frozen=True)
class BestLinks:
    """The best figure of each kind over all usable nodes."""

    latency_s: float
    pair_bytes_per_s: float
    node_bytes_per_s: float
    """Egress or ingress, whichever is larger at its best node."""
    local_bytes_per_s: float
    local_latency_s: float
    most_slots: int

    @classmethod
    def of(cls, tables: CostTables) -> BestLinks:
        several = tables.num_nodes > 1
        return cls(
            latency_s=least_between(tables.latency_s) if several else math.inf,
            pair_bytes_per_s=most_between(tables.pair_bytes_per_s) if several else math.inf,
            node_bytes_per_s=float(min(tables.egress_bytes_per_s.max(), tables.ingress_bytes_per_s.max())),
            local_bytes_per_s=float(tables.local_bytes_per_s.max()),
            local_latency_s=float(tables.local_latency_s.min()),
            most_slots=int(tables.slots.max()),
        )


def crossing_s(tables: CostTables, links: BestLinks, sent_bytes: float, flows: int = 1) -> float:
    """A hop between nodes while ``flows`` cells of its node send (or receive) at once; infinite on one
    node."""
    load = tables.tensor * sent_bytes
    return links.latency_s + max(
        sent_bytes / tables.port_bytes_per_s,
        load / links.pair_bytes_per_s,
        flows * load / links.node_bytes_per_s,
    )


def local_s(links: BestLinks, sent_bytes: float) -> float:
    """A hop inside a node."""
    return links.local_latency_s + sent_bytes / links.local_bytes_per_s


def best_hop_s(tables: CostTables, links: BestLinks) -> float:
    """The best any hop can be; 0 where there is a single stage, hence none."""
    if tables.num_virtual_stages == 1:
        return 0.0
    best = crossing_s(tables, links, tables.hop_bytes)
    if links.most_slots >= 2:
        best = min(best, local_s(links, tables.hop_bytes))
    return best + tables.hop_gather_s


def best_ring_s(tables: CostTables, links: BestLinks, ring: Ring, sent_bytes: Array) -> Array:
    """[p] the best any ring of each stage can be; ``sent_bytes`` [p] as in `Ring`, lower estimates
    allowed."""
    data, slots = tables.data, links.most_slots
    if data == 1 or not np.any(sent_bytes > 0):
        return np.zeros(tables.pipeline)
    fewest = max(1, math.ceil(data / slots))
    inside = local_ring_latency_s(ring, data) + sent_bytes / links.local_bytes_per_s
    latency = ring_latency_s(ring, data, max(2, fewest))
    across = latency + np.maximum(
        sent_bytes / (min(slots, data) * tables.port_bytes_per_s),
        tables.tensor * sent_bytes / best_ring_rate(tables, max(2, fewest)),
    )
    if fewest == 1:
        return np.minimum(inside, across)
    return np.asarray(across)


def local_ring_latency_s(ring: Ring, data: int) -> float:
    """Latency of a ring inside one node."""
    return ring.latency_s + (data - 1) * ring.latency_per_local_step_s


def ring_latency_s(ring: Ring, data: int, fewest_nodes: int) -> float:
    """Least latency of a ring over at least ``fewest_nodes`` distinct nodes."""
    node, local = ring.latency_per_node_step_s, ring.latency_per_local_step_s
    return ring.latency_s + min((nodes - 1) * node + (data - nodes) * local for nodes in (fewest_nodes, data))


def best_embedding_s(tables: CostTables, links: BestLinks) -> float:
    """The best the tied embedding's exchange can be."""
    if tables.embedding_bytes <= 0:
        return 0.0
    best = crossing_s(tables, links, tables.embedding_bytes)
    if links.most_slots >= 2:
        best = min(best, local_s(links, tables.embedding_bytes))
    return best + tables.embedding_latency_s


def tail_floor_s(tables: CostTables) -> float:
    """What follows the synchronisation in the best case."""
    chunks, pipeline = tables.configuration.virtual_stages, tables.pipeline
    low = tables.min_layers.reshape(chunks, pipeline).sum(axis=0)
    step = tables.optimizer_layer_s * low + tables.optimizer_extra_s
    if tables.gather_exposed:
        links = BestLinks.of(tables)
        sent = tables.gather.bytes_per_layer * low + tables.gather.bytes_extra
        step = step + best_ring_s(tables, links, tables.gather, sent)
    return float(step.max()) + tables.fixed_s
