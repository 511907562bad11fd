"""What follows from one plan: accounts, throughput, memory, and the document of `estimate` and `simulate`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from pipette_milp.assessment import assess
from pipette_milp.cost.placement import placement_durations
from pipette_milp.errors import IllegalConfigurationError, PlanError
from pipette_milp.estimate import estimate, simulate_plan
from pipette_milp.plans import default_cells, placement_of_cells
from pipette_milp.schema.evaluation import Memory, Throughput
from pipette_milp.schema.plan import Configuration, Placement, Plan
from tests.instance_cases import configuration, costs, instance
from tests.oracle.recompute import recompute

INTERLEAVED = {"schedule": "interleaved", "pipeline_transfers": "async"}
CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((6,), {"data": 4, "num_micro_batches": 4}),
    ((4, 2), {"data": 2, "num_micro_batches": 8}),
    ((3, 3), {"tensor": 2}),
    ((3, 3), {"tensor": 2, "sequence_parallel": True, "recompute": "full"}),
    ((2, 1, 1, 2), {"pipeline_transfers": "async"}),
    ((3, 3), {"data": 2, "num_micro_batches": 8, "schedule": "gpipe", "data_sharding": "optimizer"}),
    ((4, 2), {"tensor": 2, "schedule": "zb-h1", "pipeline_transfers": "async", "sequence_parallel": True}),
    ((2, 1, 2, 1), {"pipeline": 2, "tensor": 2, "virtual_stages": 2} | INTERLEAVED),
]


@pytest.mark.parametrize(("layers", "fields"), CASES)
def test_accounts_add_up_and_a_stranger_finds_the_same_time(
    layers: tuple[int, ...], fields: dict[str, Any]
) -> None:
    wanted = configuration(layers, **fields)
    document = json.loads(json.dumps(estimate(instance(), wanted)))
    total = document["simulated_s"]
    assert sum(document["critical_path"].values()) == pytest.approx(total, rel=1e-12)
    seconds = {key: value for key, value in document["breakdown"].items() if key.endswith("_s")}
    assert sum(seconds.values()) == pytest.approx(total, rel=1e-12)
    assert recompute(document["durations"], document["order"]) == pytest.approx(total, rel=1e-12)
    assert document["configuration"] == wanted.model_dump(mode="json")
    assert Configuration.model_validate(document["configuration"]) == wanted
    assert document["fits"]


def test_keys_of_the_contract() -> None:
    document = estimate(instance(), configuration((3, 3), data=2, num_micro_batches=8))
    assert set(document) >= {
        "configuration", "simulated_s", "critical_path", "breakdown", "throughput", "memory", "durations",
        "order", "fits",
    }  # fmt: skip
    Throughput.model_validate(document["throughput"])
    Memory.model_validate(document["memory"])


def test_throughput() -> None:
    model = costs()
    wanted = configuration((3, 3), data=2, num_micro_batches=8)
    found = assess(model, wanted, np.array([[0, 0], [1, 1]]))
    throughput = found.throughput
    assert throughput.tokens_per_s == pytest.approx(16 * 512 / found.simulated_s)
    assert throughput.tokens_per_s_per_gpu == pytest.approx(throughput.tokens_per_s / 4)
    flop = 16 * 512 * model.transformer.model_flop_per_token
    assert throughput.model_flop_per_s_per_gpu == pytest.approx(flop / found.simulated_s / 4)
    assert throughput.peak_used == 312e12
    assert throughput.mfu == pytest.approx(throughput.model_flop_per_s_per_gpu / 312e12)
    assert 0 < throughput.mfu < 0.7


def test_per_gpu_counts_the_gpus_in_use() -> None:
    found = assess(costs(), configuration((6,)), np.array([[1]]))
    assert found.throughput.tokens_per_s_per_gpu == found.throughput.tokens_per_s


def test_tensor_collectives_are_told_from_compute() -> None:
    model = costs()
    wanted = configuration((3, 3), tensor=2)
    found = assess(model, wanted, np.array([[0], [1]]))
    forward, backward = model.tensor_communication_s(wanted)
    busiest = found.breakdown.stage
    assert found.breakdown.tensor_comm_s == pytest.approx(16 * (forward[busiest] + backward[busiest]))
    assert found.critical_path.tensor_comm_s > 0
    assert assess(model, configuration((3, 3)), np.array([[0], [1]])).critical_path.tensor_comm_s == 0


def test_memory_of_every_stage_on_its_gpus() -> None:
    model = costs()
    wanted = configuration((4, 2), data=2, num_micro_batches=8)
    found = assess(model, wanted, Placement(gpu_of_rank=(3, 1, 0, 2)))
    assert [stage.tightest_gpu for stage in found.memory.per_stage] == [3, 0]
    for stage, exact in zip(found.memory.per_stage, model.stage_memory(wanted), strict=True):
        assert stage.peak_bytes == exact.peak_bytes
        parts = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        assert stage.allocated_peak_bytes == pytest.approx(
            parts + stage.activations_bytes + stage.other_bytes
        )
        assert stage.allocated_peak_bytes < stage.reserved_peak_bytes < stage.peak_bytes
        assert stage.capacity_bytes == 79.1 * 2**30
        assert stage.usable_bytes == pytest.approx(0.97 * stage.capacity_bytes)
    assert found.fits


def test_cells_and_gpus_say_the_same() -> None:
    model = costs({"cluster/exclude": {"nodes": [], "gpus": []}})
    wanted = configuration((4, 2), data=2, num_micro_batches=8)
    cells = np.array([[0, 1], [1, 0]])
    by_cells = assess(model, wanted, cells)
    placement = placement_of_cells(model.cluster, wanted, cells)
    assert placement.gpu_of_rank == (0, 2, 3, 1)
    assert assess(model, wanted, placement) == by_cells
    durations = placement_durations(model.tables(wanted), np.array([4, 2]), cells)
    assert by_cells.durations.gradient_sync_s == tuple(durations.gradient_sync_s)


def test_the_default_order_is_rank_by_rank() -> None:
    model = costs()
    wanted = configuration((4, 2), data=2, num_micro_batches=8)
    document = estimate(instance(), wanted)
    assert document["placement"] == {"gpu_of_rank": [0, 1, 2, 3]}
    cells = default_cells(model.cluster, wanted)
    assert cells is not None
    assert cells.tolist() == [[0, 0], [1, 1]]
    plan = Plan(configuration=wanted, placement=Placement(gpu_of_rank=(0, 1, 2, 3)))
    assert simulate_plan(instance(), plan) == document


def test_a_legal_plan_that_does_not_fit_is_an_answer() -> None:
    small = instance({"cluster/gpu_types/gpu/memory": "3 GiB"})
    document = estimate(small, configuration((3, 3), data=2, num_micro_batches=8))
    assert document["fits"] is False
    assert document["simulated_s"] > 0
    peak = max(stage["peak_bytes"] for stage in document["memory"]["per_stage"])
    assert peak > document["memory"]["per_stage"][0]["usable_bytes"]


def test_illegal_configurations_are_refused() -> None:
    for judge in (
        lambda wanted: estimate(instance(), wanted),
        lambda wanted: simulate_plan(
            instance(), Plan(configuration=wanted, placement=Placement(gpu_of_rank=(0, 1)))
        ),
    ):
        with pytest.raises(IllegalConfigurationError, match="hold 5 layers, the model has 6"):
            judge(configuration((3, 2)))


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        ((0, 1, 2), "has 3 entries, 2 x 1 x 2 needs 4"),
        ((0, 1, 2, 2), "GPU 2 already runs rank 2"),
        ((0, 1, 2, 4), "GPU 4 does not exist or is excluded"),
    ],
)
def test_malformed_placements_are_refused(gpus: tuple[int, ...], says: str) -> None:
    wanted = configuration((3, 3), data=2, num_micro_batches=8)
    with pytest.raises(PlanError, match=says):
        simulate_plan(instance(), Plan(configuration=wanted, placement=Placement(gpu_of_rank=gpus)))


def test_tensor_groups_that_cross_nodes() -> None:
    """Three GPUs a node: the default order would put ranks 2 and 3 on two nodes."""
    odd = instance({"cluster/nodes/0/gpus": 3})
    wanted = configuration((3, 3), tensor=2)
    with pytest.raises(IllegalConfigurationError, match="crosses nodes"):
        estimate(odd, wanted)
    with pytest.raises(PlanError, match="tensor group of stage 1, replica 0 crosses nodes"):
        simulate_plan(odd, Plan(configuration=wanted, placement=Placement(gpu_of_rank=(0, 1, 2, 3))))
    legal = simulate_plan(odd, Plan(configuration=wanted, placement=Placement(gpu_of_rank=(0, 1, 3, 4))))
    assert legal["fits"]
