"""A switched fabric as its cables show it: who hangs on which switch, and what a group of nodes shares.

Levels follow from the cables: switches with nodes are level 0, their neighbours level 1, and so on. What
hangs together below a level, by cables or by nodes with several cards, is a group; the cables from it to
higher switches are its way out. In a two-level tree the groups are the leaf switches, with rails the sets of
leaf switches that the same nodes use, in a three-level tree also the pods above them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from pipette_milp.errors import Problem

_SERVICE_FACTOR = 4
"""A switch whose neighbours all carry more than this many times its adapters is above them: what hangs there
are machines of the fabric's operation (a subnet manager, a gateway), not compute nodes."""


@dataclass(frozen=True)
class Adapter:
    """A port of a network card on a switch."""

    guid: str
    port: int
    host: str | None
    """None where the description does not name one."""
    device: str
    """Such as ``mlx5_5`` or ``HCA-6``; "" where the description has none."""
    switch: str
    """Identifier of the switch."""
    bytes_per_s: float | None
    """Data rate in one direction; None where the file does not say."""


@dataclass(frozen=True)
class Cable:
    """A link between two switches."""

    ends: tuple[tuple[str, int], tuple[str, int]]
    """(switch, port), sorted."""
    bytes_per_s: float | None


@dataclass(frozen=True)
class NodeGroup:
    """Nodes with a shared way out."""

    name: str
    level: int
    switches: tuple[str, ...]
    nodes: tuple[str, ...]
    cables: int
    bytes_per_s: float
    """All cables out of the group, one direction; 0 = none leads out."""


@dataclass(frozen=True)
class Fabric:
    """Everything a subnet manager sees."""

    source: str
    switch_names: dict[str, str]
    """Identifier -> name."""
    adapters: tuple[Adapter, ...]
    cables: tuple[Cable, ...]
    warnings: tuple[Problem, ...] = ()

    @cached_property
    def adapters_of(self) -> dict[str, list[Adapter]]:
        """Ports of every host, service machines left out."""
        found: dict[str, list[Adapter]] = {}
        for adapter in self.adapters:
            if adapter.host is not None and adapter.switch not in self._service_switches:
                found.setdefault(adapter.host, []).append(adapter)
        return found

    @property
    def hosts(self) -> tuple[str, ...]:
        """Compute hosts in the order of the file."""
        return tuple(self.adapters_of)

    @property
    def service_hosts(self) -> tuple[str, ...]:
        """Hosts on switches above the leaves, which are not compute nodes."""
        others = [item.host for item in self.adapters if item.switch in self._service_switches]
        return tuple(dict.fromkeys(host for host in others if host and host not in self.adapters_of))

    @cached_property
    def _neighbours(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {name: set() for name in self.switch_names}
        for cable in self.cables:
            (a, _), (b, _) = cable.ends
            if a != b:
                found.setdefault(a, set()).add(b)
                found.setdefault(b, set()).add(a)
        return found

    @cached_property
    def _service_switches(self) -> frozenset[str]:
        count = Counter(item.switch for item in self.adapters if item.host is not None)
        return frozenset(
            switch
            for switch, own in count.items()
            if (below := [count[other] for other in self._neighbours.get(switch, ()) if other in count])
            and len(below) > 1
            and min(below) > _SERVICE_FACTOR * own
        )

    @cached_property
    def level_of(self) -> dict[str, int]:
        """0 for switches with compute nodes, else the distance to them; absent without a path."""
        wave = list(dict.fromkeys(item.switch for items in self.adapters_of.values() for item in items))
        found = dict.fromkeys(wave, 0)
        while wave:
            following = []
            for switch in wave:
                for other in sorted(self._neighbours.get(switch, ())):
                    if other not in found:
                        found[other] = found[switch] + 1
                        following.append(other)
            wave = following
        return found

    def groups(self, level: int) -> list[NodeGroup]:
        """What hangs together through switches up to a level, in the order of the file."""
        inside = {switch for switch, own in self.level_of.items() if own <= level}
        joined = _Joined(inside)
        for cable in self.cables:
            (a, _), (b, _) = cable.ends
            if a in inside and b in inside:
                joined.join(a, b)
        for items in self.adapters_of.values():
            for item in items[1:]:
                joined.join(items[0].switch, item.switch)
        members: dict[str, list[str]] = {}
        for switch in self.level_of:
            if switch in inside:
                members.setdefault(joined.find(switch), []).append(switch)
        nodes: dict[str, list[str]] = {}
        for host, items in self.adapters_of.items():
            nodes.setdefault(joined.find(items[0].switch), []).append(host)
        out: dict[str, list[Cable]] = {}
        for cable in self.cables:
            roots = {joined.find(end) if end in inside else "" for end, _ in cable.ends}
            if len(roots) == 2:
                for root in roots - {""}:
                    out.setdefault(root, []).append(cable)
        return [
            NodeGroup(
                name=_group_name([self.switch_names.get(switch, switch) for switch in switches], level),
                level=level,
                switches=tuple(switches),
                nodes=tuple(nodes[root]),
                cables=len(out.get(root, ())),
                bytes_per_s=sum(cable.bytes_per_s or 0.0 for cable in out.get(root, ())),
            )
            for root, switches in members.items()
            if root in nodes
        ]

    @cached_property
    def all_groups(self) -> tuple[NodeGroup, ...]:
        """Groups of every level below the one where all nodes hang together, lowest first.

        Of several with the same nodes the one with the narrowest way out is kept.
        """
        found: dict[frozenset[str], NodeGroup] = {}
        for level in range(max(self.level_of.values(), default=-1) + 1):
            groups = self.groups(level)
            if len(groups) < 2:
                break
            for group in groups:
                key = frozenset(group.nodes)
                if key not in found or 0 < group.bytes_per_s < found[key].bytes_per_s:
                    found[key] = group
        return tuple(found.values())

    def islands(self) -> list[NodeGroup]:
        """Parts that no cable joins; one where everything hangs together."""
        return self.groups(max(self.level_of.values(), default=0))

    def ports_up(self, switch: str) -> dict[str, int]:
        """Cables of a switch to each other switch."""
        found: Counter[str] = Counter()
        for cable in self.cables:
            ends = [end for end, _ in cable.ends]
            if switch in ends:
                found[ends[1] if ends[0] == switch else ends[0]] += 1
        return dict(found)


def _group_name(names: list[str], level: int) -> str:
    if len(names) == 1:
        return names[0]
    return f"{names[0]}+{len(names) - 1}" + (f" (level {level})" if level else "")


class _Joined:
    """Disjoint sets."""

    def __init__(self, items: Iterable[str]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: str) -> str:
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, a: str, b: str) -> None:
        self._parent[self.find(b)] = self.find(a)
