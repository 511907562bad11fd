"""Durations of plans by GPU: every pair of ranks looked up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipette_milp.assessment import assess
from pipette_milp.cluster import Cluster
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.gpu_placement import gpu_placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.estimate import estimate
from pipette_milp.plans import cells_of_plan, gpus_of_placement, node_crossings, placement_of_cells
from pipette_milp.schema.plan import Configuration, Plan
from tests.instance_cases import configuration, costs
from tests.mesh_cases import BRIDGES, CUBE_MESH, mesh_instance

GB = 1e9
PCIE = 12 * GB
FAST = 240 * GB


def tables_of(model: CostModel, layers: tuple[int, ...], **fields: Any) -> CostTables:
    return model.tables(configuration(layers, **fields))


def durations(tables: CostTables, nodes: Any, gpus: Any) -> Any:
    layers = np.array(tables.configuration.layers_per_stage)
    return gpu_placement_durations(tables, layers, np.array(nodes), np.array(gpus))


def test_a_cell_runs_at_the_ring_over_its_gpus() -> None:
    """The tasks of a cell are those of a node whose switch attains as much."""
    model = CostModel.of(mesh_instance(BRIDGES, 4))
    tables = tables_of(model, (3, 3), tensor=2)
    found = durations(tables, [[0], [0]], [[[0, 1]], [[2, 0]]])
    for stage, rate in ((0, FAST), (1, PCIE)):
        switch = costs(
            {"cluster/network/intra_node": {"bandwidth": rate, "latency": "4 us"}, "cluster/nodes/0/gpus": 4}
        )
        alike = tables_of(switch, (3, 3), tensor=2)
        forward = 3 * alike.forward_layer_s + alike.forward_extra_s[stage]
        backward = 3 * alike.backward_layer_s + alike.backward_extra_s[stage]
        assert found.forward_s[stage, 0] == pytest.approx(forward, rel=1e-12)
        assert found.backward_s[stage, 0] == pytest.approx(backward, rel=1e-12)


def test_a_hop_takes_its_slowest_pair_of_ranks() -> None:
    """Rank i sends to rank i, so the order of GPUs in a group matters."""
    model = CostModel.of(mesh_instance(CUBE_MESH, 8))
    tables = tables_of(model, (3, 3), tensor=2)
    latency = 4e-6
    for gpus, rate in (
        ([[[0, 1]], [[4, 5]]], 40 * GB),
        ([[[0, 1]], [[5, 4]]], PCIE),
        ([[[2, 1]], [[6, 5]]], 20 * GB),
    ):
        found = durations(tables, [[0], [0]], gpus)
        assert found.hop_forward_s[0, 0] == pytest.approx(latency + tables.hop_bytes / rate)
        assert found.hop_backward_s[0, 0] == found.hop_forward_s[0, 0]


def test_a_ring_inside_a_node_takes_its_slowest_rank() -> None:
    model = CostModel.of(mesh_instance(CUBE_MESH, 8))
    tables = tables_of(model, (6,), tensor=2, data=2, num_micro_batches=8)
    sent = tables.sync.bytes_per_layer * 6 + tables.sync.bytes_extra[0]
    latency = tables.sync.latency_s + tables.sync.latency_per_local_step_s
    for gpus, rate in (
        ([[[0, 1], [3, 2]]], 40 * GB),
        ([[[0, 1], [3, 7]]], PCIE),
        ([[[0, 2], [4, 6]]], 20 * GB),
    ):
        found = durations(tables, [[0, 0]], gpus)
        assert found.gradient_sync_s[0] == pytest.approx(latency + sent / rate)


def test_between_nodes_gpus_do_not_matter() -> None:
    model = CostModel.of(mesh_instance(BRIDGES, 4, nodes=2))
    tables = tables_of(model, (3, 3), tensor=1)
    hops = {
        durations(tables, [[0], [1]], [[[a]], [[b]]]).hop_forward_s[0, 0] for a in range(4) for b in (0, 3)
    }
    assert len(hops) == 1


def test_the_embedding_exchange_inside_a_node() -> None:
    model = CostModel.of(mesh_instance(BRIDGES, 4))
    tables = tables_of(model, (3, 3), tensor=1)
    near = durations(tables, [[0], [0]], [[[0]], [[1]]]).embedding_sync_s
    far = durations(tables, [[0], [0]], [[[0]], [[2]]]).embedding_sync_s
    more = tables.embedding_bytes / PCIE - tables.embedding_bytes / FAST
    assert far - near == pytest.approx(more)


def test_scattered_hops_are_gathered_by_the_receiving_cell() -> None:
    model = CostModel.of(mesh_instance(BRIDGES, 4, training={"scatter_gather_hops": True}))
    tables = tables_of(model, (3, 3), tensor=2)
    plain = durations(replace(tables, hop_gather_s=0.0), [[0], [0]], [[[0, 1]], [[0, 2]]])
    assert tables.gpu_level is not None
    gathers = [times.hop_gather_s for times in tables.gpu_level.tasks]
    assert gathers[0] < gathers[1]
    ranks = [[[0, 1]], [[3, 1]]]
    found = durations(tables, [[0], [0]], ranks)
    assert found.hop_forward_s[0, 0] > found.hop_backward_s[0, 0]
    assert found.hop_forward_s[0, 0] - found.hop_backward_s[0, 0] == pytest.approx(gathers[1] - gathers[0])
    assert plain.hop_forward_s.shape == (1, 1)


def test_overlap_is_never_flattered() -> None:
    """A slow cell's longer backward hides no more than that of a fast one."""
    training = {"overlap": {"gradient_reduce": True}}
    model = CostModel.of(mesh_instance(BRIDGES, 4, nodes=2, training=training))
    tables = tables_of(model, (6,), tensor=2, data=2, num_micro_batches=8)
    fast = durations(tables, [[0, 1]], [[[0, 1], [0, 1]]])
    slow = durations(tables, [[0, 1]], [[[0, 2], [0, 2]]])
    assert slow.backward_s[0, 0] > fast.backward_s[0, 0]
    assert slow.gradient_sync_s[0] == fast.gradient_sync_s[0]


def test_tables_without_gpus_are_refused() -> None:
    tables = tables_of(costs(), (3, 3))
    with pytest.raises(ValueError, match="joined alike"):
        durations(tables, [[0], [0]], [[[0]], [[1]]])


def test_t11_bridged_pairs_hold_the_tensor_groups() -> None:
    """Groups (0,1) and (2,3) with the stage boundary over PCIe beat groups across the bridges."""
    found = mesh_instance(BRIDGES, 4)
    model = CostModel.of(found)
    wanted = configuration((3, 3), tensor=2)

    def simulated_s(gpus: list[int]) -> float:
        ranks = np.array(gpus).reshape(2, 1, 2)
        placement = placement_of_cells(model.cluster, wanted, np.zeros((2, 1), dtype=np.int64), ranks)
        return assess(model, wanted, placement).simulated_s

    assert simulated_s([0, 1, 2, 3]) < simulated_s([0, 2, 1, 3])
    assert simulated_s([0, 1, 2, 3]) < simulated_s([0, 3, 2, 1])


def test_default_rank_order_is_judged_on_its_own_gpus() -> None:
    """Consecutive GPUs: the cube mesh joins 0 and 1 by one link, 0 and 3 by two."""
    found = mesh_instance(CUBE_MESH, 8)
    model = CostModel.of(found)
    wanted = configuration((2, 2, 1, 1), tensor=2)
    given = estimate(found, wanted)
    assert given["placement"]["gpu_of_rank"] == list(range(8))
    ranks = np.array([[[0, 3]], [[4, 7]], [[5, 6]], [[1, 2]]])
    better = placement_of_cells(model.cluster, wanted, np.zeros((4, 1), dtype=np.int64), ranks)
    assert assess(model, wanted, better).simulated_s < given["simulated_s"]


def test_what_is_tensor_communication_is_told_by_cell() -> None:
    """The slower cell's collectives take longer, its compute does not."""
    model = CostModel.of(mesh_instance(BRIDGES, 4))
    wanted = configuration((6,), tensor=2, data=2, num_micro_batches=8)
    on_one = np.zeros((1, 2), dtype=np.int64)

    def breakdown(ranks: list[list[list[int]]]) -> Any:
        placement = placement_of_cells(model.cluster, wanted, on_one, np.array(ranks))
        return assess(model, wanted, placement).critical_path

    fast, slow = breakdown([[[0, 1], [2, 3]]]), breakdown([[[0, 2], [1, 3]]])
    assert slow.compute_s == pytest.approx(fast.compute_s)
    assert slow.tensor_comm_s > 2 * fast.tensor_comm_s


def test_gpus_of_a_plan_and_back() -> None:
    cluster = Cluster.of(mesh_instance(BRIDGES, 4, 2, {"cluster/exclude": {"gpus": ["node-000:0"]}}))
    wanted: Configuration = configuration((3, 3), tensor=2)
    nodes, gpus = np.array([[1], [0]]), np.array([[[3, 0]], [[2, 1]]])
    placement = placement_of_cells(cluster, wanted, nodes, gpus)
    assert placement.gpu_of_rank == (7, 4, 3, 2)
    plan = Plan(configuration=wanted, placement=placement)
    assert np.array_equal(cells_of_plan(cluster, plan), nodes)
    assert np.array_equal(gpus_of_placement(cluster, wanted, placement), gpus)


def test_hops_that_leave_their_node() -> None:
    assert node_crossings(np.array([[0, 1], [0, 2], [1, 2]])) == 2
