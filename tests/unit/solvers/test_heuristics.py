"""Greedy layouts, local search, annealing, construction: legal, repeatable, never worse than their start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.solvers.annealing import accepted, anneal, permuted
from pipette_milp.solvers.construct import candidates_from, contents_of_nodes, label_replicas
from pipette_milp.solvers.evaluation import Candidate, Evaluator, balanced_split
from pipette_milp.solvers.greedy import block_layouts, greedy, node_orders, odd_nodes
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.local_search import local_search
from pipette_milp.solvers.pattern_model import Relaxed
from tests.oracle.tiny_tables import SHAPES, exhaustive, random_tables

Search = Callable[..., tuple[float, Candidate]]

SEARCHES: dict[str, Search] = {
    "local_search": local_search,
    "anneal": anneal,
    "anneal_faithful": lambda *a, **k: anneal(*a, faithful=True, **k),
}


def check_legal(tables, candidate: Candidate) -> None:
    cells = candidate.node_of_cell
    assert cells.shape == (tables.pipeline, tables.data)
    assert np.all(np.bincount(cells.reshape(-1), minlength=tables.num_nodes) <= tables.slots)
    assert candidate.layers.sum() == tables.total_layers
    assert Evaluator(tables).fits(candidate.layers)


def solvable(seed: int, shape: tuple | None = None):
    """Random tables for which a layer split is found; the seed moves on until there is one."""
    rng = np.random.default_rng(seed)
    while True:
        tables = random_tables(rng, shape)
        if balanced_split(tables) is not None:
            return tables


def pods(tables, size: int):
    """The same family on pods of nodes that alternate: fast links inside, slow ones between."""
    pod = np.arange(tables.num_nodes) % size
    fast = pod[:, None] == pod[None, :]
    return dataclasses.replace(tables, pair_bytes_per_s=np.where(fast, 20e9, 2e9))


@pytest.mark.parametrize("seed", range(25))
def test_greedy_is_legal_and_repeatable(seed: int) -> None:
    tables = solvable(seed)
    evaluator = Evaluator(tables)
    first = greedy(evaluator)
    check_legal(tables, first)
    again = greedy(evaluator)
    np.testing.assert_array_equal(first.node_of_cell, again.node_of_cell)
    with_more = greedy(evaluator, np.random.default_rng(seed))
    assert evaluator.simulated_s(with_more) <= evaluator.simulated_s(first)


@pytest.mark.parametrize("seed", range(25))
def test_greedy_is_no_slower_than_any_of_its_layouts(seed: int) -> None:
    tables = solvable(seed)
    evaluator = Evaluator(tables)
    layers = balanced_split(tables)
    assert layers is not None
    times = [
        evaluator.simulated_s(Candidate(layers, cells))
        for cells in block_layouts(tables, node_orders(tables))
    ]
    assert evaluator.simulated_s(greedy(evaluator)) <= min(times) * (1 + 1e-12)


def test_greedy_moves_a_slow_node_to_where_it_harms_least() -> None:
    """Three stages on five nodes: the slow one stays empty."""
    tables = solvable(4, (3, 1, 1, 5, (1, 1, 1, 1, 1)))
    pair = np.full((5, 5), 20e9)
    pair[1, :] = pair[:, 1] = 1e9
    alike = {"local_bytes_per_s": np.full(5, 1e11), "local_latency_s": np.full(5, 1e-6)}
    tables = dataclasses.replace(tables, pair_bytes_per_s=pair, **alike)
    np.testing.assert_array_equal(odd_nodes(tables), [1])
    assert not np.any(greedy(Evaluator(tables)).node_of_cell == 1)


def test_first_layout_is_the_default_rank_order() -> None:
    tables = solvable(1, (2, 3, 1, 3, (2, 2, 2)))
    cells = next(block_layouts(tables, node_orders(tables)))
    np.testing.assert_array_equal(cells, [[0, 0, 1], [1, 2, 2]])


def test_a_layout_puts_first_and_last_stage_on_one_node() -> None:
    tables = dataclasses.replace(solvable(3, (3, 2, 1, 3, (2, 2, 2))), embedding_bytes=1e7)
    layouts = list(block_layouts(tables, node_orders(tables)))
    assert any(np.array_equal(cells[0], cells[-1]) for cells in layouts)


def test_node_orders_keep_pods_together() -> None:
    tables = pods(solvable(0, (4, 1, 1, 4, (1, 1, 1, 1))), 2)
    orders = node_orders(tables)
    np.testing.assert_array_equal(orders[1], [0, 2, 1, 3])


def test_greedy_refuses_what_has_no_room() -> None:
    tables = solvable(0, (2, 2, 1, 2, (2, 2)))
    with pytest.raises(InputError, match="too few places"):
        greedy(Evaluator(dataclasses.replace(tables, slots=np.array([2, 1]))))
    with pytest.raises(InputError, match="no layer split"):
        greedy(Evaluator(dataclasses.replace(tables, memory_usable_bytes=0.5)))


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("seed", range(12))
def test_searches_are_legal_repeatable_and_never_worse(name: str, seed: int) -> None:
    tables = solvable(seed)
    evaluator = Evaluator(tables)
    start = greedy(evaluator)
    results = [
        SEARCHES[name](evaluator, start, np.random.default_rng(seed), iterations=600) for _ in range(2)
    ]
    (time_s, found), (again_s, again) = results
    check_legal(tables, found)
    assert time_s == pytest.approx(evaluator.simulated_s(found), rel=1e-12)
    assert time_s <= evaluator.simulated_s(start) * (1 + 1e-12)
    assert again_s == time_s
    np.testing.assert_array_equal(found.node_of_cell, again.node_of_cell)
    np.testing.assert_array_equal(found.layers, again.layers)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_stop_when_asked(name: str) -> None:
    tables = solvable(5, (3, 2, 1, 3, (2, 2, 2)))
    evaluator = Evaluator(tables)
    start = greedy(evaluator)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    SEARCHES[name](evaluator, start, np.random.default_rng(0), iterations=10**9, stop=stop)
    assert asked == 4
    # patience ends a search that finds nothing more
    SEARCHES[name](evaluator, start, np.random.default_rng(0), iterations=10**9, patience=2_000)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_accept_a_family_with_nothing_to_move(name: str) -> None:
    tables = solvable(0, (1, 1, 1, 1, (2,)))
    evaluator = Evaluator(tables)
    start = greedy(evaluator)
    time_s, found = SEARCHES[name](evaluator, start, np.random.default_rng(0), iterations=100)
    assert time_s == pytest.approx(evaluator.simulated_s(start), rel=1e-12)
    np.testing.assert_array_equal(found.node_of_cell, start.node_of_cell)


def test_local_search_finds_the_optimum_of_small_families() -> None:
    """From greedy, 3,000 moves: 49 of 50 random families to 1e-9 (48 asserted), by enumeration."""
    found = 0
    for seed in range(50):
        tables = solvable(1_000 + seed, SHAPES[seed % len(SHAPES)])
        optimum = exhaustive(tables)
        assert optimum is not None
        evaluator = Evaluator(tables)
        time_s, _ = local_search(evaluator, greedy(evaluator), np.random.default_rng(seed), iterations=3_000)
        assert time_s >= optimum.simulated_s * (1 - 1e-9)
        found += time_s <= optimum.simulated_s * (1 + 1e-9)
    assert found >= 48


def test_corrected_annealing_finds_most_optima_and_more_than_the_faithful_one() -> None:
    found = {True: 0, False: 0}
    for seed in range(20):
        tables = solvable(2_000 + seed, SHAPES[seed % len(SHAPES)])
        optimum = exhaustive(tables)
        assert optimum is not None
        evaluator = Evaluator(tables)
        for faithful in found:
            time_s, _ = anneal(
                evaluator, greedy(evaluator), np.random.default_rng(seed), iterations=2_000, faithful=faithful
            )
            assert time_s >= optimum.simulated_s * (1 - 1e-9)
            found[faithful] += time_s <= optimum.simulated_s * (1 + 1e-9)
    assert found[False] >= 18
    assert found[False] > found[True]


def test_faithful_acceptance_is_blind_to_magnitude() -> None:
    rates = []
    for loss_s in (0.5, 0.5e-6):
        rng = np.random.default_rng(0)
        rates.append(np.mean([accepted(loss_s, 0.5, rng) for _ in range(4_000)]))
    assert rates[0] == rates[1]
    assert rates[0] == pytest.approx(np.exp(-0.5 / 0.5), abs=0.03)
    assert accepted(0.0, 1e-9, np.random.default_rng(0))


def test_faithful_moves_are_permutations() -> None:
    rng = np.random.default_rng(0)
    order = np.arange(7)
    seen = set()
    for _ in range(300):
        moved = permuted(order, rng)
        assert sorted(moved.tolist()) == list(range(7))
        seen.add(tuple(moved.tolist()))
    assert len(seen) > 60
    np.testing.assert_array_equal(permuted(np.array([3]), rng), [3])


def relaxed_of(tables, groups, candidate: Candidate) -> Relaxed:
    """The contents of a placement, as the pattern model would state them."""
    contents = []
    for g, group in enumerate(groups):
        for node in group.nodes:
            content = np.count_nonzero(candidate.node_of_cell == node, axis=1)
            contents.append((g, content, 1))
    return Relaxed(candidate.layers, contents)


@pytest.mark.parametrize("seed", range(20))
def test_construction_keeps_the_contents(seed: int) -> None:
    tables = solvable(seed)
    evaluator = Evaluator(tables)
    start = greedy(evaluator)
    for groups in (one_group(tables), find_groups(tables)):
        relaxed = relaxed_of(tables, groups, start)
        held = contents_of_nodes(groups, relaxed, tables.num_nodes)
        cells = label_replicas(tables, held)
        check_legal(tables, Candidate(start.layers, cells))
        for node in range(tables.num_nodes):
            np.testing.assert_array_equal(np.count_nonzero(cells == node, axis=1), held[node])
        candidates = candidates_from(tables, evaluator, groups, relaxed)
        times = [evaluator.simulated_s(candidate) for candidate in candidates]
        assert times == sorted(times)
        assert times[0] <= evaluator.simulated_s(Candidate(start.layers, cells)) * (1 + 1e-12)
        for candidate in candidates:
            check_legal(tables, candidate)


def test_chains_go_around_so_that_embedding_pairs_share_a_node() -> None:
    """Nodes hold stages (0, 3) and (1, 2): every hop but two, and the exchange, stay inside."""
    tables = dataclasses.replace(
        solvable(2, (4, 1, 1, 4, (1, 1, 1, 1))), slots=np.array([2, 2, 2, 2]), embedding_bytes=1e7
    )
    tables = dataclasses.replace(tables, configuration=tables.configuration.model_copy(update={"data": 2}))
    held = np.array([[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]])
    cells = label_replicas(tables, held)
    np.testing.assert_array_equal(cells[0], cells[3])
    np.testing.assert_array_equal(cells[1], cells[2])
