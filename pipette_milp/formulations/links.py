"""Which arcs a family has and which flows can meet on a resource; the same for both back ends."""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.reduction import Excluded

Arc = tuple[int, int]


@dataclass(frozen=True)
class SharedResource:
    """A node's egress or ingress, a node pair or one way of an uplink, that several flows of one group can
    use at once."""

    per_byte_s: float
    """Seconds per byte of one tensor rank of one flow, all tensor ranks included."""
    links: tuple[Arc, ...]
    """Directed node pairs whose flows use it."""
    room: int
    """Most flows that can use it at once."""


@dataclass(frozen=True)
class Arcs:
    """Arcs of a family after the cutoff has ruled some out."""

    family: Family
    excluded: Excluded

    def node_pairs(self) -> list[Arc]:
        """Nodes of two different cells; the same node only if it hosts two."""
        hosts, slots = self.family.hosts, self.family.tables.slots
        return [(a, b) for a in hosts for b in hosts if a != b or slots[a] >= 2]

    def hop(self, boundary: int) -> list[Arc]:
        """Arcs of a distinct boundary; none if it joins a cell with itself."""
        source, target = self.family.boundary_cells(boundary)
        if source == target:
            return []
        return [arc for arc in self.node_pairs() if not self.excluded.hop[boundary][arc]]

    def exchange(self) -> list[Arc]:
        """Arcs of the embedding exchange."""
        if self.family.tables.embedding_bytes <= 0 or self.family.stages == 1:
            return []
        return self.node_pairs()

    def ring(self, stage: int) -> list[tuple[int, int, int]]:
        """(step, a, b) of a stage's ring arcs; see `RingModel`."""
        family = self.family
        if family.ring_model == "members":
            return []
        pairs = self.node_pairs()
        if family.ring_model == "appearance":  # the last new node can stay wherever a cell fits
            pairs = [(a, b) for a in family.hosts for b in family.hosts]
        pairs = [(a, b) for a, b in pairs if a == b or not self.edge_excluded(stage, a, b)]
        return [(i, a, b) for i in family.ring_steps for a, b in pairs]

    def edge_excluded(self, stage: int, a: int, b: int) -> bool:
        """Whether the cutoff rules a ring edge out; an arc of two replicas is both directions at once."""
        edges = self.excluded.ring_edge[stage]
        both = self.family.replicas == 2
        return bool(edges[a, b] or (both and edges[b, a]))

    def shared_by_hops(self, links: list[Arc]) -> list[SharedResource]:
        """Resources that several replicas of one boundary and direction can use at once."""
        family = self.family
        found = []
        for n in family.hosts:
            if family.slots[n] >= 2:
                found += _node_resources(family, n, links, family.slots[n])
        available = set(links)
        for a, b in family.shared_pairs:
            if (a, b) in available:
                room = min(family.slots[a], family.slots[b])
                found.append(SharedResource(float(family.pair_s[a, b]), ((a, b),), room))
        return found + self._uplinks(links, family.slots)

    def shared_by_exchanges(self) -> list[SharedResource]:
        """As for hops; a node shares as soon as it hosts two cells of stages 0 and p-1."""
        family, links = self.family, [(a, b) for a, b in self.exchange() if a != b]
        slots = family.tables.slots
        found = []
        for n in family.hosts:
            if slots[n] >= 2:
                found += _node_resources(family, n, links, int(slots[n]))
        for a, b in family.binding_edges:
            if slots[a] >= 2 and slots[b] >= 2 and links:
                found.append(
                    SharedResource(float(family.pair_s[a, b]), ((a, b),), int(min(slots[a], slots[b])))
                )
        return found + (self._uplinks(links, tuple(slots.tolist())) if links else [])

    def _uplinks(self, links: list[Arc], slots: tuple[int, ...]) -> list[SharedResource]:
        """Both ways of every uplink that two flows can pass at once."""
        found = []
        for uplink in self.family.uplinks:
            room = min(sum(slots[n] for n in side) for side in (uplink.inside, uplink.outside))
            out = tuple((a, b) for a, b in links if uplink.leaves(a, b))
            into = tuple((a, b) for a, b in links if uplink.leaves(b, a))
            if room >= 2:
                found += [
                    SharedResource(uplink.per_byte_s, through, room) for through in (out, into) if through
                ]
        return found


def _node_resources(family: Family, node: int, links: list[Arc], room: int) -> list[SharedResource]:
    leaving = tuple((a, b) for a, b in links if a == node and b != node)
    entering = tuple((a, b) for a, b in links if b == node and a != node)
    both = ((float(family.egress_s[node]), leaving), (float(family.ingress_s[node]), entering))
    return [SharedResource(per_byte, through, room) for per_byte, through in both if through]
