"""Contents of nodes: complete, without repeats, and looked up as counted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipette_milp.solvers.contents import (
    Contents,
    TooManyPatternsError,
    node_contents,
    pattern_count,
    patterns,
)
from tests.oracle.tiny_tables import random_tables


@pytest.mark.parametrize(("stages", "cells"), [(1, 1), (1, 4), (3, 2), (4, 4), (5, 3)])
def test_patterns_are_all_vectors_with_the_sum(stages: int, cells: int) -> None:
    listed = [tuple(int(v) for v in row) for row in patterns(stages, cells)]
    expected = [v for v in itertools.product(range(cells + 1), repeat=stages) if sum(v) == cells]
    assert sorted(listed) == sorted(expected)
    assert len(listed) == pattern_count(stages, cells)


def test_places_stay_empty_only_where_cells_are_fewer() -> None:
    full = random_tables(np.random.default_rng(0), (2, 2, 1, 2, (2, 2)))
    assert (node_contents(full, 2).held.sum(axis=1) == 2).all()
    loose = random_tables(np.random.default_rng(0), (2, 2, 1, 2, (2, 2, 2)))
    assert set(node_contents(loose, 2).held.sum(axis=1)) == {0, 1, 2}


def test_no_node_holds_more_of_a_stage_than_there_is() -> None:
    tables = random_tables(np.random.default_rng(0), (4, 1, 1, 4, (4,)))
    assert node_contents(tables, 4).held.max() == 1


def test_too_many_contents_are_refused_before_they_are_listed() -> None:
    tables = random_tables(np.random.default_rng(0), (2, 2, 1, 2, (2, 2)))
    with pytest.raises(TooManyPatternsError):
        node_contents(tables, 10**6)


def test_look_up_is_the_function_of_the_counts() -> None:
    contents = Contents(patterns(4, 5), data=3, slots=5)
    first, second = contents.grid()
    table = np.sin(10.0 * first + second)
    rings = contents.partial.sum(axis=1)
    for a, b in ((0, 3), (3, 0), (2, 2)):
        expected = np.sin(10.0 * contents.held[:, a] + contents.held[:, b])
        np.testing.assert_allclose(contents.look_up((a, b), table), expected)
    by_rings = contents.look_up((1, contents.rings_column), table)
    np.testing.assert_allclose(by_rings, np.sin(10.0 * contents.held[:, 1] + rings))


def test_a_ring_is_a_stage_in_part() -> None:
    contents = Contents(np.array([[0, 1, 2, 3]], dtype=np.int16), data=3, slots=6)
    assert contents.partial.tolist() == [[False, True, True, False]]
