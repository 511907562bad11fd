"""Compute of a layer, the embedding and the head as a roofline over products and element-wise kernels."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.cost.compute import (
    HOST_OVERHEAD_PER_TASK_S,
    MATRIX_EFFICIENCY,
    MEMORY_EFFICIENCY,
    TaskTime,
)
from tests.instance_cases import configuration, costs

TOKENS, H, F, A, S, V = 512, 1024, 4096, 16, 512, 50_304
FLOP_PER_S = 312e12 * MATRIX_EFFICIENCY
BYTES_PER_S = 2039e9 * MEMORY_EFFICIENCY
MATRICES = TOKENS * 24 * H * H / FLOP_PER_S
"""Forward products of the weight matrices of one layer."""
ATTENTION = TOKENS * 4 * S * H / FLOP_PER_S
"""Forward products of scores and values, the full square."""
SCORES = TOKENS * (2 * 2 + 2 * 2 + 1) * A * S / BYTES_PER_S
"""Softmax and dropout over the scores: read, write; read, write, mask."""
ELEMENT_WISE = TOKENS * (10 * 2 * H + 2 * H + 2 * F * 2) / BYTES_PER_S
"""Norms, residuals with dropout masks, activation function."""


def layer(tensor: int = 1, *, flash: bool = False, parallel: bool = False, **options: Any) -> TaskTime:
    compute = costs(training={"flash_attention": flash}).compute
    recompute = options.get("recompute", "none")
    return compute.layer(TOKENS, tensor, sequence_parallel=parallel, recompute=recompute)


def test_a_layer() -> None:
    time = layer()
    forward = MATRICES + ATTENTION + SCORES + ELEMENT_WISE
    assert time.forward_s == pytest.approx(forward, rel=1e-12)
    # products of activations have two gradients but no weights
    backward = 2 * MATRICES + 2 * ATTENTION + 2 * (SCORES + ELEMENT_WISE)
    assert time.backward_s == pytest.approx(backward, rel=1e-12)
    assert time.weight_gradient_s == pytest.approx(MATRICES, rel=1e-12)


def test_flash_attention_skips_the_masked_half_and_keeps_no_scores() -> None:
    assert layer(flash=True).forward_s == pytest.approx(MATRICES + ATTENTION / 2 + ELEMENT_WISE, rel=1e-12)


@pytest.mark.parametrize("flash", [False, True])
def test_recompute_repeats_the_core_of_attention_or_all_of_the_forward(flash: bool) -> None:
    none, selective, full = (
        layer(flash=flash, recompute=recompute) for recompute in ("none", "selective", "full")
    )
    core = ATTENTION / 2 if flash else ATTENTION + SCORES
    assert selective.backward_s - none.backward_s == pytest.approx(core, rel=1e-9)
    assert full.backward_s - none.backward_s == pytest.approx(none.forward_s, rel=1e-9)
    assert none.forward_s == selective.forward_s == full.forward_s
    assert none.weight_gradient_s == selective.weight_gradient_s == full.weight_gradient_s


def test_tensor_ranks_divide_products_and_sequence_parallel_the_rest() -> None:
    divided = layer(4)
    replicated = TOKENS * 22 * H / BYTES_PER_S
    shared = MATRICES + ATTENTION + SCORES + ELEMENT_WISE - replicated
    assert divided.forward_s == pytest.approx(shared / 4 + replicated, rel=1e-12)
    assert layer(4, parallel=True).forward_s == pytest.approx(layer().forward_s / 4, rel=1e-12)


def test_embedding_and_head() -> None:
    compute = costs().compute
    moved = 3 * TOKENS * H * 2 / BYTES_PER_S
    assert compute.embedding(TOKENS, sequence_parallel=False, tensor=4) == TaskTime(moved, 0.0, moved)
    shared = compute.embedding(TOKENS, sequence_parallel=True, tensor=4)
    assert shared.forward_s == pytest.approx(moved / 4)
    head = compute.head(TOKENS, 1)
    product = TOKENS * 2 * H * V / FLOP_PER_S
    assert head.forward_s == pytest.approx(product + TOKENS * V * 14 / BYTES_PER_S, rel=1e-12)
    assert head.backward_s == pytest.approx(2 * product + TOKENS * V * 6 / BYTES_PER_S, rel=1e-12)
    assert compute.head(TOKENS, 4).weight_gradient_s == pytest.approx(
        product / 4 * 50_688 / V, rel=1e-12
    )  # the vocabulary padded to a multiple of 512


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_tasks_of_the_tables_add_up(schedule: str) -> None:
    """One layer, embedding on the first stage, head on the last, a host overhead on every task."""
    model = costs()
    transfers = "async" if schedule == "zb-h1" else "exchange"
    tables = model.tables(configuration((3, 3), schedule=schedule, pipeline_transfers=transfers))
    one, head = layer(), model.compute.head(TOKENS, 1)
    assert tables.forward_layer_s == pytest.approx(one.forward_s, rel=1e-12)
    assert tables.forward_extra_s[1] == pytest.approx(head.forward_s + HOST_OVERHEAD_PER_TASK_S, rel=1e-12)
    backward = tables.backward_layer_s + tables.weight_gradient_layer_s
    assert backward == pytest.approx(one.backward_s, rel=1e-12)
    tasks = 2 if schedule == "zb-h1" else 1
    extra = tables.backward_extra_s[1] + tables.weight_gradient_extra_s[1]
    assert extra == pytest.approx(head.backward_s + tasks * HOST_OVERHEAD_PER_TASK_S, rel=1e-12)
    assert (tables.weight_gradient_layer_s > 0) == (schedule == "zb-h1")
