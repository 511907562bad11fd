"""Compute of a layer, the embedding and the head as a roofline over products and element-wise kernels."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.cost.compute import ELEMENTWISE_KERNELS, SCORE_KERNELS, ComputeModel, TaskTime
from pipette_milp.schema.constants import default_constants
from tests.instance_cases import configuration, costs

TOKENS, H, F, A, S, V = 512, 1024, 4096, 16, 512, 50_304
MODEL = costs().compute
PRODUCT, TRAFFIC = MODEL.products.product_s, MODEL.products.traffic_s
WEIGHTS = ((H, 3 * H), (H, H), (H, F), (F, H))
"""Inner dimension and columns of the layer's products."""
FORWARD = sum(PRODUCT(TOKENS, k, n) for k, n in WEIGHTS)
INPUT = sum(PRODUCT(TOKENS, n, k) for k, n in WEIGHTS)
WEIGHT = sum(PRODUCT(k, TOKENS, n) + TRAFFIC(k * n * (2 + 4 + 4)) for k, n in WEIGHTS)
"""Each product and its sum into the fp32 buffer: gradient read, buffer read and written."""
SCORES = PRODUCT(S, H / A, S, A)
VALUES = PRODUCT(S, S, H / A, A)
PASSES = MODEL.profile.elementwise_passes
SOFTMAX = TRAFFIC(PASSES * TOKENS * (2 * 2 + 2 * 2 + 1) * A * S)
"""Softmax and dropout over the scores: read, write; read, write, mask."""
NORMS = TRAFFIC(PASSES * TOKENS * (10 * 2 * H + 2 * H)) + ELEMENTWISE_KERNELS * MODEL.constants.kernel_s
"""Norms, residuals with dropout masks; and what starting every kernel costs."""
ACTIVATION = TRAFFIC(PASSES * TOKENS * 2 * F * 2)
ELEMENT_WISE = NORMS + ACTIVATION


def without_host(model: ComputeModel) -> ComputeModel:
    """The same device with a host that needs no time."""
    profile = model.profile.model_copy(update={"launch_s": 0.0})
    return ComputeModel(model.transformer, model.gpu, model.training, model.constants, profile)


def layer(tensor: int = 1, *, flash: bool = False, parallel: bool = False, **options: Any) -> TaskTime:
    compute = without_host(costs(training={"flash_attention": flash}).compute)
    recompute = options.get("recompute", "none")
    return compute.layer(TOKENS, tensor, sequence_parallel=parallel, recompute=recompute)


def test_a_layer() -> None:
    time = layer()
    assert time.forward_s == pytest.approx(FORWARD + SCORES + VALUES + SOFTMAX + ELEMENT_WISE, rel=1e-12)
    # products of activations have two gradients but no weights
    backward = INPUT + SCORES + 3 * VALUES + 2 * (SOFTMAX + ELEMENT_WISE)
    assert time.input_gradient_s == pytest.approx(backward, rel=1e-12)
    assert time.weight_gradient_s == pytest.approx(WEIGHT, rel=1e-12)


def test_flash_attention_skips_the_masked_half_and_keeps_no_scores() -> None:
    flop = TOKENS * 2 * S * H
    core = MODEL.products.flash_s(flop, 0.0, MODEL.profile.attention_efficiency)
    assert layer(flash=True).forward_s == pytest.approx(FORWARD + core + ELEMENT_WISE, rel=1e-12)
    speed = 312e12 * default_constants().efficiency_of(None) * MODEL.profile.attention_efficiency
    assert core == pytest.approx(flop / speed + default_constants().kernel_s, rel=1e-12)


@pytest.mark.parametrize("flash", [False, True])
def test_recompute_repeats_the_core_of_attention_or_all_of_the_forward(flash: bool) -> None:
    none, selective, full = (
        layer(flash=flash, recompute=recompute) for recompute in ("none", "selective", "full")
    )
    core = (
        MODEL.products.flash_s(TOKENS * 2 * S * H, 0.0, MODEL.profile.attention_efficiency)
        if flash
        else SCORES + VALUES + SOFTMAX
    )
    assert selective.backward_s - none.backward_s == pytest.approx(core, rel=1e-9)
    assert full.backward_s - none.backward_s == pytest.approx(none.forward_s, rel=1e-9)
    assert none.forward_s == selective.forward_s == full.forward_s
    assert none.weight_gradient_s == selective.weight_gradient_s == full.weight_gradient_s


def test_tensor_ranks_divide_products_and_sequence_parallel_the_rest() -> None:
    one, four, shared = layer(), layer(4), layer(4, parallel=True)
    assert one.forward_s / 4 < shared.forward_s < four.forward_s < one.forward_s
    # what sequence parallel divides: norms and residual additions
    moved = NORMS - ELEMENTWISE_KERNELS * MODEL.constants.kernel_s
    assert four.forward_s - shared.forward_s == pytest.approx(moved * 3 / 4, rel=1e-9)


def test_a_layer_lasts_as_long_as_the_host_needs_to_issue_it() -> None:
    model = costs().compute
    slow = model.profile.model_copy(update={"launch_s": 1e-4})
    host = ComputeModel(model.transformer, model.gpu, model.training, model.constants, slow)
    time = host.layer(TOKENS, 1, sequence_parallel=False, recompute="full")
    kernels = 4 + ELEMENTWISE_KERNELS + 2 + SCORE_KERNELS
    assert time.forward_s == pytest.approx(kernels * 1e-4, rel=1e-12)
    assert time.input_gradient_s == pytest.approx(2 * kernels * 1e-4, rel=1e-12)  # the forward once more
    assert time.weight_gradient_s == pytest.approx(4e-4, rel=1e-12)


def test_embedding_and_head() -> None:
    compute = costs().compute
    moved = TRAFFIC(3 * TOKENS * H * 2)
    table = 50_688 // 4 * H
    replicated = compute.embedding(TOKENS, sequence_parallel=False, tensor=4)
    assert replicated.forward_s == pytest.approx(moved)
    assert replicated.backward_s == pytest.approx(moved + TRAFFIC(table * (2 + 4 + 4)))
    shared = compute.embedding(TOKENS, sequence_parallel=True, tensor=4)
    assert shared.forward_s == pytest.approx(moved / 4)
    head = compute.head(TOKENS, 1)
    assert head.forward_s == pytest.approx(PRODUCT(TOKENS, H, V) + TRAFFIC(TOKENS * V * 14), rel=1e-12)
    assert head.input_gradient_s == pytest.approx(PRODUCT(TOKENS, V, H) + TRAFFIC(TOKENS * V * 6), rel=1e-12)
    assert compute.head(TOKENS, 4).weight_gradient_s == pytest.approx(
        PRODUCT(H, TOKENS, 50_688 / 4) + TRAFFIC(50_688 / 4 * H * 10), rel=1e-12
    )  # the vocabulary padded to a multiple of 512


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_tasks_of_the_tables_add_up(schedule: str) -> None:
    """One layer, embedding on the first stage, head on the last, a host overhead on every task."""
    model = costs()
    overhead = model.compute.host_overhead_per_task_s
    transfers = "async" if schedule == "zb-h1" else "exchange"
    tables = model.tables(configuration((3, 3), schedule=schedule, pipeline_transfers=transfers))
    one = model.compute.layer(TOKENS, 1, sequence_parallel=False, recompute="none")
    head = model.compute.head(TOKENS, 1)
    assert tables.forward_layer_s == pytest.approx(one.forward_s, rel=1e-12)
    assert tables.forward_extra_s[1] == pytest.approx(head.forward_s + overhead, rel=1e-12)
    backward = tables.backward_layer_s + tables.weight_gradient_layer_s
    assert backward == pytest.approx(one.backward_s, rel=1e-12)
    tasks = 2 if schedule == "zb-h1" else 1
    extra = tables.backward_extra_s[1] + tables.weight_gradient_extra_s[1]
    assert extra == pytest.approx(head.backward_s + tasks * overhead, rel=1e-12)
    assert (tables.weight_gradient_layer_s > 0) == (schedule == "zb-h1")
