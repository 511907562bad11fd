"""Memory of a stage, term by term (costs, section 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.memory import (
    CONTEXT_BYTES,
    FRAGMENTATION,
    GEMM_WORKSPACE_BYTES,
    StageMemory,
    static_bytes_per_parameter,
)
from pipette_milp.solvers.evaluation import stage_memory_bytes
from tests.instance_cases import configuration, costs, preset_model

H, A, S, TOKENS = 1024, 16, 512, 512
"""Shape of the small model; one sequence a micro-batch."""
LAYER = TOKENS * (34 * H + 5 * A * S)
"""Activations of one layer and micro-batch without flash attention, t = 1."""
LOGITS = 8 * TOKENS * 50_304
"""8 bytes a logit: bf16, the fp32 copy, the cast gradient; the vocabulary padded to 128."""


@pytest.mark.parametrize(
    ("precision", "gradients", "held", "sharded"),
    [
        ("bf16", "fp32", 18.0, 6.0 + 12 / 8),
        ("bf16", "bf16", 16.0, 4.0 + 12 / 8),
        ("fp16", "fp16", 20.0, 4.0 + 16 / 8),
        ("fp32", "fp32", 16.0, 8.0 + 8 / 8),
    ],
)
def test_bytes_of_a_parameter(precision: str, gradients: str, held: float, sharded: float) -> None:
    """The table of Megatron-LM's distributed-optimizer page, d = 8."""
    for wanted, sharding in ((held, "none"), (sharded, "optimizer"), (held / 8, "parameters")):
        static = static_bytes_per_parameter(precision, gradients, 8, sharding=sharding)  # type: ignore[arg-type]
        assert static.weights + static.gradients + static.optimizer == wanted
    halfway = static_bytes_per_parameter(precision, gradients, 8, sharding="gradients")
    whole = static_bytes_per_parameter(precision, gradients, 8, sharding="none")
    assert (halfway.weights, halfway.gradients) == (whole.weights, whole.gradients / 8)
    assert halfway.optimizer == whole.optimizer / 8


def stages(
    layers: tuple[int, ...], changes: dict[str, Any] | None = None, **fields: Any
) -> list[StageMemory]:
    return costs(changes).stage_memory(configuration(layers, **fields))


def test_everything_on_one_gpu() -> None:
    (memory,) = stages((6,))
    parameters = 6 * (12 * H**2 + 13 * H) + 50_304 * H + 512 * H + 2 * H
    assert memory.weights_bytes == 2 * parameters
    assert memory.gradients_bytes == 4 * parameters
    assert memory.optimizer_bytes == 12 * parameters
    first = TOKENS * (8 + H)  # token ids and the embedding's dropout mask
    last = LOGITS + 2 * TOKENS * H
    assert memory.activations_bytes == 6 * LAYER + first + last
    assert memory.other_bytes == GEMM_WORKSPACE_BYTES


def test_first_middle_and_last_stage() -> None:
    """Stage s keeps p - s micro-batches; embedding and its mask are on the first, logits on the last."""
    first, middle, last = (stage.activations_bytes for stage in stages((2, 2, 2)))
    assert first == 3 * (2 * LAYER + TOKENS * (8 + H))
    assert middle == 2 * 2 * LAYER
    assert last == 2 * LAYER + LOGITS + 2 * TOKENS * H


def test_the_tied_matrix_is_on_both_ends() -> None:
    first, middle, last = (stage.weights_bytes / 2 for stage in stages((2, 2, 2)))
    layers = 2 * (12 * H**2 + 13 * H)
    assert middle == layers
    assert first == layers + (50_304 + 512) * H
    assert last == layers + 50_304 * H + 2 * H


def test_few_micro_batches_are_all_that_is_in_flight() -> None:
    enough, one = stages((3, 3), num_micro_batches=16), stages((3, 3), num_micro_batches=1)
    assert enough[0].activations_bytes == 2 * one[0].activations_bytes
    assert enough[1] == one[1]


def test_full_recompute_keeps_inputs_and_one_layer_at_full_size() -> None:
    first, last = stages((3, 3), recompute="full")
    assert first.activations_bytes == 2 * 3 * 2 * TOKENS * H + LAYER + 2 * TOKENS * (8 + H)
    assert last.activations_bytes == 3 * 2 * TOKENS * H + LAYER + LOGITS + 2 * TOKENS * H


def test_selective_recompute_drops_the_scores() -> None:
    kept, dropped = stages((2, 2, 2)), stages((2, 2, 2), recompute="selective")
    assert kept[1].activations_bytes - dropped[1].activations_bytes == 2 * 2 * TOKENS * 5 * A * S


def test_sequence_parallel_divides_all_of_a_layer_and_adds_a_gather_buffer() -> None:
    changes = {"cluster/nodes/0/gpus": 4}
    plain = stages((2, 2, 2), changes, tensor=4)
    parallel = stages((2, 2, 2), changes, tensor=4, sequence_parallel=True)
    assert plain[1].activations_bytes == 2 * 2 * TOKENS * (10 * H + 24 * H / 4 + 5 * A * S / 4)
    assert parallel[1].activations_bytes == 2 * 2 * LAYER / 4
    assert parallel[1].other_bytes - plain[1].other_bytes == 2 * TOKENS * H


def test_sharding_divides_the_optimizer_only() -> None:
    whole, sharded = stages((6,), data=4)[0], stages((6,), data=4, data_sharding="optimizer")[0]
    assert sharded.optimizer_bytes == whole.optimizer_bytes / 4
    assert sharded.gradients_bytes == whole.gradients_bytes
    assert sharded.weights_bytes == whole.weights_bytes


def test_three_figures() -> None:
    memory = StageMemory(1e9, 2e9, 6e9, 3e9, 1e9, communication_bytes=2e9)
    assert memory.allocated_peak_bytes == 13e9
    assert memory.reserved_peak_bytes == pytest.approx(13e9 * (1 + FRAGMENTATION))
    assert memory.peak_bytes == pytest.approx(memory.reserved_peak_bytes + 2e9 + CONTEXT_BYTES)
    assert 1.028 < memory.reserved_peak_bytes / memory.allocated_peak_bytes < 1.069


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("layers", "fields"),
    [
        ((6,), {}),
        ((1, 4, 1), {}),
        ((3, 2, 1), {"data": 2, "data_sharding": "optimizer"}),
        ((3, 3), {"schedule": "zb-h1", "pipeline_transfers": "async"}),
        ((1, 1, 1, 3), {"pipeline": 2, "virtual_stages": 2, "schedule": "interleaved"}),
    ],
)
def test_the_linear_form_of_the_tables_is_exact(
    layers: tuple[int, ...], fields: dict[str, Any], recompute: str
) -> None:
    model = costs()
    wanted = configuration(layers, recompute=recompute, **fields)
    linear = stage_memory_bytes(model.tables(wanted), np.array(layers))
    exact = [stage.peak_bytes for stage in model.stage_memory(wanted)]
    assert linear == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"micro_batch": 1}, {"micro_batch": 2}),
        ({"recompute": "full"}, {"recompute": "selective"}),
        ({"recompute": "selective"}, {"recompute": "none"}),
        ({"tensor": 2}, {"tensor": 1}),
        ({"tensor": 2, "sequence_parallel": True}, {"tensor": 2}),
        ({"data": 4, "data_sharding": "optimizer"}, {"data": 2, "data_sharding": "optimizer"}),
        ({"num_micro_batches": 1}, {"num_micro_batches": 2}),
        ({"gradient_dtype": "bf16"}, {"gradient_dtype": "fp32"}),
    ],
)
def test_more_of_anything_takes_more_memory(less: dict[str, Any], more: dict[str, Any]) -> None:
    model = costs(model=preset_model("gpt-2.5b"))
    small = model.stage_memory(configuration((26, 26), **less))
    large = model.stage_memory(configuration((26, 26), **more))
    assert small[0].peak_bytes < large[0].peak_bytes
    assert all(a.peak_bytes <= b.peak_bytes for a, b in zip(small, large, strict=True))
