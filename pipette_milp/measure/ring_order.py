"""Rings of a data-parallel group as NCCL builds them: every node once, in order of first appearance.

Source: costs, section 4 (NCCL ``connectRings``; nccl#687): a ring enters a node, passes its members and
leaves; several rings (channels) leave a node through different members, so that all its cards work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Channel:
    """One ring; member i sends to member i + 1, the last one to the first."""

    ranks: tuple[int, ...]


def ring_channels(nodes: Sequence[int], ranks: Sequence[int]) -> tuple[Channel, ...]:
    """Rings over a group; as many as the fullest node has members.

    Args:
        nodes: node of every member by replica index.
        ranks: of the members, by replica index.
    """
    members: dict[int, list[int]] = {}
    for node, rank in zip(nodes, ranks, strict=True):
        members.setdefault(node, []).append(rank)
    count = max(len(group) for group in members.values()) if len(members) > 1 else 1
    channels = []
    for channel in range(count):
        ring: list[int] = []
        for group in members.values():
            turn = channel % len(group)
            ring += group[turn:] + group[:turn]
        channels.append(Channel(tuple(ring)))
    return tuple(channels)


def chunk_of_step(position: int, step: int, size: int, phase: str) -> tuple[int, int]:
    """Which of ``size`` chunks the member at ``position`` sends and receives in a step (0 to size - 2).

    Standard ring: reduce-scatter leaves chunk ``position + 1`` complete at each member, all-gather starts
    from there.
    """
    first = position if phase == "reduce-scatter" else position + 1
    return (first - step) % size, (first - step - 1) % size
