"""Uplinks: groups from an instance, and what they add to the durations of a plan, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipette_milp.cluster import Cluster
from pipette_milp.cost.placement import embedding_time, placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.formulations.symmetry import node_classes, replica_symmetry
from pipette_milp.uplinks import Uplinks
from tests.instance_cases import instance
from tests.oracle.tiny_tables import (
    evaluate_durations,
    layer_splits,
    placements,
    random_tables,
    with_uplinks,
)
from tests.unit.test_placement_durations import GB, LATENCY, hops, ring, synchronisation, tables


def pods(family: CostTables, *groups: tuple[list[int], float]) -> CostTables:
    return dataclasses.replace(family, uplinks=Uplinks.of(groups, family.num_nodes))


def seconds(*values: float) -> list[float]:
    return [pytest.approx(value + LATENCY) for value in values]


# ---------------------------------------------------------------- groups
def test_groups_nobody_crosses_are_left_out() -> None:
    found = Uplinks.of([([], 1.0), ([0, 1, 2], 1.0), ([0, 1], 2.0), ([0], 3.0)], 3)
    assert len(found) == 2
    assert found.members(0) == [0, 1]
    assert found.of_node.tolist() == [[0, 1], [0, -1], [-1, -1]]
    slowest = found.slowest_bytes_per_s(3)
    assert slowest[0].tolist() == [np.inf, 3.0, 2.0]
    assert slowest[1].tolist() == [3.0, np.inf, 2.0]
    assert not len(Uplinks())
    assert np.all(np.isinf(Uplinks().slowest_bytes_per_s(2)))


def test_an_instance_names_the_nodes_that_are_left() -> None:
    four = {"cluster/nodes/0/count": 4, "cluster/nodes/0/name": "n{}", "cluster/exclude": {"nodes": ["n0"]}}
    uplinks = [
        {"name": "a", "nodes": ["n0", "n1"], "bandwidth": "1 TB/s"},
        {"name": "b", "nodes": ["n2", "n3"], "bandwidth": 5e9},
        {"name": "all", "nodes": ["n0", "n1", "n2", "n3"], "bandwidth": 1.0},
    ]
    found = Cluster.of(instance({**four, "cluster/network/uplinks": uplinks})).uplinks
    assert found.bytes_per_s.tolist() == [1e12, 5e9]
    assert [found.members(u) for u in range(2)] == [[0], [1, 2]]
    assert not len(Cluster.of(instance({**four, "cluster/network/uplinks": None})).uplinks)


@pytest.mark.parametrize(
    ("uplinks", "message"),
    [
        ([{"name": "a", "nodes": ["n9"], "bandwidth": 1.0}], "there is no node 'n9'"),
        ([{"name": "a", "nodes": ["n0", "n0"], "bandwidth": 1.0}], "'n0' more than once"),
        ([{"name": "a", "nodes": [n], "bandwidth": 1.0} for n in ("n0", "n1")], "name 'a' occurs more"),
        ([{"name": "a", "nodes": [], "bandwidth": 1.0}], "at least 1"),
        ([{"name": "a", "nodes": ["n0"], "bandwidth": 0}], "more than 0"),
        ([{"name": "a", "nodes": ["n0"], "bandwidth": "5 gb/s"}], "GB/s"),
        ([{"name": "a", "nodes": ["n0"]}], "bandwidth"),
        ([{"name": "", "nodes": ["n0"], "bandwidth": 1.0}], "name"),
        (
            [
                {"name": "a", "nodes": ["n0", "n1"], "bandwidth": 1.0},
                {"name": "b", "nodes": ["n1", "n2"], "bandwidth": 1.0},
            ],
            "shares 'n1' with 'a'",
        ),
    ],
)
def test_impossible_groups_are_refused(uplinks: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        instance(
            {"cluster/nodes/0/count": 3, "cluster/nodes/0/name": "n{}", "cluster/network/uplinks": uplinks}
        )


# ---------------------------------------------------------------- durations
def test_hops_share_the_way_out_of_a_group() -> None:
    """Two hops of 1 GB leave nodes 0, 1 at once through 8 GB/s, one stays inside."""
    family = pods(tables(2, 3, 4), ([0, 1], 8 * GB))
    forward, backward = hops(family, [0, 1, 0], [2, 3, 1])
    assert forward == [seconds(0.25, 0.25, 0.1)]
    assert backward == forward


def test_an_uplink_on_the_way_in_counts_too_and_all_ranks_load_it() -> None:
    family = pods(tables(2, 2, 4, tensor=2), ([2, 3], 8 * GB))
    forward, _ = hops(family, [0, 1], [2, 3])
    assert forward == [seconds(0.5, 0.5)]


def test_hops_in_opposite_directions_do_not_share() -> None:
    family = pods(tables(2, 2, 4), ([0, 1], 8 * GB))
    forward, _ = hops(family, [0, 2], [3, 1])
    assert forward == [seconds(0.125, 0.125)]


def test_nested_groups_both_count() -> None:
    family = pods(tables(2, 2, 4), ([0, 1, 2], 10 * GB), ([0], 4 * GB))
    forward, _ = hops(family, [0, 1], [3, 3])
    assert forward == [seconds(0.25, 0.2)]
    forward, _ = hops(family, [0, 1], [1, 2])
    assert forward == [seconds(0.25, 0.1)]


def test_a_ring_leaves_a_group_as_often_as_its_order_does() -> None:
    family = pods(tables(1, 4, 4), ([0, 1], 4 * GB))
    assert synchronisation(family, [0, 1, 2, 3]) == [pytest.approx(0.25)]
    assert synchronisation(family, [0, 2, 1, 3]) == [pytest.approx(0.5)]
    inside = pods(tables(1, 2, 4), ([0, 1], 4 * GB))
    assert synchronisation(inside, [0, 1]) == [pytest.approx(0.1)]


def test_rings_share_an_uplink_only_with_stages_on_their_nodes() -> None:
    family = pods(tables(2, 2, 4), ([0, 1], 4 * GB))
    assert synchronisation(family, [0, 2], [1, 3]) == [pytest.approx(0.25)] * 2
    assert synchronisation(family, [0, 2], [0, 3]) == [pytest.approx(0.5)] * 2
    # a stage whose ring stays inside loads nothing and does not wait
    assert synchronisation(family, [0, 2], [0, 1]) == [pytest.approx(0.25), pytest.approx(0.1)]


def test_latencies_come_on_top_of_an_uplink() -> None:
    family = pods(tables(1, 3, 3, sync=ring(latency=(0.5, 0.01, 0.001))), ([0], 4 * GB))
    assert synchronisation(family, [0, 0, 1]) == [pytest.approx(0.25 + 0.5 + 0.01 + 0.001)]


def test_the_embedding_exchange_loads_both_ways_at_once() -> None:
    """Replica 0 sends out and back, replica 1 from the other side: two flows out, two in."""
    family = pods(tables(2, 2, 4, embedding_bytes=GB), ([0, 1], 8 * GB))
    assert embedding_time(family, np.array([[0, 2], [3, 1]])) == pytest.approx(0.25 + LATENCY)
    assert embedding_time(family, np.array([[0, 2], [1, 3]])) == pytest.approx(0.1 + LATENCY)


@pytest.mark.parametrize("seed", range(60))
def test_durations_equal_an_evaluation_from_the_page(seed: int) -> None:
    rng = np.random.default_rng(seed)
    family = with_uplinks(random_tables(rng), seed)
    free = dataclasses.replace(family, uplinks=Uplinks())
    splits = list(layer_splits(family))
    for _, placement in zip(range(20), placements(family), strict=False):
        if not splits:
            return
        layers = splits[int(rng.integers(len(splits)))]
        found = placement_durations(family, np.array(layers), np.array(placement))
        expected = evaluate_durations(family, layers, placement)
        without = placement_durations(free, np.array(layers), np.array(placement))
        for name in (
            "hop_forward_s",
            "hop_backward_s",
            "gradient_sync_s",
            "parameter_gather_s",
            "embedding_sync_s",
        ):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)
            assert np.all(np.asarray(getattr(without, name)) <= np.asarray(getattr(found, name)))


# ---------------------------------------------------------------- symmetry
def test_nodes_of_different_groups_do_not_change_places() -> None:
    family = tables(1, 4, 4)
    assert node_classes(family) == [[0, 1, 2, 3]]
    assert node_classes(pods(family, ([0, 1], GB))) == [[0, 1], [2, 3]]


def test_the_order_of_replicas_matters_with_uplinks() -> None:
    wide = {"pair_bytes_per_s": np.full((4, 4), np.inf)}
    family = tables(1, 4, 4, **wide)
    assert replica_symmetry(family) == "any"
    assert replica_symmetry(pods(family, ([0, 1], GB))) == "none"
    single = dataclasses.replace(family, slots=np.ones(4, dtype=np.int64))
    assert replica_symmetry(single) == "any"
    assert replica_symmetry(pods(single, ([0, 1], GB))) == "rotation"
