"""Unlike layers, unlike GPUs, experts over ranks, sharded layers: exact costs beside the linear tables."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pipette_milp.assessment import assess
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.communication import COLLECTIVE_BASE_S, NODE_STEP_S
from pipette_milp.cost.expert_exchange import ExpertExchange
from pipette_milp.cost.family_parts import build_detail
from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.schema.plan import Configuration
from pipette_milp.solvers.evaluation import Candidate, Evaluator, stage_memory_bytes
from tests.detail_cases import mixture, two_types
from tests.instance_cases import configuration, costs

FIELDS = (
    "forward_s", "backward_s", "hop_forward_s", "hop_backward_s", "gradient_sync_s", "optimizer_s",
    "parameter_gather_s",
)  # fmt: skip


def cells_of(rng: np.random.Generator, tables: CostTables) -> np.ndarray:
    places = np.repeat(np.arange(tables.num_nodes), tables.slots)
    shape = (tables.pipeline, tables.data)
    return rng.permutation(places)[: tables.pipeline * tables.data].reshape(shape)


PLAIN = [
    {},
    {"pipeline": 2, "data": 2},
    {"pipeline": 2, "data": 2, "data_sharding": "optimizer", "recompute": "full"},
    {"pipeline": 4, "schedule": "zb-h1", "pipeline_transfers": "async"},
    {"pipeline": 2, "virtual_stages": 2, "schedule": "interleaved", "pipeline_transfers": "async", "data": 2},
    {"pipeline": 2, "tensor": 2, "sequence_parallel": True},
]


@pytest.mark.parametrize("fields", PLAIN)
@pytest.mark.parametrize("seed", [0, 1])
def test_detail_of_a_plain_family_says_what_its_tables_say(fields: dict[str, Any], seed: int) -> None:
    """Two ways to the same durations and the same memory."""
    rng = np.random.default_rng(seed)
    model = costs()
    virtual = fields.get("pipeline", 1) * fields.get("virtual_stages", 1)
    layers = np.full(virtual, 6 // virtual) + (np.arange(virtual) < 6 % virtual)
    wanted = configuration(tuple(layers.tolist()), **{"pipeline": 1, **fields})
    plain = model.tables(wanted)
    assert plain.detail is None
    detailed = dataclasses.replace(plain, detail=build_detail(model.parts(wanted), model, ("test",)))
    cells = cells_of(rng, plain)
    one, other = (placement_durations(tables, layers, cells) for tables in (plain, detailed))
    for name in FIELDS:
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12), name
    if one.weight_gradient_s is not None:
        assert one.weight_gradient_s == pytest.approx(other.weight_gradient_s, rel=1e-12)
    assert stage_memory_bytes(plain, layers) == pytest.approx(stage_memory_bytes(detailed, layers), rel=1e-12)
    exact = [stage.peak_bytes for stage in model.stage_memory(wanted)]
    assert stage_memory_bytes(detailed, layers) == pytest.approx(exact, rel=1e-12)


def detailed_cases() -> list[tuple[str, CostModel, Configuration]]:
    deep = {"num_micro_batches": 8}
    large = {"cluster/nodes/0/gpus": 4}
    long = {"training": {"flash_attention": True}}
    return [
        ("kinds", mixture(dense_first=2), configuration((3, 3), data=2, **deep)),
        ("experts", mixture(), configuration((6,), data=4, expert=4, data_sharding="optimizer")),
        ("experts in pairs", mixture(), configuration((3, 3), data=2, expert=2, recompute="full", **deep)),
        ("types", two_types(), configuration((3, 3), data=2, data_sharding="optimizer", **deep)),
        ("parameters", costs(), configuration((3, 3), data=2, data_sharding="parameters", **deep)),
        ("gradients", costs(), configuration((6,), data=4, data_sharding="gradients")),
        ("context alone", costs(large, **long), configuration((3, 3), context=2, tensor=2)),
        ("context", costs(large, **long), configuration((6,), context=2, data=2, data_sharding="optimizer")),
        (
            "all of it",
            mixture(dense_first=1, changes=large),
            configuration((2, 2, 2), context=2, data=1, expert=2),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name, _, _ in detailed_cases()])
def test_linear_tables_are_lower_estimates(name: str) -> None:
    """For every placement tried, every duration and every stage's memory: what bounds rest on."""
    model, wanted = next((m, c) for other, m, c in detailed_cases() if other == name)
    tables = model.tables(wanted)
    assert tables.detail is not None
    assert tables.detail.reasons
    linear = dataclasses.replace(tables, detail=None)
    rng = np.random.default_rng(5)
    for _ in range(10):
        layers = np.ones(tables.num_virtual_stages, dtype=np.int64)
        for _ in range(tables.total_layers - len(layers)):
            layers[rng.integers(len(layers))] += 1
        cells = cells_of(rng, tables)
        low, exact = (placement_durations(t, layers, cells) for t in (linear, tables))
        for field in FIELDS:
            assert np.all(getattr(low, field) <= getattr(exact, field) * (1 + 1e-12)), field
        assert Evaluator(linear).of_durations(low) <= Evaluator(tables).of_durations(exact) * (1 + 1e-12)
        memory = stage_memory_bytes(tables, layers)
        assert np.all(stage_memory_bytes(linear, layers) <= memory * (1 + 1e-12))
        own = wanted.with_layers(tuple(layers.tolist()))
        assert memory == pytest.approx([s.peak_bytes for s in model.stage_memory(own)], rel=1e-12)
        assert np.all(tables.detail.usable_of_stage(cells) <= tables.memory_usable_bytes)


def exchange(**changes: Any) -> ExpertExchange:
    fields: dict[str, Any] = {
        "cells": 4, "peers": 4, "peers_per_cell": 1, "sent_bytes": 4e6, "passes": (2.0, 2.0, 0.0),
        "layer_kinds": (True,), "latency_s": 0.0, "node_step_s": 0.0,
        "sync_layer_bytes": np.zeros(1), "gather_layer_bytes": np.zeros(1),
    }  # fmt: skip
    return ExpertExchange(**{**fields, **changes})


def exchange_s(of: ExpertExchange, cells: list[list[int]], **links: Any) -> np.ndarray:
    nodes = 4
    fields: dict[str, Any] = {
        "ranks": 1, "pair": np.full((nodes, nodes), 1e12), "egress": np.full(nodes, 1e12),
        "ingress": np.full(nodes, 1e12), "port": 1e12, "local": np.full(nodes, 1e9),
    }  # fmt: skip
    return of.seconds(np.array(cells), **{**fields, **links})


def test_an_exchange_inside_a_node_uses_the_scale_up_port() -> None:
    """Three of four equal parts of 1 MB leave each GPU."""
    assert exchange_s(exchange(), [[2, 2, 2, 2]]) == pytest.approx(np.full((1, 4), 3e-3))


def test_an_exchange_between_nodes_shares_the_cards() -> None:
    """Two ranks a node: each sends two parts out, four flows of 1 MB leave and enter each node."""
    across = exchange_s(exchange(), [[0, 0, 1, 1]], egress=np.full(4, 1e9))
    assert across == pytest.approx(np.full((1, 4), 4e-3))
    by_port = exchange_s(exchange(), [[0, 0, 1, 1]], port=0.5e9)
    assert by_port == pytest.approx(np.full((1, 4), 4e-3))
    pair = np.full((4, 4), 1e12)
    pair[0, 1] = 2e9
    assert exchange_s(exchange(), [[0, 0, 1, 1]], pair=pair) == pytest.approx(np.full((1, 4), 2e-3))
    assert exchange_s(exchange(), [[1, 1, 2, 2]], pair=pair)[0, 0] == pytest.approx(1e-3)


def test_groups_of_all_stages_on_a_node_share_its_cards() -> None:
    """Two stages with two ranks each on the same two nodes: twice the load of one of them."""
    pairs = exchange(cells=2, peers=2, sent_bytes=2e6)
    alone = exchange_s(pairs, [[0, 1]], egress=np.full(4, 1e9))
    both = exchange_s(pairs, [[0, 1], [0, 1]], egress=np.full(4, 1e9))
    assert alone == pytest.approx(np.full((1, 2), 1e-3))
    assert both == pytest.approx(np.full((2, 2), 2e-3))
    late = exchange(cells=2, peers=2, latency_s=COLLECTIVE_BASE_S, node_step_s=NODE_STEP_S, sent_bytes=0.0)
    assert exchange_s(late, [[0, 1]])[0, 0] == pytest.approx(COLLECTIVE_BASE_S + NODE_STEP_S)
    assert exchange_s(late, [[0, 0]])[0, 0] == pytest.approx(COLLECTIVE_BASE_S)


def test_replicas_of_experts_ring_apart() -> None:
    """Of four replicas in expert groups of two, cells 0 and 2 hold the same experts, 1 and 3 the others."""
    cells = np.array([[5, 6, 7, 8], [1, 2, 3, 4]])
    assert exchange(cells=2).replica_cells(cells).tolist() == [[5, 7], [6, 8], [1, 3], [2, 4]]


def test_more_ranks_for_the_experts_trade_memory_for_exchanges() -> None:
    model = mixture(changes={"cluster/nodes/0/gpus": 4, "cluster/nodes/0/count": 1})
    alone, shared = (configuration((6,), data=4, expert=e, data_sharding="optimizer") for e in (1, 4))
    one, four = (model.stage_memory(c)[0] for c in (alone, shared))
    routed = 6 * model.transformer.routed_parameters(1, "moe")
    assert one.weights_bytes - four.weights_bytes == pytest.approx(2 * routed * 3 / 4)
    # the optimiser's part is spread over all ranks either way
    assert one.optimizer_bytes == pytest.approx(four.optimizer_bytes)
    cells = np.zeros((1, 4), dtype=np.int64)
    forward = [
        placement_durations(model.tables(c), np.array([6]), cells).forward_s.max() for c in (alone, shared)
    ]
    assert forward[1] > forward[0]
    sync = [
        placement_durations(model.tables(c), np.array([6]), cells).gradient_sync_s[0] for c in (alone, shared)
    ]
    assert sync[1] < sync[0]


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_traffic_of_sharded_layers_hides_under_compute(sharding: str) -> None:
    """With fast links a layer takes its compute, with slow ones its traffic."""
    wanted = configuration((6,), data=2, num_micro_batches=8, data_sharding=sharding)
    plain = configuration((6,), data=2, num_micro_batches=8)
    found = {}
    for rate in ("1 TB/s", "1 MB/s"):
        model = costs({"cluster/network/intra_node/bandwidth": rate, "cluster/nodes/0/count": 1})
        cells = np.zeros((1, 2), dtype=np.int64)
        found[rate] = placement_durations(model.tables(wanted), np.array([6]), cells)
        alone = placement_durations(model.tables(plain), np.array([6]), cells)
    layer = costs().transformer.layer_parameters(1)
    passes = {"gradients": (0, 4), "parameters": (2, 6)}[sharding]  # bytes a parameter, forward and backward
    for name, per_parameter in zip(("forward_s", "backward_s"), passes, strict=True):
        fast, slow, own = (getattr(d, name)[0, 0] for d in (found["1 TB/s"], found["1 MB/s"], alone))
        assert own <= fast <= own * 1.1
        if per_parameter:
            # six layers, and one gather or one reduction that nothing hides, and embedding and head
            assert slow > 6 * layer * per_parameter / 2 / 1e6
    assert found["1 MB/s"].gradient_sync_s[0] == 0.0


def test_every_gpu_has_its_own_speed_and_memory() -> None:
    model = two_types({"model/sequence_length": 4096})  # long enough that the GPU binds, not the host
    wanted = configuration((3, 3), data=2, num_micro_batches=8)
    tables = model.tables(wanted)
    fast_first = np.array([[0, 0], [1, 1]])
    mixed = np.array([[0, 1], [0, 1]])
    durations = placement_durations(tables, np.array([3, 3]), fast_first)
    assert np.all(durations.forward_s[1] > 1.01 * durations.forward_s[0])
    per_replica = placement_durations(tables, np.array([3, 3]), mixed)
    assert np.all(per_replica.forward_s[:, 1] > 1.01 * per_replica.forward_s[:, 0])
    evaluator = Evaluator(tables)
    # more layers where the fast GPUs are (field case P14)
    times = [
        evaluator.simulated_s(Candidate(np.array(split), fast_first)) for split in ((5, 1), (3, 3), (1, 5))
    ]
    assert times[0] < times[1] < times[2]
    assert evaluator.memory_depends_on_placement
    capacity = tables.detail.usable_of_stage(fast_first)  # type: ignore[union-attr]
    assert capacity == pytest.approx([0.97 * 79.1 * 2**30, 0.97 * 14.6 * 2**30])


@pytest.mark.parametrize("fields", [{"expert": 4}, {"data_sharding": "parameters"}])
def test_exchanges_are_accounted_as_communication(fields: dict[str, Any]) -> None:
    """What links of a tenth of the speed add to an iteration is communication, not compute."""
    found = []
    for rate in ("200 GB/s", "1 GB/s"):
        model = mixture(
            changes={
                "cluster/network/intra_node/bandwidth": rate,
                "cluster/nodes/0/gpus": 4,
                "cluster/nodes/0/count": 1,
            }
        )
        found.append(assess(model, configuration((6,), data=4, **fields), np.zeros((1, 4), dtype=np.int64)))
    fast, slow = (assessment.critical_path for assessment in found)
    assert slow.compute_s == pytest.approx(fast.compute_s, rel=1e-9)
    assert slow.tensor_comm_s > 2 * fast.tensor_comm_s > 0
    assert sum(slow.model_dump().values()) == pytest.approx(found[1].simulated_s, rel=1e-11)


@pytest.mark.parametrize("name", [name for name, _, _ in detailed_cases()])
def test_faster_is_never_slower(name: str) -> None:
    """Links, cards, compute and memory bandwidth of twice the speed, latencies halved, memory doubled."""
    model, wanted = next((m, c) for other, m, c in detailed_cases() if other == name)
    cells = cells_of(np.random.default_rng(7), model.tables(wanted))
    before = assess(model, wanted, cells)
    cluster = model.cluster
    types = cluster.gpu_types
    better = {
        "pair_bytes_per_s": cluster.pair_bytes_per_s * 2,
        "egress_bytes_per_s": cluster.egress_bytes_per_s * 2,
        "ingress_bytes_per_s": cluster.ingress_bytes_per_s * 2,
        "local_bytes_per_s": cluster.local_bytes_per_s * 2,
        "latency_s": cluster.latency_s / 2,
        "local_latency_s": cluster.local_latency_s / 2,
        "gpu_types": tuple(
            dataclasses.replace(gpu, peak_flop_per_s={p: 2 * peak for p, peak in gpu.peak_flop_per_s.items()})
            for gpu in types
        ),
    }
    more = {
        "gpu_types": tuple(dataclasses.replace(g, memory_bytes_per_s=2 * g.memory_bytes_per_s) for g in types)
    }
    for change in ({key: value} for key, value in better.items()):
        improved = dataclasses.replace(model, cluster=dataclasses.replace(cluster, **change))
        assert assess(improved, wanted, cells).simulated_s <= before.simulated_s * (1 + 1e-12), change
    improved = dataclasses.replace(model, cluster=dataclasses.replace(cluster, **more))
    assert assess(improved, wanted, cells).simulated_s <= before.simulated_s * (1 + 1e-12)
    large = tuple(dataclasses.replace(gpu, memory_bytes=2 * gpu.memory_bytes) for gpu in types)
    improved = dataclasses.replace(model, cluster=dataclasses.replace(cluster, gpu_types=large))
    after = assess(improved, wanted, cells)
    assert after.simulated_s == before.simulated_s
    assert after.fits or not before.fits
