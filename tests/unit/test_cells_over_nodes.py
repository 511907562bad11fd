"""Cells larger than a node: whole nodes in a row, joined into one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.assessment import assess
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.cells import cell_links
from pipette_milp.cost.communication import LOCAL_STEP_S, NODE_STEP_S
from pipette_milp.cost.placement import placement_durations
from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.estimate import estimate
from pipette_milp.legality import check_legal
from pipette_milp.plans import cells_of_plan, default_cells, placement_of_cells
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.result import Termination
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from pipette_milp.verify import verify
from tests.instance_cases import configuration, costs

GB = 1e9


def four_nodes(changes: dict[str, Any] | None = None, **sections: Any) -> CostModel:
    """Four nodes of two GPUs, 20 GB/s between nodes, 200 inside."""
    training = {"flash_attention": True, **sections.pop("training", {})}
    return costs({"cluster/nodes/0/count": 4, **(changes or {})}, training=training, **sections)


def test_places_of_whole_nodes() -> None:
    cluster = four_nodes().cluster
    assert cluster.for_cells(1) is cluster.for_cells(2) is cluster
    pairs = cluster.for_cells(4)
    assert pairs is not None
    assert pairs.gpu_ids == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert pairs.joined == 2
    assert pairs.egress_bytes_per_s.tolist() == [40 * GB, 40 * GB]
    assert pairs.pair_bytes_per_s[0, 1] == 40 * GB
    assert np.isinf(pairs.pair_bytes_per_s[0, 0])
    assert pairs.joining_bytes_per_s == 20 * GB
    assert cluster.for_cells(3) is None
    assert cluster.for_cells(16) is None
    uneven = [{"name": "a", "gpu_type": "gpu", "gpus": 2}, {"name": "b", "gpu_type": "gpu", "gpus": 1}]
    assert costs({"cluster/nodes": uneven}).cluster.for_cells(3) is None


def test_the_slowest_link_of_a_place_counts() -> None:
    values = [[None if a == b else 20.0 for b in range(4)] for a in range(4)]
    values[1][3] = 4.0
    values[2][3] = 6.0
    matrix = {"unit": "GB/s", "values": values}
    network = {"bandwidth": matrix, "measures": "node_pair", "latency": "10 us", "source": "measured"}
    pairs = four_nodes({"cluster/network/inter_node": network}).cluster.for_cells(4)
    assert pairs is not None
    assert pairs.pair_bytes_per_s[0, 1] == 8 * GB  # rank by rank: 0 to 2, 1 to 3
    assert pairs.pair_bytes_per_s[1, 0] == 40 * GB
    assert pairs.joining_bytes_per_s == 6 * GB


def test_links_inside_cells() -> None:
    cluster = four_nodes().cluster
    inside = cell_links(cluster, configuration((6,), tensor=2))
    assert (inside.tensor_bytes_per_s, inside.tensor_nodes, inside.ring_nodes) == (200 * GB, 1, 1)
    tensor = cell_links(cluster, configuration((6,), tensor=4))
    # all cards of a node serve the one group that spans it
    assert (tensor.tensor_bytes_per_s, tensor.tensor_nodes) == (20 * GB, 2)
    context = cell_links(cluster, configuration((6,), tensor=2, context=2))
    assert (context.tensor_bytes_per_s, context.tensor_nodes) == (200 * GB, 1)
    # two tensor ranks a node, each with its own ring over the same cards
    assert (context.context_bytes_per_s, context.ring_bytes_per_s) == (10 * GB, 10 * GB)
    assert (context.context_step_s, context.ring_nodes, context.ring_share) == (NODE_STEP_S, 2, 1.0)


@pytest.mark.parametrize(("tensor", "context"), [(2, 2), (4, 1), (1, 4)])
def test_gradient_rings_cross_all_nodes_of_all_cells(tensor: int, context: int) -> None:
    """Each of the tensor ranks of a node has a ring there that sends 2 (n-1)/n of its gradients over the
    node's cards, and takes a step between nodes for every node it passes."""
    model = four_nodes()
    wanted = configuration((6,), tensor=tensor, context=context, data=2, num_micro_batches=8)
    tables = model.tables(wanted)
    ranks = 2 * context
    parameters = 6 * model.transformer.layer_parameters(tensor)
    parameters += model.transformer.embedding_parameters(tensor)
    parameters += model.transformer.head_parameters(tensor, embedding_on_same_stage=True)
    sent = 2 * (ranks - 1) / ranks * 4 * parameters
    rings = min(tensor, 2)
    passed = 4 if tensor <= 2 else ranks
    latency = 8.4e-6 + 2 * ((passed - 1) * NODE_STEP_S + (ranks - passed) * LOCAL_STEP_S)
    durations = placement_durations(tables, np.array([6]), np.array([[0, 1]]))
    assert durations.gradient_sync_s[0] == pytest.approx(latency + rings * sent / (20 * GB), rel=1e-9)


@pytest.mark.parametrize("fields", [{"tensor": 4, "sequence_parallel": True}, {"tensor": 2, "context": 2}])
def test_plans_with_cells_over_nodes(fields: dict[str, Any]) -> None:
    model = four_nodes()
    wanted = configuration((3, 3), **fields)
    cells = np.array([[1], [0]])
    placement = placement_of_cells(model.cluster, wanted, cells)
    assert placement.gpu_of_rank == (4, 5, 6, 7, 0, 1, 2, 3)
    assert (
        cells_of_plan(model.cluster, Plan(configuration=wanted, placement=placement)).tolist()
        == cells.tolist()
    )
    default = default_cells(model.cluster, wanted)
    assert default is not None
    assert default.tolist() == [[0], [1]]
    if wanted.context > 1:
        found = estimate(model.instance, wanted)
        assert list(found["placement"]["gpu_of_rank"]) == [*range(8)]
    slow = four_nodes({"cluster/network/inter_node/bandwidth": "1 GB/s"})
    assert assess(slow, wanted, cells).simulated_s > assess(model, wanted, cells).simulated_s


def test_one_replica_reduces_its_gradients_between_its_nodes() -> None:
    """Four ranks with the same parameters on two nodes: 3/4 of 2 x 4 bytes over the cards of both."""
    model = four_nodes({"cluster/nodes/0/count": 2})
    wanted = configuration((6,), context=4)
    tables = model.tables(wanted)
    assert tables.detail is not None
    parameters = model.transformer.parameters + (50_304 - 50_257) * 1024
    latency = 8.4e-6 + 2 * (1 * NODE_STEP_S + 2 * LOCAL_STEP_S)
    durations = placement_durations(tables, np.array([6]), np.array([[0]]))
    expected = latency + 2 * 3 / 4 * 4 * parameters / (20 * GB)
    assert durations.gradient_sync_s[0] == pytest.approx(expected, rel=1e-6)


def test_tensor_groups_over_nodes_are_for_measured_runs_only() -> None:
    model, wanted = four_nodes(), configuration((3, 3), tensor=4)
    with pytest.raises(IllegalConfigurationError, match="exceeds the 2 GPUs of a node"):
        estimate(model.instance, wanted)
    check_legal(model, wanted, tensor_over_nodes=True)
    with pytest.raises(IllegalConfigurationError, match="exceeds the 2 GPUs of a node"):
        check_legal(model, configuration((6,), tensor=16, data=1), tensor_over_nodes=True)


def test_the_search_takes_context_groups_over_nodes_where_they_are_listed() -> None:
    plain = enumerate_space(four_nodes())
    assert max(tables.tensor for tables in plain.families) == 2
    model = four_nodes(search={"tensor": [2], "context": [2], "micro_batch": [4]})
    result = solve(model.instance, threads=1)
    assert result.termination == Termination.OPTIMAL
    assert verify(model.instance, result).failed == ()
    assert result.plan is not None
    assert result.plan.configuration.context == 2
