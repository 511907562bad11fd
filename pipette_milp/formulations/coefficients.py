"""Numbers that both back ends need: one family's cost tables as coefficients of linear rows.

Everything is in seconds, bytes and layers; each back end scales to its own unit. "Load" rates are
written as the seconds that one byte of one tensor rank costs on a resource, all tensor ranks included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from pipette_milp.cost.tables import Array, CostTables, IntArray, Ring
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.symmetry import binding_pairs

RingModel = Literal["members", "replicas", "appearance"]
"""How the edges of a ring are modelled.

members
    Not at all: no node pair or uplink can bind, members and loads of nodes decide.
replicas
    One set of arcs per replica, from its node to the next replica's: enough where the order of first
    appearance is the order of the replicas (at most three replicas, or one cell per node).
appearance
    Replica by replica, the node that appeared last for the first time moves on or stays; one more set of arcs
    closes the ring.
"""


@dataclass(frozen=True)
class RingCost:
    """One ring collective (gradient synchronisation or parameter gather) of every stage."""

    ring: Ring
    low_bytes: Array
    """[p] sent at the fewest layers."""
    high_bytes: Array
    """[p] sent at the most layers."""


@dataclass(frozen=True)
class UplinkLoad:
    """A group's shared way out, one direction."""

    per_byte_s: float
    """Seconds per byte and tensor rank."""
    inside: frozenset[int]
    outside: frozenset[int]
    """Nodes that can host a cell."""

    def leaves(self, a: int, b: int) -> bool:
        """Whether a directed node pair leads out."""
        return a in self.inside and b in self.outside


@dataclass(frozen=True)
class CutCoefficients:
    """A path cut without synchronisation and tail, in terms of layers and of distinct hops."""

    layer_s: Array
    """[V] seconds per layer of each virtual stage."""
    constant_s: float
    hop_forward: IntArray
    """[Q] times the path takes the forward hop of each distinct boundary."""
    hop_backward: IntArray
    """[Q]"""


@dataclass(frozen=True)
class Family:
    """Derived coefficients of one family.

    ``p`` stages, ``d`` replicas, ``N`` nodes, ``V`` virtual stages, ``Q`` distinct boundaries: with virtual
    stages, boundary ``j`` and ``j + p`` join the same cells and last equally long.
    """

    tables: CostTables

    @property
    def stages(self) -> int:
        return self.tables.pipeline

    @property
    def replicas(self) -> int:
        return self.tables.data

    @property
    def num_virtual_stages(self) -> int:
        return self.tables.num_virtual_stages

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """Nodes that can host a cell."""
        return tuple(np.flatnonzero(self.tables.slots > 0).tolist())

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """[N] cells of one stage that a node can host: at most one a replica."""
        return tuple(np.minimum(self.tables.slots, self.replicas).tolist())

    # layers and memory

    def virtual_stages_of(self, stage: int) -> range:
        """Virtual stages that run on a pipeline stage."""
        return range(stage, self.num_virtual_stages, self.stages)

    @cached_property
    def layer_range(self) -> tuple[IntArray, IntArray]:
        """[V] fewest and most layers of each virtual stage, given that the others need theirs."""
        low = np.asarray(self.tables.min_layers, dtype=np.int64)
        high = np.asarray(self.tables.max_layers, dtype=np.int64)
        total = self.tables.total_layers
        tight_low = np.maximum(low, total - (high.sum() - high))
        tight_high = np.minimum(high, total - (low.sum() - low))
        return tight_low, tight_high

    @cached_property
    def stage_layer_cap(self) -> IntArray | None:
        """[p] most layers that the memory of each stage holds; None where its chunks weigh differently.

        The factor forgives the rounding of a quotient that is whole by construction.
        """
        weights = self.tables.memory_layer_bytes.reshape(-1, self.stages)
        if np.any(weights != weights[0]):
            return None
        room = self.tables.memory_usable_bytes - self.tables.memory_extra_bytes
        caps = np.full(self.stages, self.tables.total_layers, dtype=np.int64)
        for stage in range(self.stages):
            if room[stage] < 0:
                caps[stage] = -1
            elif weights[0, stage] > 0:
                caps[stage] = min(caps[stage], int(room[stage] / weights[0, stage] * (1 + 1e-12)))
        return caps

    @cached_property
    def stage_range(self) -> tuple[IntArray, IntArray]:
        """[p] fewest and most layers of each pipeline stage."""
        low, high = (bound.reshape(-1, self.stages).sum(axis=0) for bound in self.layer_range)
        total = self.tables.total_layers
        high = np.minimum(high, total - (low.sum() - low))
        if self.stage_layer_cap is not None:
            high = np.minimum(high, self.stage_layer_cap)
        return low, np.maximum(high, low)

    def fits(self, layers: tuple[int, ...]) -> bool:
        """Whether a layer split obeys sum, bounds and memory."""
        split = np.asarray(layers, dtype=np.int64)
        low, high = self.tables.min_layers, self.tables.max_layers
        if split.sum() != self.tables.total_layers or np.any(split < low) or np.any(split > high):
            return False
        caps = self.stage_layer_cap
        if caps is not None:
            return bool(np.all(split.reshape(-1, self.stages).sum(axis=0) <= caps))
        used = (self.tables.memory_layer_bytes * split).reshape(-1, self.stages).sum(axis=0)
        return bool(np.all(used + self.tables.memory_extra_bytes <= self.tables.memory_usable_bytes))

    # hops

    @property
    def num_boundaries(self) -> int:
        """``Q``"""
        return min(self.num_virtual_stages - 1, self.stages)

    def boundary_cells(self, boundary: int) -> tuple[int, int]:
        """Stages that a distinct boundary joins."""
        return self.tables.boundary_cells(boundary)

    @cached_property
    def hop_s(self) -> Array:
        """[N, N] hop of a flow that shares nothing; the diagonal is the hop inside a node."""
        return self.flow_s(self.tables.hop_bytes) + self.tables.hop_gather_s

    @cached_property
    def embedding_s(self) -> Array:
        """[N, N] embedding exchange between cells on two nodes, nobody else exchanging; symmetric."""
        alone = self.flow_s(self.tables.embedding_bytes)
        return np.maximum(alone, alone.T) + self.tables.embedding_latency_s

    def flow_s(self, size_bytes: float) -> Array:
        """[N, N] one flow per tensor rank between two nodes, or inside one, no other replica sharing."""
        tables = self.tables
        per_byte = np.maximum(self.pair_s, np.maximum(self.egress_s[:, None], self.ingress_s[None, :]))
        per_byte = np.maximum(per_byte, 1.0 / tables.port_bytes_per_s)
        per_byte = np.maximum(per_byte, tables.tensor / tables.uplinks.slowest_bytes_per_s(tables.num_nodes))
        times = tables.latency_s + size_bytes * per_byte
        np.fill_diagonal(times, tables.local_latency_s + size_bytes / tables.local_bytes_per_s)
        return np.asarray(times)

    @cached_property
    def pair_s(self) -> Array:
        """[N, N] seconds per byte and tensor rank on a node pair; 0 on the diagonal."""
        capacity = self.tables.pair_bytes_per_s.astype(float).copy()
        np.fill_diagonal(capacity, np.inf)
        return np.asarray(self.tables.tensor / capacity)

    @cached_property
    def egress_s(self) -> Array:
        """[N] seconds per byte and tensor rank."""
        return np.asarray(self.tables.tensor / self.tables.egress_bytes_per_s)

    @cached_property
    def ingress_s(self) -> Array:
        """[N]"""
        return np.asarray(self.tables.tensor / self.tables.ingress_bytes_per_s)

    @cached_property
    def shared_pairs(self) -> list[tuple[int, int]]:
        """Node pairs that several flows of one boundary can share and that bind before their nodes do."""
        binding = binding_pairs(self.tables)
        return [
            (a, b)
            for a in self.hosts
            for b in self.hosts
            if binding[a, b] and self.slots[a] >= 2 and self.slots[b] >= 2
        ]

    @cached_property
    def uplinks(self) -> list[UplinkLoad]:
        """Uplinks between hosts; nobody passes the others."""
        found = []
        for held, rate in zip(self.tables.uplinks.holds(), self.tables.uplinks.bytes_per_s, strict=True):
            inside = frozenset(n for n in self.hosts if held[n])
            outside = frozenset(n for n in self.hosts if not held[n])
            if inside and outside:
                found.append(UplinkLoad(float(self.tables.tensor / rate), inside, outside))
        return found

    # rings

    @cached_property
    def rings(self) -> dict[str, RingCost]:
        """Ring collectives that take time: "sync", "gather" or both."""
        found = {}
        for name, ring in (("sync", self.tables.sync), ("gather", self.tables.gather)):
            if name == "gather" and not self.tables.gather_exposed:
                continue
            if self.replicas > 1 and (ring.bytes_per_layer > 0 or np.any(ring.bytes_extra > 0)):
                low, high = self.stage_range
                found[name] = RingCost(
                    ring,
                    ring.bytes_per_layer * low + ring.bytes_extra,
                    ring.bytes_per_layer * high + ring.bytes_extra,
                )
        return found

    @cached_property
    def binding_edges(self) -> list[tuple[int, int]]:
        """Node pairs that can be what limits a ring edge."""
        return [(int(a), int(b)) for a, b in np.argwhere(binding_pairs(self.tables))]

    @cached_property
    def ring_model(self) -> RingModel:
        if not self.rings or not (self.binding_edges or self.uplinks):
            return "members"
        if self.replicas <= 3 or self.tables.slots.max() <= 1:
            return "replicas"
        return "appearance"

    @property
    def ring_steps(self) -> range:
        """Steps around the ring with arcs of their own; with two replicas one set of arcs serves both ways.

        Step ``i`` leads to replica ``i + 1``, the last one back to replica 0.
        """
        return range(1 if self.replicas == 2 else self.replicas)

    def member_s(self, node: int, members: int) -> float:
        """Seconds per byte that a stage's ring costs at least with so many members on a node.

        Scale-up port with two or more, network ports and the node's own traffic if the ring leaves the node.
        """
        local = 1.0 / self.tables.local_bytes_per_s[node] if members >= 2 else 0.0
        if members == self.replicas:
            return float(local)
        port = 1.0 / (members * self.tables.port_bytes_per_s)
        return float(max(local, port, self.egress_s[node], self.ingress_s[node]))

    @cached_property
    def edge_s(self) -> Array:
        """[N, N] least seconds per byte of a ring with an arc from ``a`` to ``b``.

        An arc that stays on a node says that two members share it, or in the appearance model some node.
        """
        edges = np.zeros((self.tables.num_nodes, self.tables.num_nodes))
        local_s = 1.0 / self.tables.local_bytes_per_s
        if self.ring_model == "appearance":
            local_s = np.full_like(local_s, min(local_s[n] for n in self.hosts if self.slots[n] >= 2))
        for a in self.hosts:
            for b in self.hosts:
                if a == b:
                    edges[a, a] = local_s[a]
                else:
                    edges[a, b] = max(self.pair_s[a, b], self._leaving_s[a], self._leaving_s[b])
        return edges

    @cached_property
    def _leaving_s(self) -> Array:
        """[N] least seconds per byte of a ring that leaves the node, over the possible members."""
        least = np.full(self.tables.num_nodes, np.inf)
        for node in self.hosts:
            most = min(self.slots[node], self.replicas - 1)
            least[node] = min(self.member_s(node, members) for members in range(1, most + 1))
        return least

    def shared_by_stages(self, node: int) -> bool:
        """Whether rings of several stages can meet on a node."""
        return self.stages_at(node) >= 2

    def stages_at(self, node: int) -> int:
        """Most stages whose cells can meet on a node."""
        return min(self.stages, int(self.tables.slots[node]))

    # path cuts

    def cut_coefficients(self, cut: PathCut) -> CutCoefficients:
        """A cut's left part, linear in layers and hops."""
        tables = self.tables
        forward, backward = np.array(cut.forward), np.array(cut.backward)
        weight = np.array(cut.weight_gradient)
        layer_s = (
            forward * tables.forward_layer_s
            + backward * tables.backward_layer_s
            + weight * tables.weight_gradient_layer_s
        )
        constant_s = float(forward @ tables.forward_extra_s + backward @ tables.backward_extra_s)
        if tables.weight_gradient_layer_s > 0:
            constant_s += float(weight @ tables.weight_gradient_extra_s)
        hop_forward = np.zeros(self.num_boundaries, dtype=np.int64)
        hop_backward = np.zeros(self.num_boundaries, dtype=np.int64)
        for boundary in range(self.num_virtual_stages - 1):
            hop_forward[boundary % self.stages] += cut.hop_forward[boundary]
            hop_backward[boundary % self.stages] += cut.hop_backward[boundary]
        return CutCoefficients(layer_s, constant_s, hop_forward, hop_backward)

    def pays_embedding(self, cut: PathCut) -> bool:
        """Whether the embedding exchange follows the cut's synchronisation."""
        return self.tables.embedding_bytes > 0 and cut.end_stage in (0, self.stages - 1)
