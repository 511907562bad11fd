"""Durations of placements worked out by hand: who shares which link, and when (formulation, section 2)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.placement import (
    embedding_time,
    exposed_sync_s,
    hop_times,
    placement_durations,
    ring_times,
)
from pipette_milp.cost.tables import CostTables, Ring
from tests.instance_cases import configuration, costs

GB = 1e9
LATENCY = 1e-3
"""Between nodes."""
LOCAL_LATENCY = 1e-4


def tables(pipeline: int, data: int, nodes: int, *, tensor: int = 1, **changes: Any) -> CostTables:
    """Round figures: 10 GB/s from node to node, 100 GB/s inside, nothing else limits; hops of 1 GB."""
    family = configuration((1,) * (pipeline - 1) + (7 - pipeline,), data=data, tensor=tensor)
    base = costs({"cluster/nodes/0/gpus": 4}).tables(family)
    fields: dict[str, Any] = {
        "slots": np.full(nodes, 4),
        "latency_s": np.full((nodes, nodes), LATENCY),
        "pair_bytes_per_s": np.full((nodes, nodes), 10 * GB),
        "egress_bytes_per_s": np.full(nodes, np.inf),
        "ingress_bytes_per_s": np.full(nodes, np.inf),
        "port_bytes_per_s": np.inf,
        "local_bytes_per_s": np.full(nodes, 100 * GB),
        "local_latency_s": np.full(nodes, LOCAL_LATENCY),
        "hop_bytes": GB,
        "hop_gather_s": 0.0,
        "sync": ring(),
        "sync_buckets": 1,
        "embedding_bytes": 0.0,
        "embedding_latency_s": 0.0,
    }
    return dataclasses.replace(base, **{**fields, **changes})


def ring(*, per_layer: float = GB, latency: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Ring:
    return Ring(per_layer, np.zeros(8), *latency)


def hops(family: CostTables, *rows: list[int]) -> tuple[list[list[float]], list[list[float]]]:
    forward, backward = hop_times(family, np.array(rows))
    return forward.tolist(), backward.tolist()


def synchronisation(family: CostTables, *rows: list[int], layers: list[int] | None = None) -> list[float]:
    sync = dataclasses.replace(family.sync, bytes_extra=np.zeros(family.pipeline))
    held = np.ones(family.pipeline, dtype=np.int64) if layers is None else np.array(layers)
    return ring_times(family, sync, held, np.array(rows)).tolist()


# ---------------------------------------------------------------- hops
def test_a_hop_inside_a_node_and_between_nodes() -> None:
    forward, backward = hops(tables(3, 1, 2), [0], [0], [1])
    assert forward == [[pytest.approx(LOCAL_LATENCY + 0.01)], [pytest.approx(LATENCY + 0.1)]]
    assert backward == forward


def test_both_directions_have_their_own_link() -> None:
    pair, latency = np.full((2, 2), 10 * GB), np.full((2, 2), LATENCY)
    pair[1, 0], latency[1, 0] = 5 * GB, 3 * LATENCY
    forward, backward = hops(tables(2, 1, 2, pair_bytes_per_s=pair, latency_s=latency), [0], [1])
    assert forward == [[pytest.approx(LATENCY + 0.1)]]
    assert backward == [[pytest.approx(3 * LATENCY + 0.2)]]


def test_tensor_ranks_share_the_pair_but_not_their_ports() -> None:
    family = tables(2, 1, 2, tensor=4, port_bytes_per_s=2 * GB)
    assert hops(family, [0], [1])[0] == [[pytest.approx(LATENCY + 0.5)]]  # port: 1 / 2 > 4 / 10
    family = tables(2, 1, 2, tensor=4, port_bytes_per_s=5 * GB)
    assert hops(family, [0], [1])[0] == [[pytest.approx(LATENCY + 0.4)]]


def test_replicas_share_a_pair_only_with_those_that_go_the_same_way() -> None:
    forward, _ = hops(tables(2, 3, 3), [0, 0, 1], [1, 1, 2])
    assert forward == [
        [pytest.approx(LATENCY + 0.2), pytest.approx(LATENCY + 0.2), pytest.approx(LATENCY + 0.1)]
    ]
    crossing, _ = hops(tables(2, 2, 2), [0, 1], [1, 0])
    assert crossing == [[pytest.approx(LATENCY + 0.1)] * 2]


def test_flows_to_different_nodes_share_what_leaves_and_enters_a_node() -> None:
    leaving = tables(2, 2, 3, egress_bytes_per_s=np.array([8 * GB, np.inf, np.inf]))
    forward, backward = hops(leaving, [0, 0], [1, 2])
    assert forward == [[pytest.approx(LATENCY + 2 / 8)] * 2]
    assert backward == [[pytest.approx(LATENCY + 0.1)] * 2]
    entering = tables(2, 2, 3, ingress_bytes_per_s=np.array([8 * GB, np.inf, np.inf]))
    forward, backward = hops(entering, [0, 0], [1, 2])
    assert forward == [[pytest.approx(LATENCY + 0.1)] * 2]
    assert backward == [[pytest.approx(LATENCY + 2 / 8)] * 2]


def test_a_replica_that_stays_inside_loads_no_link() -> None:
    family = tables(2, 2, 2, egress_bytes_per_s=np.full(2, 10 * GB))
    forward, _ = hops(family, [0, 0], [0, 1])
    assert forward == [[pytest.approx(LOCAL_LATENCY + 0.01), pytest.approx(LATENCY + 0.1)]]


def test_scattered_hops_gather_on_arrival() -> None:
    forward, backward = hops(tables(3, 1, 2, hop_gather_s=0.25), [0], [0], [1])
    assert forward == [[pytest.approx(LOCAL_LATENCY + 0.26)], [pytest.approx(LATENCY + 0.35)]]
    assert backward == forward


def test_virtual_stages_repeat_the_hops_and_wrap_around() -> None:
    family = tables(2, 1, 2)
    chunks = configuration(
        (1, 2, 2, 1), pipeline=2, virtual_stages=2, schedule="interleaved", pipeline_transfers="async"
    )
    pair = np.full((2, 2), 10 * GB)
    pair[1, 0] = 5 * GB
    family = dataclasses.replace(family, configuration=chunks, pair_bytes_per_s=pair)
    forward, backward = hops(family, [0], [1])
    there, back = pytest.approx(LATENCY + 0.1), pytest.approx(LATENCY + 0.2)
    assert forward == [[there], [back], [there]]
    assert backward == [[back], [there], [back]]


# ---------------------------------------------------------------- rings
def test_a_ring_costs_its_worst_edge() -> None:
    pair = np.array([[np.inf, 10, 2], [10, np.inf, 4], [8, 10, np.inf]]) * GB
    family = tables(1, 3, 3, pair_bytes_per_s=pair)
    assert synchronisation(family, [0, 1, 2]) == [pytest.approx(1 / 4)]  # 0 > 1 > 2 > 0: 10, 4, 8
    assert synchronisation(family, [0, 2, 1]) == [pytest.approx(1 / 2)]  # 0 > 2 > 1 > 0: 2, 10, 10
    assert synchronisation(family, [1, 2, 0]) == [pytest.approx(1 / 4)]  # turning changes nothing


def test_a_ring_of_two_nodes_has_both_directions() -> None:
    pair = np.array([[np.inf, 10], [5, np.inf]]) * GB
    assert synchronisation(tables(1, 2, 2, pair_bytes_per_s=pair), [0, 1]) == [pytest.approx(1 / 5)]


def test_zig_zags_are_grouped_by_first_appearance() -> None:
    pair = np.array([[np.inf, 10, 2], [10, np.inf, 4], [8, 10, np.inf]]) * GB
    family = tables(1, 6, 3, pair_bytes_per_s=pair)
    straight = synchronisation(family, [0, 0, 1, 1, 2, 2])
    assert straight == synchronisation(family, [0, 1, 0, 2, 1, 2]) == [pytest.approx(1 / 4)]


def test_several_members_of_a_node_pass_it_on_inside_and_use_more_ports() -> None:
    inside = tables(1, 4, 2, local_bytes_per_s=np.array([2 * GB, 100 * GB]))
    assert synchronisation(inside, [0, 0, 0, 1]) == [pytest.approx(1 / 2)]
    assert synchronisation(inside, [0, 1, 1, 1]) == [pytest.approx(1 / 10)]  # one member needs no inside link
    ports = tables(1, 4, 2, port_bytes_per_s=1 * GB)
    assert synchronisation(ports, [0, 0, 1, 1]) == [pytest.approx(1 / 2)]
    assert synchronisation(ports, [0, 0, 0, 1]) == [pytest.approx(1.0)]


def test_a_ring_inside_one_node_uses_no_network() -> None:
    family = tables(1, 4, 2, port_bytes_per_s=1.0, pair_bytes_per_s=np.ones((2, 2)))
    assert synchronisation(family, [1, 1, 1, 1]) == [pytest.approx(1 / 100)]


def test_tensor_ranks_make_as_many_rings() -> None:
    assert synchronisation(tables(1, 2, 2, tensor=4), [0, 1]) == [pytest.approx(4 / 10)]


def test_rings_of_stages_on_the_same_nodes_share_their_links() -> None:
    family = tables(2, 2, 3)
    assert synchronisation(family, [0, 1], [0, 1]) == [pytest.approx(2 / 10)] * 2
    assert synchronisation(family, [0, 1], [1, 0]) == [pytest.approx(2 / 10)] * 2
    apart = synchronisation(family, [0, 1], [1, 2])
    assert apart == [pytest.approx(1 / 10)] * 2  # 0-1 and 1-2 have no edge in common
    shared_exit = tables(2, 2, 3, egress_bytes_per_s=np.array([np.inf, 5 * GB, np.inf]))
    assert synchronisation(shared_exit, [0, 1], [1, 2]) == [pytest.approx(2 / 5)] * 2


def test_every_stage_has_its_own_bytes() -> None:
    family = tables(2, 2, 4)
    assert synchronisation(family, [0, 1], [2, 3], layers=[1, 5]) == [pytest.approx(0.1), pytest.approx(0.5)]
    both = synchronisation(family, [0, 1], [0, 1], layers=[1, 5])
    assert both == [pytest.approx(0.6)] * 2


def test_latency_counts_steps_between_and_inside_nodes() -> None:
    family = tables(1, 5, 3, sync=ring(per_layer=1e-6, latency=(1.0, 0.1, 0.001)))
    assert synchronisation(family, [0, 0, 1, 2, 2]) == [pytest.approx(1 + 2 * 0.1 + 2 * 0.001)]
    assert synchronisation(family, [0, 0, 0, 0, 0]) == [pytest.approx(1 + 4 * 0.001)]


def test_one_replica_synchronises_nothing() -> None:
    family = tables(2, 1, 2, sync=ring(latency=(1.0, 0.1, 0.001)))
    assert synchronisation(family, [0], [1]) == [0.0, 0.0]


def test_overlap_exposes_the_last_bucket_of_stage_0_only() -> None:
    """Four buckets of 2 s; the last backward takes 4 s, or 100 s."""
    layers = np.array([1, 5])
    apart = np.array([[0, 1], [0, 1]])
    quiet = Ring(0.0, np.zeros(2), 0.0, 0.0, 0.0)
    short = tables(2, 2, 2, sync_buckets=4, backward_layer_s=4.0, backward_extra_s=np.zeros(2), sync=quiet)
    assert exposed_sync_s(short, np.array([8.0, 8.0]), layers, apart).tolist() == [8.0 - 3.0, 8.0]
    long = dataclasses.replace(short, backward_layer_s=100.0)
    assert exposed_sync_s(long, np.array([8.0, 8.0]), layers, apart).tolist() == [2.0, 8.0]


def test_every_bucket_has_a_latency_of_its_own() -> None:
    """8 s of one collective: 1 + 0.5 of latency and 6.5 of transfer; four of them take 4 x 1.5 + 6.5."""
    layers, whole = np.array([1, 5]), np.array([8.0, 8.0])
    ring = Ring(0.0, np.zeros(2), 1.0, 0.5, 0.25)
    options = {"sync_buckets": 4, "backward_extra_s": np.zeros(2), "sync": ring}
    apart, together = np.array([[0, 1], [0, 1]]), np.array([[0, 0], [1, 1]])
    short = tables(2, 2, 2, backward_layer_s=4.0, **options)
    assert exposed_sync_s(short, whole, layers, apart).tolist() == [12.5 - 3.0, 8.0]
    long = dataclasses.replace(short, backward_layer_s=100.0)
    assert exposed_sync_s(long, whole, layers, apart).tolist() == [12.5 / 4, 8.0]
    assert exposed_sync_s(long, whole, layers, together).tolist() == [(8.0 + 3 * 1.25) / 4, 8.0]


# ---------------------------------------------------------------- embedding
def test_the_embedding_exchange_loads_both_directions() -> None:
    family = tables(2, 1, 2, embedding_bytes=GB, embedding_latency_s=0.5)
    one = np.array([[0], [1]])
    assert embedding_time(family, one) == pytest.approx(LATENCY + 0.1 + 0.5)
    assert embedding_time(family, np.array([[0], [0]])) == pytest.approx(LOCAL_LATENCY + 0.01 + 0.5)
    slow_back = np.array([[np.inf, 10], [2, np.inf]]) * GB
    family = dataclasses.replace(family, pair_bytes_per_s=slow_back)
    assert embedding_time(family, one) == pytest.approx(LATENCY + 0.5 + 0.5)


def test_all_pairs_of_the_embedding_exchange_run_at_once() -> None:
    family = tables(2, 2, 2, embedding_bytes=GB)
    assert embedding_time(family, np.array([[0, 0], [1, 1]])) == pytest.approx(LATENCY + 0.2)
    # opposite ways: replica 0 sends 0 > 1 while replica 1 answers 0 > 1
    assert embedding_time(family, np.array([[0, 1], [1, 0]])) == pytest.approx(LATENCY + 0.2)
    assert embedding_time(tables(2, 2, 2), np.array([[0, 0], [1, 1]])) == 0.0


# ---------------------------------------------------------------- all of them
def test_everything_else_follows_from_layers() -> None:
    family = tables(2, 2, 4, sync=dataclasses.replace(ring(), bytes_extra=np.zeros(2)))
    durations = placement_durations(family, np.array([1, 5]), np.array([[0, 1], [2, 3]]))
    forward = family.forward_layer_s * np.array([1, 5]) + family.forward_extra_s
    assert durations.forward_s.tolist() == [[value] * 2 for value in forward]
    assert durations.weight_gradient_s is None
    step = family.optimizer_layer_s * np.array([1, 5]) + family.optimizer_extra_s
    assert durations.optimizer_s.tolist() == step.tolist()
    assert durations.parameter_gather_s.tolist() == [0.0, 0.0]
    assert durations.gradient_sync_s == pytest.approx([0.1, 0.5])
    assert durations.fixed_s == family.fixed_s


def test_the_parameter_gather_is_exposed_unless_it_overlaps() -> None:
    gather = dataclasses.replace(ring(), bytes_extra=np.zeros(2))
    family = tables(2, 2, 4, sync=gather, gather=gather, gather_exposed=True)
    arguments = (np.array([1, 5]), np.array([[0, 1], [2, 3]]))
    assert placement_durations(family, *arguments).parameter_gather_s == pytest.approx([0.1, 0.5])
    hidden = dataclasses.replace(family, gather_exposed=False)
    assert placement_durations(hidden, *arguments).parameter_gather_s.tolist() == [0.0, 0.0]
