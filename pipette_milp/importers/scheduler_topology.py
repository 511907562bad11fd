"""What a scheduler knows of the network: which nodes share a switch, a block or a ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pipette_milp.errors import Problem


@dataclass(frozen=True)
class Switch:
    """A switch of a tree: what hangs directly on it."""

    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SchedulerTopology:
    """One topology of a scheduler. No bandwidths: schedulers do not know them."""

    source: str
    name: str
    kind: Literal["tree", "block", "ring", "flat"]
    switches: Mapping[str, Switch]
    """Of a tree; empty otherwise."""
    groups: Mapping[str, tuple[str, ...]]
    """Blocks or rings with their nodes; empty for a tree."""
    block_sizes: tuple[int, ...] = ()
    """Sizes in which blocks are planned, smallest first."""
    is_default: bool = True
    warnings: tuple[Problem, ...] = ()

    @cached_property
    def parent_of(self) -> dict[str, str]:
        """Switch above each switch that has one."""
        return {child: name for name, switch in self.switches.items() for child in switch.switches}

    @cached_property
    def leaf_of(self) -> dict[str, str]:
        """Switch on which each node hangs."""
        return {node: name for name, switch in self.switches.items() for node in switch.nodes}

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes in the order of the file."""
        if self.groups:
            return tuple(dict.fromkeys(node for nodes in self.groups.values() for node in nodes))
        return tuple(self.leaf_of)

    def above(self, node: str) -> tuple[str, ...]:
        """Switches from a node's leaf up to its root."""
        path: list[str] = []
        switch: str | None = self.leaf_of.get(node)
        while switch is not None:
            path.append(switch)
            switch = self.parent_of.get(switch)
        return tuple(path)

    def lowest_common(self, a: str, b: str) -> str | None:
        """The first switch above both nodes; None where no path joins them."""
        others = set(self.above(b))
        return next((switch for switch in self.above(a) if switch in others), None)

    def below(self, switch: str) -> tuple[str, ...]:
        """All nodes under a switch."""
        own = self.switches[switch]
        return own.nodes + tuple(node for child in own.switches for node in self.below(child))

    def components(self) -> tuple[tuple[str, ...], ...]:
        """Sets of nodes that a path joins: one for each root of a tree."""
        if self.kind != "tree":
            return (self.nodes,)
        roots = [name for name in self.switches if name not in self.parent_of]
        return tuple(nodes for root in roots if (nodes := self.below(root)))

    def node_groups(self) -> dict[str, tuple[str, ...]]:
        """Every set of nodes that shares a way out, by name: the switches of a tree below its roots, blocks.

        A switch with the same nodes as one below it is left out.
        """
        if self.kind == "block":
            return dict(self.groups)
        found: dict[tuple[str, ...], str] = {}
        for name in self.switches:
            nodes = tuple(sorted(self.below(name)))
            if nodes and (name in self.parent_of or len(self.components()) > 1):
                found.setdefault(nodes, name)
        return {name: nodes for nodes, name in found.items()}
