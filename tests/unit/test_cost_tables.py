"""Tables of a family: parameters of every stage, optimiser, synchronisation, bounds of the split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.communication import COLLECTIVE_BASE_S, LOCAL_STEP_S, NODE_STEP_S
from pipette_milp.cost.tables import CostTables
from tests.instance_cases import configuration, costs

H, ROWS = 1024, 50_304
LAYER = 12 * H**2 + 13 * H
FIRST = (ROWS + 512) * H
"""Embedding and positions."""
LAST = ROWS * H + 2 * H
"""A second copy of the tied matrix, and the last norm."""


def tables(
    layers: tuple[int, ...] = (3, 3), training: dict[str, Any] | None = None, **fields: Any
) -> CostTables:
    return costs(training=training or {}).tables(configuration(layers, **fields))


def test_every_stage_synchronises_its_own_parameters() -> None:
    sync = tables(data=2, num_micro_batches=8).sync
    assert sync.bytes_per_layer == pytest.approx(4 * LAYER)  # 2 (d-1)/d = 1, 4 bytes
    assert sync.bytes_extra == pytest.approx([4 * FIRST, 4 * LAST])
    middle = tables((2, 2, 2), data=2, num_micro_batches=8).sync
    assert middle.bytes_extra[1] == 0
    alone = tables((6,), data=2, num_micro_batches=8).sync
    assert alone.bytes_extra == pytest.approx([4 * (FIRST + 2 * H)])  # one copy where both ends meet


@pytest.mark.parametrize(
    ("precision", "gradients", "weight"), [("bf16", 4, 2), ("fp32", 4, 4), ("fp16", 2, 2)]
)
def test_a_sharded_optimizer_scatters_gradients_and_gathers_weights(
    precision: str, gradients: int, weight: int
) -> None:
    dtype = {2: "fp16", 4: "fp32"}[gradients]
    family = tables(
        training={"precision": precision},
        data=4,
        num_micro_batches=4,
        data_sharding="optimizer",
        gradient_dtype=dtype,
    )
    assert family.sync.bytes_per_layer == pytest.approx(3 / 4 * gradients * LAYER)
    assert family.gather.bytes_per_layer == pytest.approx(3 / 4 * weight * LAYER)
    plain = tables(training={"precision": precision}, data=4, num_micro_batches=4, gradient_dtype=dtype)
    assert plain.gather.bytes_per_layer == 0


@pytest.mark.parametrize(("sharding", "divisor"), [("none", 1), ("optimizer", 4)])
def test_the_optimizer_reads_and_writes_its_share(sharding: str, divisor: int) -> None:
    """30 bytes of each parameter in its share, 8 of every gradient it holds, at the memory's bandwidth."""
    family = tables(data=4, num_micro_batches=4, data_sharding=sharding)
    per_parameter = (30 / divisor + 8) / 2039e9
    assert family.optimizer_layer_s == pytest.approx(per_parameter * LAYER)
    assert family.optimizer_extra_s == pytest.approx([per_parameter * FIRST, per_parameter * LAST])


@pytest.mark.parametrize(
    ("nodes", "gpus", "between", "inside"), [(1, 2, 0, 1), (2, 2, 1, 1), (9, 4, 4, 3), (1, 1, 0, 0)]
)
def test_the_barrier_waits_for_a_tree_over_all_gpus(nodes: int, gpus: int, between: int, inside: int) -> None:
    """Steps there and back: along the GPUs of a node, then through the levels of a binary tree of nodes."""
    model = costs({"cluster/nodes/0/count": nodes, "cluster/nodes/0/gpus": gpus})
    expected = COLLECTIVE_BASE_S + 2 * (between * NODE_STEP_S + inside * LOCAL_STEP_S)
    assert model.tables(configuration((6,))).fixed_s == pytest.approx(expected, rel=1e-12)


def test_overlap_makes_buckets_and_hides_the_gather() -> None:
    shared = {"data": 2, "num_micro_batches": 8, "data_sharding": "optimizer"}
    plain = tables(**shared)
    assert (plain.sync_buckets, plain.gather_exposed) == (1, True)
    overlapped = tables(**shared, overlap={"gradient_reduce": True, "parameter_gather": True})
    parameters = 3 * LAYER + FIRST  # 90 million, buckets of 40
    assert 80e6 < parameters < 120e6
    assert (overlapped.sync_buckets, overlapped.gather_exposed) == (3, False)
    assert tables(overlap={"gradient_reduce": True}).sync_buckets == 1  # nothing to reduce with d = 1


def test_bounds_of_the_layer_split() -> None:
    free = tables((2, 2, 2))
    assert free.min_layers.tolist() == [1, 1, 1]
    assert free.max_layers.tolist() == [4, 4, 4]
    fixed = costs(search={"layers_per_stage": [1, 2, 3]}).tables(configuration((1, 2, 3)))
    assert fixed.min_layers.tolist() == fixed.max_layers.tolist() == [1, 2, 3]


def test_memory_bounds_the_layers_of_a_stage() -> None:
    model = costs({"cluster/gpu_types/gpu/memory": "4.8 GiB"}, model={"layers": 24})
    family = model.tables(configuration((8, 8, 8)))
    for stage in range(3):
        most = int(family.max_layers[stage])
        used = family.memory_extra_bytes[stage] + family.memory_layer_bytes[stage] * np.array(
            [most, most + 1]
        )
        assert used[0] <= family.memory_usable_bytes < used[1]
    assert family.memory_usable_bytes == pytest.approx(0.97 * 4.8 * 2**30)


def test_slots_are_whole_groups_of_usable_gpus() -> None:
    model = costs({"cluster/nodes/0/gpus": 4, "cluster/exclude": {"nodes": [], "gpus": ["node-001:2"]}})
    assert model.tables(configuration((3, 3), tensor=2)).slots.tolist() == [2, 1]
