"""Which ranks share a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_milp.errors import InputError


@dataclass(frozen=True)
class NodeGroups:
    """Nodes in the order of their lowest rank, with equally many ranks each."""

    names: tuple[str, ...]
    ranks: tuple[list[int], ...]
    """Of every node, ascending."""
    node_of_rank: tuple[int, ...]
    local: tuple[int, ...]
    """Position of every rank among those of its node."""

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def per_node(self) -> int:
        """Ranks on each."""
        return len(self.ranks[0])


def node_groups(nodes: Sequence[str]) -> NodeGroups:
    """Ranks by node from the node name of every rank.

    Raises:
        InputError: nodes with different numbers of ranks, or a single rank: nothing to measure.
    """
    ranks: dict[str, list[int]] = {}
    for rank, name in enumerate(nodes):
        ranks.setdefault(name, []).append(rank)
    counts = {name: len(members) for name, members in ranks.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise InputError(f"start the same number of ranks on every node, got {listed}")
    if len(nodes) < 2:
        raise InputError("one rank only: there is no link to measure, start one rank per GPU")
    names = list(ranks)
    return NodeGroups(
        names=tuple(names),
        ranks=tuple(ranks.values()),
        node_of_rank=tuple(names.index(name) for name in nodes),
        local=tuple(ranks[name].index(rank) for rank, name in enumerate(nodes)),
    )
