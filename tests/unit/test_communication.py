"""Bytes and collectives as frameworks and NCCL make them (costs, sections 3 and 4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.communication import (
    LOCAL_STEP_S,
    ReplicaGroup,
    TensorGroup,
    bucket_count,
    context_ring,
    hop_bytes,
    ring_latency_s,
    sync_passes,
)
from pipette_milp.cost.compute import TaskTime
from tests.instance_cases import configuration, costs

RATE = 200e9
V = 2.0 * 512 * 1024
"""Bytes of one micro-batch's activation."""
NO_COMPUTE = TaskTime(0.0, 0.0, 0.0)
MUCH_COMPUTE = TaskTime(1.0, 2.0, 1.0)


def group(ranks: int, hidden: float = 0.0) -> TensorGroup:
    return TensorGroup(ranks, RATE, hidden)


def units(seconds: float, ranks: int, collectives: float, passes: int) -> float:
    """Transfer time in units of (t-1)/t * V / B, the latency of so many collectives taken off."""
    moved = seconds - collectives * ring_latency_s(ranks, passes)
    return moved / ((ranks - 1) / ranks * V / RATE)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ring_collectives(ranks: int) -> None:
    assert units(group(ranks).all_reduce_s(V), ranks, 1, 2) == pytest.approx(2, rel=1e-9)
    assert units(group(ranks).all_gather_s(V), ranks, 1, 1) == pytest.approx(1, rel=1e-9)
    assert ring_latency_s(ranks, 2) == pytest.approx(8.4e-6 + 2 * (ranks - 1) * 3.4e-6)


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_layer_without_sequence_parallel(ranks: int) -> None:
    """2 all-reduces forward; 2 backward, which hide under the weight gradient: 8 units in all."""
    bare = group(ranks).layer(V, NO_COMPUTE, sequence_parallel=False, recompute="none")
    assert units(bare.forward_s, ranks, 2, 2) == pytest.approx(4, rel=1e-9)
    assert units(bare.backward_s, ranks, 2, 2) == pytest.approx(4, rel=1e-9)
    hidden = group(ranks).layer(V, MUCH_COMPUTE, sequence_parallel=False, recompute="none")
    assert hidden.forward_s == bare.forward_s
    assert hidden.backward_s == 0.0


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_layer_with_sequence_parallel(ranks: int) -> None:
    """4 units forward and 6 backward: 10, not 8. Two gathers of the backward are never hidden."""
    bare = group(ranks).layer(V, NO_COMPUTE, sequence_parallel=True, recompute="none")
    assert units(bare.forward_s, ranks, 4, 1) == pytest.approx(4, rel=1e-9)
    assert units(bare.backward_s, ranks, 6, 1) == pytest.approx(6, rel=1e-9)
    hidden = group(ranks).layer(V, MUCH_COMPUTE, sequence_parallel=True, recompute="none")
    assert units(hidden.backward_s, ranks, 2, 1) == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("parallel", [False, True])
def test_full_recompute_repeats_the_forward(parallel: bool) -> None:
    times = {
        recompute: group(4).layer(V, MUCH_COMPUTE, sequence_parallel=parallel, recompute=recompute)
        for recompute in ("none", "selective", "full")
    }
    assert times["selective"] == times["none"]
    extra = times["full"].backward_s - times["none"].backward_s
    assert extra == pytest.approx(times["none"].forward_s, rel=1e-12)


def test_a_hidden_collective_leaves_what_is_longer_than_its_product() -> None:
    reduce = group(2).all_reduce_s(V)
    time = group(2).layer(V, TaskTime(0.0, 0.0, 2 * 0.25 * reduce), sequence_parallel=False, recompute="none")
    assert time.weight_gradient_s == pytest.approx(2 * 0.75 * reduce, rel=1e-12)
    gather = group(2).all_gather_s(V)
    products = TaskTime(10.0, 20.0, 2 * 0.25 * gather)  # element-wise work hides nothing
    time = group(2).layer(V, products, sequence_parallel=True, recompute="none")
    assert time.weight_gradient_s == pytest.approx(2 * 0.75 * gather, rel=1e-12)
    assert time.input_gradient_s == pytest.approx((2 + 2 * 0.75) * gather, rel=1e-12)


@pytest.mark.parametrize("parallel", [False, True])
def test_one_rank_has_no_collectives_and_full_overlap_hides_all(parallel: bool) -> None:
    for alone in (group(1), group(4, hidden=1.0)):
        parts = (
            alone.layer(V, NO_COMPUTE, sequence_parallel=parallel, recompute="full"),
            alone.embedding(V, sequence_parallel=parallel),
            alone.head(V, 4.0 * 512, sequence_parallel=parallel),
        )
        assert all(part.forward_s == part.backward_s == 0.0 for part in parts)


def test_embedding_and_head() -> None:
    plain, parallel = (group(4).embedding(V, sequence_parallel=option) for option in (False, True))
    assert units(plain.forward_s, 4, 1, 2) == pytest.approx(2, rel=1e-9)
    assert plain.backward_s == 0.0
    assert units(parallel.forward_s, 4, 1, 1) == pytest.approx(1, rel=1e-9)
    assert units(parallel.backward_s, 4, 1, 1) == pytest.approx(1, rel=1e-9)
    loss = 3 * group(4).all_reduce_s(4.0 * 512)
    plain, parallel = (group(4).head(V, 4.0 * 512, sequence_parallel=option) for option in (False, True))
    assert plain.forward_s == loss
    assert units(plain.backward_s, 4, 1, 2) == pytest.approx(2, rel=1e-9)
    assert units(parallel.forward_s - loss, 4, 1, 1) == pytest.approx(1, rel=1e-9)
    assert units(parallel.backward_s, 4, 2, 1) == pytest.approx(2, rel=1e-9)


def test_bytes_of_a_hop() -> None:
    """With sequence parallel each rank sends its share, without it t equal copies."""
    assert hop_bytes(V, 4, split=True) == V / 4
    assert hop_bytes(V, 4, split=False) == V


@pytest.mark.parametrize(
    ("training", "fields", "sent", "gathered"),
    [
        ({}, {}, 1.0, 0),
        ({}, {"sequence_parallel": True}, 1 / 4, 0),
        ({"scatter_gather_hops": True}, {}, 1 / 4, 1),
        ({"scatter_gather_hops": True}, {"sequence_parallel": True}, 1 / 4, 0),
    ],
)
def test_hops_of_the_tables(
    training: dict[str, Any], fields: dict[str, Any], sent: float, gathered: int
) -> None:
    model = costs({"cluster/nodes/0/gpus": 4}, training=training)
    tables = model.tables(configuration((3, 3), tensor=4, **fields))
    assert tables.hop_bytes == V * sent
    assert tables.hop_gather_s == pytest.approx(gathered * group(4).all_gather_s(V))


def test_interleaved_hops_have_the_same_size() -> None:
    one = costs().tables(configuration((3, 3)))
    four = costs().tables(
        configuration(
            (2, 2, 1, 1), pipeline=2, virtual_stages=2, schedule="interleaved", pipeline_transfers="async"
        )
    )
    assert four.hop_bytes == one.hop_bytes == V
    assert [four.boundary_cells(j) for j in range(3)] == [(0, 1), (1, 0), (0, 1)]


def test_gradients_of_every_stage_and_eight_bytes_against_six() -> None:
    """All-reduce 2(d-1)/d of 4 bytes; sharded (d-1)/d of 4 there and of 2 back: 8 against 6 a parameter."""
    group, extra = ReplicaGroup(4), np.array([7.0, 0.0])
    assert (sync_passes("none"), sync_passes("optimizer")) == ((2, 0), (1, 1))
    reduce, scatter = group.ring(2, 4.0, 100.0, extra), group.ring(1, 4.0, 100.0, extra)
    gather = group.ring(1, 2.0, 100.0, extra)
    assert reduce.bytes_per_layer == 100 * 8 * 3 / 4
    assert reduce.bytes_extra.tolist() == [7 * 8 * 3 / 4, 0.0]
    assert scatter.bytes_per_layer + gather.bytes_per_layer == 100 * 6 * 3 / 4
    assert (reduce.latency_per_node_step_s, reduce.latency_per_local_step_s) == (28e-6, 6.8e-6)
    assert (scatter.latency_per_node_step_s, scatter.latency_per_local_step_s) == (14e-6, 3.4e-6)


def test_one_replica_synchronises_nothing() -> None:
    for ring in (
        ReplicaGroup(1).ring(2, 4.0, 100.0, np.array([7.0])),
        ReplicaGroup(1, 4, 4.0).ring(1, 2.0, 100.0, np.array([7.0])),
        ReplicaGroup(4).ring(0, 2.0, 100.0, np.array([7.0])),
    ):
        assert ring.bytes_per_layer == ring.latency_s == ring.latency_per_node_step_s == 0.0
        assert not ring.bytes_extra.any()


def test_sharded_gradients_and_parameters_are_reduced_in_every_pass() -> None:
    assert sync_passes("gradients") == (0, 1)
    assert sync_passes("parameters") == (0, 0)


def test_a_ring_over_cells_of_several_ranks() -> None:
    """8 ranks of 4 replicas send 7/8 each way; split over the rings that the tables see, all steps
    counted."""
    whole, split = (ReplicaGroup(4, 2, split).ring(1, 4.0, 100.0, np.zeros(1)) for split in (1.0, 2.0))
    assert whole.bytes_per_layer == 2 * split.bytes_per_layer == 100 * 4 * 7 / 8
    assert whole.latency_s - ReplicaGroup(4).ring(1, 4.0, 100.0, np.zeros(1)).latency_s == pytest.approx(
        4 * LOCAL_STEP_S
    )


def test_a_ring_of_keys_and_values_hides_under_attention() -> None:
    """3 steps forward under a quarter of the attention each, twice the bytes backward."""
    bare = context_ring(3, 2e6, 1e9, 1e-5, (0.0, 0.0))
    assert bare.forward_s == pytest.approx(3 * (1e-5 + 2e-3))
    assert bare.input_gradient_s == pytest.approx(3 * (1e-5 + 4e-3))
    half = context_ring(3, 2e6, 1e9, 0.0, (4e-3, 8e-3))
    assert half.forward_s == pytest.approx(3 * 1e-3)
    assert context_ring(3, 2e6, 1e9, 1e-5, (1.0, 2.0)).backward_s == 0.0
    assert context_ring(0, 2e6, 1e9, 1e-5, (0.0, 0.0)).forward_s == 0.0


def test_buckets_of_an_overlapped_reduction() -> None:
    assert bucket_count(39e6, 1) == 1
    assert bucket_count(41e6, 1) == 2
    assert bucket_count(1e9, 100) == 10


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_the_tied_gradient_is_exchanged_by_first_and_last_stage(dtype: str, size: int) -> None:
    tables = costs().tables(configuration((3, 3), tensor=2, gradient_dtype=dtype))
    rows = 50_432 // 2  # padded to a multiple of 256
    assert tables.embedding_bytes == rows * 1024 * size
    assert costs().tables(configuration((6,))).embedding_bytes == 0.0
    untied = costs(model={"tied_embeddings": False})
    assert untied.tables(configuration((3, 3))).embedding_bytes == 0.0


def test_deepspeed_adds_up_the_16_bit_gradients_of_the_tied_embedding() -> None:
    """``allreduce_tied_weight_gradients`` reduces the weight's own gradient, also where others are fp32."""
    split = configuration((3, 3), gradient_dtype="fp32")
    training = {"framework": "deepspeed", "precision": "fp16", "gradient_dtype": "fp32"}
    rows = 50_304  # padded to a multiple of 128
    assert costs(training=training).tables(split).embedding_bytes == rows * 1024 * 2
    training["framework"] = "megatron"
    assert costs(training=training).tables(split).embedding_bytes == rows * 1024 * 4


def test_tensor_communication_is_a_part_of_the_tasks() -> None:
    """[V] seconds of a plan's own split: per layer, plus embedding on the first and head on the last."""
    model = costs({"cluster/nodes/0/gpus": 4})
    wanted = configuration((3, 2, 1), tensor=4, sequence_parallel=True)
    forward, backward = model.tensor_communication_s(wanted)
    first = group(4).embedding(V, sequence_parallel=True)
    last = group(4).head(V, 4.0 * 512, sequence_parallel=True)
    one_layer = forward[1] / 2
    assert forward[0] == pytest.approx(3 * one_layer + first.forward_s)
    assert forward[2] == pytest.approx(one_layer + last.forward_s)
    assert backward[0] == pytest.approx(3 * backward[1] / 2 + first.backward_s)
    tables = model.tables(wanted)
    layers = np.array([3, 2, 1])
    assert np.all(forward < tables.forward_layer_s * layers + tables.forward_extra_s)
    assert np.all(backward < tables.backward_layer_s * layers + tables.backward_extra_s)
    silent = model.tensor_communication_s(configuration((3, 2, 1)))
    assert not silent[0].any()
    assert not silent[1].any()
