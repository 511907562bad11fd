"""Pods as pigeonholes: no bound exceeds the best plan, whatever the partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.family_bound import FamilyBound, bound_family
from pipette_milp.solvers.groups import one_group
from pipette_milp.solvers.layer_branches import BranchKey
from pipette_milp.solvers.pods import Pods
from tests.oracle.tiny_tables import exhaustive, random_tables
from tests.oracle.varied_tables import large_embedding, long_hops, long_rings, varied_tables

ROUNDING = 1e-9
CEILINGS = (0.9, 1.0 + 2e-6, 1.01, 2.0)
LIMIT_S = 60.0
SHAPES = (
    # pipeline, data, virtual stages, nodes, slots of each node: two pods of equal room or three
    (2, 2, 1, 4, (1, 1, 1, 1)),
    (4, 1, 1, 4, (1, 1, 1, 1)),
    (3, 2, 1, 3, (2, 2, 2)),
    (2, 3, 1, 3, (2, 2, 2)),
    (2, 2, 2, 4, (1, 1, 1, 1)),
    (2, 4, 1, 4, (2, 2, 2, 2)),
    (3, 2, 1, 6, (1, 1, 1, 1, 1, 1)),
)


def equal_pods(shape: tuple, seed: int) -> tuple[CostTables, IntArray]:
    """Fast links inside pods of two nodes, slow ones between, nothing else in the way."""
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, shape)
    size = tables.num_nodes
    pod = np.arange(size) // 2
    pair = np.where(pod[:, None] == pod[None, :], 20e9, 2e9)
    cards = np.full(size, 20e9)
    tables = replace(
        tables,
        pair_bytes_per_s=pair,
        egress_bytes_per_s=cards,
        ingress_bytes_per_s=cards,
        port_bytes_per_s=np.inf,
    )
    for feature in (long_rings, long_hops, large_embedding):
        if rng.random() < 0.7:
            tables = feature(tables, rng)
    return tables, pod


def ask(
    tables: CostTables,
    pods: IntArray | None,
    ceiling_s: float,
    *,
    contents: bool,
    whole: bool = True,
    limit_s: float = LIMIT_S,
    known_s: dict[BranchKey, float] | None = None,
) -> FamilyBound:
    groups = one_group(tables) if contents else []
    return bound_family(
        Evaluator(tables), groups, ceiling_s, time_limit_s=limit_s, pods=pods, whole=whole, known_s=known_s
    )


def check(tables: CostTables, pods: IntArray, factors: tuple[float, ...]) -> None:
    best = exhaustive(tables)
    if best is None:
        return
    for factor in factors:
        for contents in (False, True):
            answer = ask(tables, pods, factor * best.simulated_s, contents=contents)
            assert answer.bound_s <= factor * best.simulated_s
            if factor > 1.0:
                assert answer.bound_s <= best.simulated_s * (1.0 + ROUNDING), (pods, factor, contents)
                assert not answer.closed, (pods, factor, contents)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_any_partition(first: int) -> None:
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        tables = varied_tables(rng)
        pods = rng.integers(0, 3, tables.num_nodes)
        check(tables, pods, (CEILINGS[int(rng.integers(len(CEILINGS)))],))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_pods(shape: tuple) -> None:
    for seed in range(4):
        check(*equal_pods(shape, seed), (1.0 + 2e-6, 1.01))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 50))
def test_many_partitions(first: int) -> None:
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        tables = varied_tables(rng)
        check(tables, rng.integers(0, int(rng.integers(2, 5)), tables.num_nodes), CEILINGS)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_equal_pods(shape: tuple) -> None:
    for seed in range(100, 200):
        check(*equal_pods(shape, seed), CEILINGS)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_question_after_question(shape: tuple) -> None:
    """What one answer proved about parts of the splits is used by the next; without time it is nothing."""
    for seed in range(10, 13):
        tables, pod = equal_pods(shape, seed)
        best = exhaustive(tables)
        if best is None:
            continue
        known_s: dict[BranchKey, float] = {}
        for factor, limit_s in ((1.0 + 2e-6, 0.0), (1.05, LIMIT_S), (1.0 + 2e-6, LIMIT_S), (2.0, LIMIT_S)):
            answer = ask(
                tables, pod, factor * best.simulated_s, contents=False, limit_s=limit_s, known_s=known_s
            )
            assert answer.bound_s <= best.simulated_s * (1.0 + ROUNDING), (seed, factor)
            assert not answer.closed
            assert answer.exhausted or limit_s == 0.0
            known_s = answer.branches_s


def test_whole_layers_say_more() -> None:
    """Five layers on three stages: fractions make up for a hop between pods, whole layers do not."""
    stronger = 0
    for seed in range(8):
        tables, pod = equal_pods((3, 2, 1, 6, (1, 1, 1, 1, 1, 1)), seed)
        best = exhaustive(tables)
        assert best is not None
        relaxed, settled = (
            ask(tables, pod, 2 * best.simulated_s, contents=False, whole=whole).bound_s
            for whole in (False, True)
        )
        assert relaxed * (1 - 2e-3) <= settled <= best.simulated_s * (1 + ROUNDING)
        stronger += settled > relaxed * (1 + 1e-3)
    assert stronger >= 2


def test_the_embedding_crosses_where_an_end_fills_its_pod() -> None:
    """Two stages of two replicas on pods of two nodes: whole stages have all pairs in two pods."""
    tables, pod = equal_pods((2, 2, 1, 4, (1, 1, 1, 1)), 3)
    tables = large_embedding(long_rings(tables, np.random.default_rng(0)), np.random.default_rng(0))
    best = exhaustive(tables)
    assert best is not None
    small = replace(tables, embedding_bytes=1e-3 * tables.embedding_bytes)
    bounds = [ask(one, pod, 2 * best.simulated_s, contents=False).bound_s for one in (tables, small)]
    assert bounds[0] <= best.simulated_s * (1 + ROUNDING)
    # either the pair of a replica or a ring of long rings crosses at 2 GB/s
    across = tables.tensor * tables.embedding_bytes / 2e9
    assert bounds[0] - bounds[1] >= 0.5 * across


def test_rings_or_hops_cross() -> None:
    """Two stages of two replicas on two pods of two nodes: either the rings stay inside a pod or the hops do,
    which a model without pods does not see."""
    stronger = 0
    for seed in range(6):
        tables, pod = equal_pods((2, 2, 1, 4, (1, 1, 1, 1)), seed)
        best = exhaustive(tables)
        assert best is not None
        without = ask(tables, None, 2 * best.simulated_s, contents=True).bound_s
        known = ask(tables, pod, 2 * best.simulated_s, contents=True).bound_s
        assert known >= without * (1 - 1e-6)
        stronger += known > without * (1 + 1e-3)
    assert stronger >= 3


def test_figures_between_pods() -> None:
    tables, pod = equal_pods((3, 2, 1, 6, (1, 1, 1, 1, 1, 1)), 0)
    pods = Pods.of(tables, pod)
    assert pods is not None
    assert pods.cells.tolist() == [2, 2, 2]
    assert (pods.bytes_per_s, pods.ring_bytes_per_s) == (2e9, 2e9)
    assert (pods.fitting(1), pods.fitting(2), pods.fitting(3)) == (6, 3, 0)
    one_way = tables.pair_bytes_per_s.copy()
    one_way[0, 2] = 9e9
    found = Pods.of(replace(tables, pair_bytes_per_s=one_way), pod)
    assert found is not None
    assert (found.bytes_per_s, found.ring_bytes_per_s) == (9e9, 2e9)
    assert Pods.of(tables, np.zeros(6, dtype=np.int64)) is None
