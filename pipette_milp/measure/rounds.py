"""Which pairs are measured at the same time."""

from __future__ import annotations

Pair = tuple[int, int]


def disjoint_rounds(count: int) -> list[list[Pair]]:
    """Every unordered pair of ``count`` nodes once, in rounds in which no node occurs twice.

    The circle method: ``count - 1`` rounds, ``count`` if it is odd (one node rests in each).
    """
    seats: list[int | None] = list(range(count))
    if count % 2:
        seats.append(None)
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        seats[1:] = [seats[-1], *seats[1:-1]]
    return rounds


def rounds_of(pairs: list[Pair]) -> list[list[Pair]]:
    """Some pairs in rounds in which no node occurs twice, each in the first round with room for it."""
    rounds: list[list[Pair]] = []
    for pair in pairs:
        free = (one for one in rounds if not any(set(pair) & set(other) for other in one))
        chosen = next(free, None)
        if chosen is None:
            rounds.append(chosen := [])
        chosen.append(pair)
    return rounds


STAR_SIZE = 4
"""Nodes of a star; a node's own limit shows once it sends to three others."""


def star_rounds(count: int) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Every node once as a hub with some other nodes, in rounds in which no node occurs twice.

    Nodes are cut into blocks of `STAR_SIZE`, what is left over joins the last one; nothing with less than
    three nodes, where a node's total is that of its only pair.
    """
    if count < 3:
        return []
    starts = list(range(0, count - STAR_SIZE + 1, STAR_SIZE)) or [0]
    blocks = [list(range(a, b)) for a, b in zip(starts, [*starts[1:], count], strict=True)]
    return [
        [
            (block[turn], tuple(node for node in block if node != block[turn]))
            for block in blocks
            if turn < len(block)
        ]
        for turn in range(max(len(block) for block in blocks))
    ]
