"""Pairs and stars that can be measured at the same time."""

from __future__ import annotations

import itertools

import pytest

from pipette_milp.measure.rounds import disjoint_rounds, rounds_of, star_rounds


@pytest.mark.parametrize("count", range(1, 18))
def test_every_pair_once_and_no_node_twice_a_round(count: int) -> None:
    rounds = disjoint_rounds(count)
    pairs = [pair for round_ in rounds for pair in round_]
    assert sorted(pairs) == list(itertools.combinations(range(count), 2))
    for round_ in rounds:
        nodes = [node for pair in round_ for node in pair]
        assert len(nodes) == len(set(nodes))
    assert len(rounds) <= count


@pytest.mark.parametrize("count", range(18))
def test_every_node_is_a_hub_once_and_no_node_twice_a_round(count: int) -> None:
    rounds = star_rounds(count)
    hubs = [hub for round_ in rounds for hub, _ in round_]
    assert sorted(hubs) == (list(range(count)) if count >= 3 else [])
    for round_ in rounds:
        nodes = [node for hub, leaves in round_ for node in (hub, *leaves)]
        assert len(nodes) == len(set(nodes))
        assert all(2 <= len(leaves) <= 6 for _, leaves in round_)


def test_some_pairs_in_rounds() -> None:
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4), (2, 3)]
    rounds = rounds_of(pairs)
    assert sorted(pair for round_ in rounds for pair in round_) == sorted(pairs)
    for round_ in rounds:
        nodes = [node for pair in round_ for node in pair]
        assert len(nodes) == len(set(nodes))
    assert len(rounds) <= 5  # node 2 is in three of them: a pair meets at most four others
    assert rounds_of([]) == []
