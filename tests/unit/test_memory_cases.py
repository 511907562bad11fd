"""Memory with sharding, context parallelism, experts and fp8, and what people ran into (field cases)."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.cost.memory import FP8_WEIGHT_BYTES, GATHERED_UNITS, StageMemory
from tests.detail_cases import MOE, ROPE, mixture
from tests.instance_cases import configuration, costs, preset_model

H, LAYER = 1024, 12 * 1024**2 + 13 * 1024
MIB = 2**20


def test_an_uneven_split_is_judged_by_its_heaviest_stage() -> None:
    """A split of 1, 2, 2, 3 was taken for the average (field case P08): 31.8 % too low there."""
    model = costs(model={"layers": 8})
    uneven, even = (
        [stage.peak_bytes for stage in model.stage_memory(configuration(split))]
        for split in ((1, 2, 2, 3), (2, 2, 2, 2))
    )
    assert max(uneven) == uneven[3] > even[3]
    assert uneven[0] < even[0]
    assert uneven[1:3] == even[1:3]
    assert max(uneven) > sum(uneven) / 4


def test_reserved_memory_lies_between_what_is_used_and_what_a_run_reported() -> None:
    """Megatron's report counts MiB; it reserved 1.14 times the 23,810 it used at most (field case P24)."""
    used, reserved = 23_810.12 * MIB, 27_094.00 * MIB
    assert used < StageMemory(used, 0.0, 0.0, 0.0, 0.0).reserved_peak_bytes <= reserved


def test_a_tied_embedding_is_on_both_ends_of_the_pipeline() -> None:
    """262,668,288 weights, 501 MiB in bf16, once with one stage, twice with several (field case H11)."""
    model = costs(model=preset_model("llama-3.2-1b"))
    weights = [
        sum(stage.weights_bytes for stage in model.stage_memory(configuration(split)))
        for split in ((16,), (8, 8), (4, 4, 4, 4))
    ]
    assert 262_668_288 == 128_256 * 2048
    assert weights[0] == 2 * 1_235_814_400
    assert weights[1] - weights[0] == weights[2] - weights[0] == 2 * 262_668_288


def test_padding_is_part_of_the_memory() -> None:
    """151,669 rows become 152,064 with tensor degree 4 (field case H09)."""
    model = costs({"cluster/nodes/0/gpus": 4}, model={"vocab_size": 151_669})
    (stage,) = model.stage_memory(configuration((6,), tensor=4))
    assert stage.weights_bytes == 2 * model.transformer.layer_parameters(4) * 6 + 2 * (
        152_064 // 4 * H + 512 * H + 2 * H
    )


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [("none", 1, 1, 1), ("optimizer", 1, 1, 4), ("gradients", 1, 4, 4), ("parameters", 4, 4, 4)],
)
def test_sharding_divides_one_part_after_the_other(
    sharding: str, weights: int, gradients: int, optimizer: int
) -> None:
    model = costs({"cluster/nodes/0/gpus": 4})
    whole = model.stage_memory(configuration((3, 3), data=4))[1]
    shared = model.stage_memory(configuration((3, 3), data=4, data_sharding=sharding))[1]
    assert shared.weights_bytes == pytest.approx(whole.weights_bytes / weights)
    assert shared.gradients_bytes == pytest.approx(whole.gradients_bytes / gradients)
    assert shared.optimizer_bytes == pytest.approx(whole.optimizer_bytes / optimizer)
    assert shared.activations_bytes == whole.activations_bytes
    extra = {"gradients": 4 * LAYER, "parameters": GATHERED_UNITS * 2 * LAYER}.get(sharding, 0)
    assert shared.other_bytes - whole.other_bytes == extra


@pytest.mark.parametrize("context", [2, 4])
def test_a_context_group_shares_the_sequence_and_the_optimizer(context: int) -> None:
    model = costs({"cluster/nodes/0/gpus": 4}, model=ROPE, training={"flash_attention": True})
    one, several = (
        model.stage_memory(configuration((6,), context=c, data_sharding="optimizer"))[0] for c in (1, context)
    )
    assert several.activations_bytes == pytest.approx(one.activations_bytes / context)
    assert several.optimizer_bytes == pytest.approx(one.optimizer_bytes / context)
    assert several.weights_bytes == one.weights_bytes


def test_fp8_keeps_copies_of_the_weights_of_layers() -> None:
    peaks = {"bf16": "312 TFLOP/s", "fp8": "624 TFLOP/s"}
    found = [
        costs({"cluster/gpu_types/gpu/peak_flops": peaks}, training={"precision": precision}).stage_memory(
            configuration((3, 3))
        )[0]
        for precision in ("bf16", "fp8")
    ]
    assert found[1].other_bytes - found[0].other_bytes == FP8_WEIGHT_BYTES * 3 * 12 * H**2
    assert found[1].weights_bytes == found[0].weights_bytes


@pytest.mark.parametrize("expert", [1, 2, 4])
def test_experts_are_held_once_per_expert_group(expert: int) -> None:
    """Routed experts over the group, their optimiser state over the replicas of the group."""
    model = mixture(changes={"cluster/nodes/0/gpus": 4})
    (stage,) = model.stage_memory(configuration((6,), data=4, expert=expert, data_sharding="optimizer"))
    routed = 6 * MOE["experts"] * 2 * MOE["ffn_hidden_size"] * H
    routed += 6 * MOE["experts"] * (MOE["ffn_hidden_size"] + H)  # biases
    dense = model.transformer.parameters - routed + (50_304 - 50_257) * 2 * H
    assert stage.weights_bytes == pytest.approx(2 * (dense + routed / expert))
    assert stage.optimizer_bytes == pytest.approx(12 * (dense + routed) / 4)


def test_layers_without_experts_take_less() -> None:
    model = mixture(dense_first=3)
    first, last = (stage.weights_bytes for stage in model.stage_memory(configuration((3, 3))))
    assert last > first
    swapped: Any = mixture().stage_memory(configuration((3, 3)))
    assert swapped[0].weights_bytes > first
