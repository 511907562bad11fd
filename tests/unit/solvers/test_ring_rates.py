"""The best rate of a ring over many nodes, against all rings of small graphs; extremes found once."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.arrays import Array
from pipette_milp.solvers.link_extremes import least_between, most_between, origin_of, scaled
from pipette_milp.solvers.ring_rates import best_ring_rate, has_component, ring_rate
from pipette_milp.solvers.time_unit import in_unit
from tests.oracle.varied_tables import varied_tables


def best_of_all_rings(pair: Array, egress: Array, ingress: Array, fewest: int) -> float:
    size = len(pair)
    best = 0.0
    for length in range(fewest, size + 1):
        for ring in itertools.permutations(range(size), length):
            if ring[0] != min(ring):
                continue
            edges = zip(ring, (*ring[1:], ring[0]), strict=True)
            best = max(best, min(min(pair[a, b], egress[a], ingress[b]) for a, b in edges))
    return best


@pytest.mark.parametrize("seed", range(40))
def test_no_ring_is_faster(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    pair = rng.choice([1.0, 2.0, 3.0, 5.0], (size, size)) if seed % 2 else rng.uniform(1, 9, (size, size))
    egress, ingress = rng.uniform(2, 9, size), rng.uniform(2, 9, size)
    for fewest in range(2, size + 1):
        found = ring_rate(pair, egress, ingress, fewest)
        assert found >= best_of_all_rings(pair, egress, ingress, fewest)
        if fewest == 2:  # a component of two nodes has a ring, of two or more nodes
            assert found == best_of_all_rings(pair, egress, ingress, fewest)


def test_a_ring_larger_than_a_pod_leaves_it() -> None:
    pod = np.array([0, 1, 0, 0, 1, 0])
    pair = np.where(pod[:, None] == pod[None, :], 10.0, 3.0)
    many = np.full(6, np.inf)
    assert [ring_rate(pair, many, many, m) for m in (2, 4, 5, 6)] == [10.0, 10.0, 3.0, 3.0]


def test_a_ring_over_all_nodes_visits_the_slow_one() -> None:
    pair, egress = np.full((4, 4), 10.0), np.array([9.0, 9.0, 2.0, 9.0])
    assert ring_rate(pair, egress, np.full(4, 8.0), 3) == 8.0
    assert ring_rate(pair, egress, np.full(4, 8.0), 4) == 2.0


def test_links_in_one_direction_make_no_ring() -> None:
    pair = np.ones((4, 4)) + 5.0 * np.triu(np.ones((4, 4)))
    many = np.full(4, np.inf)
    assert ring_rate(pair, many, many, 2) == 1.0
    assert ring_rate(pair, many, many, 5) == np.inf


def test_components_are_strongly_connected() -> None:
    linked = np.zeros((5, 5), dtype=bool)
    linked[[0, 1, 2, 3, 4], [1, 2, 0, 4, 3]] = True  # a triangle, a pair
    linked[2, 3] = True
    assert [has_component(linked, m) for m in (2, 3, 4)] == [True, True, False]
    linked[4, 0] = True
    assert has_component(linked, 5)


def test_another_unit_of_time_scales_what_is_known() -> None:
    for seed in range(30):
        tables = varied_tables(np.random.default_rng(seed))
        if tables.num_nodes < 2:
            continue
        other = in_unit(tables, 0.037)
        copied = replace(other, pair_bytes_per_s=other.pair_bytes_per_s.copy())
        assert origin_of(copied.pair_bytes_per_s)[1] == 1.0
        for fewest in range(2, tables.num_nodes + 1):
            rate = best_ring_rate(copied, fewest)
            assert best_ring_rate(other, fewest) == pytest.approx(rate, rel=1e-15)
        for matrix in (other.pair_bytes_per_s, other.latency_s):
            assert most_between(matrix) == most_between(matrix.copy())
            assert least_between(matrix) == least_between(matrix.copy())


def test_nothing_is_kept_of_matrices_that_are_gone() -> None:
    found = set()
    for value in range(50):
        matrix = np.full((40, 40), float(value))
        found.add(most_between(scaled(matrix, 2.0)))
        del matrix
        gc.collect()
    assert found == {2.0 * value for value in range(50)}
