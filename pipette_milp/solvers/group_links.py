"""Best figures inside and between groups of nodes; nothing here undercuts what a placement can attain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.relaxed import BestLinks, crossing_s


@dataclass(frozen=True)
class Group:
    """Nodes a relaxation does not tell apart."""

    nodes: IntArray
    slots: int


class GroupLinks:
    """Times of flows by the groups of their ends. ``sent`` is bytes per tensor rank throughout."""

    def __init__(self, tables: CostTables, groups: list[Group]) -> None:
        self.tables = tables
        self.best = BestLinks.of(tables)
        size = len(groups)
        self.pair = np.zeros((size, size))
        self.latency = np.full((size, size), np.inf)
        self.several = [len(group.nodes) > 1 for group in groups]
        for g, one in enumerate(groups):
            for h, other in enumerate(groups):
                block = np.ix_(one.nodes, other.nodes)
                bandwidth, latency = tables.pair_bytes_per_s[block], tables.latency_s[block]
                if g == h:
                    off = ~np.eye(len(one.nodes), dtype=bool)
                    bandwidth, latency = bandwidth[off], latency[off]
                if bandwidth.size:
                    self.pair[g, h] = bandwidth.max()
                    self.latency[g, h] = latency.min()
        both = np.minimum(tables.egress_bytes_per_s, tables.ingress_bytes_per_s)
        self.egress = np.array([tables.egress_bytes_per_s[group.nodes].max() for group in groups])
        self.ingress = np.array([tables.ingress_bytes_per_s[group.nodes].max() for group in groups])
        self.card = np.array([both[group.nodes].max() for group in groups])
        """bytes/s that rings can push through the best card of a group; they send as much as they receive."""
        self.local = np.array([tables.local_bytes_per_s[group.nodes].max() for group in groups])
        self.local_latency = np.array([tables.local_latency_s[group.nodes].min() for group in groups])

    def of_group(self, g: int) -> tuple[float, ...]:
        """All figures that `shared_s` and a card's load depend on: equal for groups that look alike from
        outside."""
        return (
            float(self.pair[g, :].max()),
            float(self.pair[:, g].max()),
            float(min(self.latency[g, :].min(), self.latency[:, g].min())),
            float(self.egress[g]),
            float(self.ingress[g]),
            float(self.card[g]),
        )

    def local_s(self, g: int, sent: float) -> float:
        """A hop inside a node of g."""
        return float(self.local_latency[g] + sent / self.local[g])

    def hop_s(self, g: int, h: int, sent: float) -> float:
        """A hop from a node of g to another node, of h. Without a second node in g it stays inside the
        node."""
        if g == h and not self.several[g]:
            return self.local_s(g, sent)
        load = self.tables.tensor * sent
        return float(
            self.latency[g, h]
            + max(
                sent / self.tables.port_bytes_per_s,
                load / self.pair[g, h],
                load / self.egress[g],
                load / self.ingress[h],
            )
        )

    def cheapest_s(self, g: int, sent: float) -> float:
        """A hop that may stay inside a node of g or, if that is faster, leave it."""
        return min(self.local_s(g, sent), crossing_s(self.tables, self.best, sent))

    def shared_s(self, g: int, sent: float, flows: int, *, sends: bool | None) -> float:
        """A hop out of (into) a node of g that shares its card with ``flows - 1`` others.

        ``sends`` None: both directions are used, the better one counts. With one node nothing crosses: 0.
        """
        if flows == 0 or self.tables.num_nodes == 1:
            return 0.0
        load = self.tables.tensor * sent
        out, back = float(self.pair[g, :].max()), float(self.pair[:, g].max())
        link = {True: out, False: back, None: max(out, back)}[sends]
        card = {
            True: self.egress[g],
            False: self.ingress[g],
            None: max(self.egress[g], self.ingress[g]),
        }[sends]
        latency = min(self.latency[g, :].min(), self.latency[:, g].min())
        return float(latency + max(sent / self.tables.port_bytes_per_s, load / link, flows * load / card))

    def group_crossing_rate(self, g: int) -> float:
        """bytes/s of the best link into or out of a group, whichever is slower: a ring needs both."""
        others = [h for h in range(len(self.pair)) if h != g]
        out = max(min(self.pair[g, h], self.egress[g], self.ingress[h]) for h in others)
        back = max(min(self.pair[h, g], self.egress[h], self.ingress[g]) for h in others)
        return float(min(out, back))

    def best_between_groups_s(self, sent: float) -> float:
        """The best hop between nodes of different groups."""
        size = len(self.pair)
        return min(self.hop_s(g, h, sent) for g in range(size) for h in range(size) if g != h)
