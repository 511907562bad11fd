"""Rings over distinct nodes, and that the steps really reduce and gather."""

from __future__ import annotations

import numpy as np
import pytest

from pipette_milp.measure.ring_order import chunk_of_step, ring_channels


def crossings(ranks: tuple[int, ...], node_of: dict[int, int]) -> list[tuple[int, int]]:
    edges = zip(ranks, ranks[1:] + ranks[:1], strict=True)
    return [(node_of[a], node_of[b]) for a, b in edges if node_of[a] != node_of[b]]


def test_nodes_in_order_of_first_appearance_each_once() -> None:
    nodes = [2, 0, 2, 1, 0]
    ranks = [10, 11, 12, 13, 14]
    channels = ring_channels(nodes, ranks)
    node_of = dict(zip(ranks, nodes, strict=True))
    assert channels[0].ranks == (10, 12, 11, 14, 13)
    for channel in channels:
        assert sorted(channel.ranks) == ranks
        assert crossings(channel.ranks, node_of) == [(2, 0), (0, 1), (1, 2)]


def test_channels_leave_a_node_through_different_members() -> None:
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    channels = ring_channels(nodes, list(range(8)))
    assert {channel.ranks[3] for channel in channels} == {0, 1, 2, 3}
    assert {channel.ranks[7] for channel in channels} == {4, 5, 6, 7}


def test_one_node_one_ring() -> None:
    assert [channel.ranks for channel in ring_channels([3, 3, 3], [0, 1, 2])] == [(0, 1, 2)]


@pytest.mark.parametrize("size", [2, 3, 4, 7])
def test_reduce_scatter_then_all_gather_is_an_all_reduce(size: int) -> None:
    rng = np.random.default_rng(size)
    given = rng.integers(0, 100, (size, size))  # [member, chunk]
    held = given.copy()
    for phase in ("reduce-scatter", "all-gather"):
        for step in range(size - 1):
            sent = [held[i, chunk_of_step(i, step, size, phase)[0]] for i in range(size)]
            for i in range(size):
                before = (i - 1) % size
                chunk = chunk_of_step(i, step, size, phase)[1]
                assert chunk == chunk_of_step(before, step, size, phase)[0]
                held[i, chunk] = sent[before] + (held[i, chunk] if phase == "reduce-scatter" else 0)
    assert np.array_equal(held, np.tile(given.sum(axis=0), (size, 1)))
