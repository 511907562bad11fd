"""What is legal, and how refusals read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pipette_milp.certificates.proof import family_key
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.legality import check_legal, data_refusal
from pipette_milp.schema.plan import Configuration
from pipette_milp.search_space import (
    SearchSpace,
    blocking_reason,
    default_split,
    enumerate_space,
    memory_refusal,
)
from tests.instance_cases import configuration, costs, preset_model

SEVEN_NODES = {"cluster/nodes/0/count": 7, "cluster/nodes/0/gpus": 8}


def space(changes: dict[str, Any] | None = None, **sections: Any) -> SearchSpace:
    return enumerate_space(costs(changes, **sections))


def reasons(found: SearchSpace) -> list[str]:
    return [refusal.reason for refusal in found.refusals]


def degrees(found: SearchSpace) -> set[tuple[int, int, int]]:
    every = (tables.configuration for tables in found.families)
    return {(c.pipeline, c.tensor, c.data) for c in every}


# ---------------------------------------------------------------- enumeration
def test_all_gpus_in_every_shape() -> None:
    """4 GPUs on 2 nodes, 6 layers: every product of 4 with a tensor group inside a node."""
    assert degrees(space()) == {(1, 1, 4), (2, 1, 2), (4, 1, 1), (1, 2, 2), (2, 2, 1)}


def test_every_family_once_and_each_legal() -> None:
    model = costs(
        {"cluster/nodes/0/gpus": 4},
        training={
            "sequence_parallel": [True, False],
            "recompute": ["none", "selective", "full"],
            "data_sharding": ["none", "optimizer"],
        },
        search={"virtual_stages": [1, 2], "schedules": ["1f1b", "gpipe", "interleaved", "zb-h1"]},
    )
    found = enumerate_space(model)
    keys = [family_key(tables.configuration) for tables in found.families]
    assert len(keys) == len(set(keys)) > 100
    for tables in found.families:
        check_legal(model, tables.configuration)
        assert tables.configuration.num_gpus == 8
        assert tables.min_layers.sum() <= 6 <= tables.max_layers.sum()


def test_options_without_effect_are_not_listed_twice() -> None:
    found = space(training={"sequence_parallel": [True, False], "data_sharding": ["none", "optimizer"]})
    for tables in found.families:
        c = tables.configuration
        assert c.tensor > 1 or not c.sequence_parallel
        assert c.data > 1 or c.data_sharding == "none"
    options = [
        (c.sequence_parallel, c.data_sharding)
        for c in (tables.configuration for tables in found.families)
        if (c.pipeline, c.tensor, c.data, c.micro_batch) == (1, 2, 2, 1)
    ]
    assert sorted(options) == sorted(itertools.product([False, True], ["none", "optimizer"]))


def test_micro_batches_divide_a_replica_s_share() -> None:
    found = space(search={"pipeline": 2, "tensor": 1})
    assert sorted(tables.configuration.micro_batch for tables in found.families) == [1, 2, 4, 8]
    assert all(tables.configuration.global_batch_size == 16 for tables in found.families)


def test_several_global_batches() -> None:
    found = space(training={"global_batch_size": [16, 24]}, search={"micro_batch": 1})
    assert {tables.configuration.global_batch_size for tables in found.families} == {16, 24}


def test_fewer_gpus_where_that_is_allowed() -> None:
    found = space({"cluster/nodes/0/count": 3, "cluster/nodes/0/gpus": 1}, search={"use_all_gpus": False})
    assert degrees(found) == {(1, 1, 1), (1, 1, 2), (2, 1, 1), (3, 1, 1)}
    assert "global batch 16 is no multiple of the data degree 3; 15 or 18 would be" in reasons(found)


def test_limits_and_pins() -> None:
    assert degrees(space(search={"tensor": [2], "data": [2]})) == {(1, 2, 2)}
    assert degrees(space(search={"fix": {"pipeline": 4}})) == {(4, 1, 1)}
    found = space(search={"fix": {"micro_batch": 3}})
    assert not found.families
    assert "4 sequences per replica are no multiple of micro-batch 3" in blocking_reason(found)


def test_groups_that_leave_gpus_idle() -> None:
    changes = {"cluster/exclude": {"nodes": [], "gpus": ["node-001:1"]}}
    assert "groups of 2 leave 1 of 3 GPUs idle; search.use_all_gpus = false allows it" in reasons(
        space(changes, search={"tensor": 2})
    )
    allowed = space(changes, search={"tensor": 2, "use_all_gpus": False})
    assert degrees(allowed) == {(1, 2, 1)}


# ---------------------------------------------------------------- layer splits
@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(30, 4, (7, 8, 8, 7)), (80, 7, (11, 11, 12, 12, 12, 11, 11)), (64, 3, (21, 22, 21)), (6, 6, (1,) * 6)],
)
def test_the_default_split_loses_no_layer(layers: int, stages: int, split: tuple[int, ...]) -> None:
    """30 layers over 4 stages are 30 layers, not 28 (field case P01)."""
    assert default_split(costs(model={"layers": layers}), stages) == split
    assert sum(split) == layers


def test_thirty_layers_on_four_stages() -> None:
    found = space(model={"layers": 30}, search={"pipeline": 4})
    assert found.families
    for tables in found.families:
        assert tables.total_layers == 30
        assert sum(tables.configuration.layers_per_stage) == 30


def test_more_stages_than_layers() -> None:
    found = space(model={"layers": 3}, search={"pipeline": 4})
    assert not found.families
    assert "3 layers cannot fill 4 stages" in reasons(found)


def test_a_fixed_split() -> None:
    found = space(search={"layers_per_stage": [4, 2]})
    assert {c.configuration.layers_per_stage for c in found.families} == {(4, 2)}
    for tables in found.families:
        assert tables.min_layers.tolist() == tables.max_layers.tolist() == [4, 2]
    assert "the fixed split has 2 stages, not 4" in reasons(found)


# ---------------------------------------------------------------- refusals
def test_heads_that_no_allowed_degree_divides() -> None:
    found = space({"cluster/nodes/0/gpus": 6, "cluster/nodes/0/count": 1}, search={"tensor": [3, 6]})
    assert not found.families
    text = blocking_reason(found)
    assert "16 heads are no multiple of tensor degree 3" in text
    assert "16 heads are no multiple of tensor degree 6" in text


@pytest.mark.parametrize(
    ("model", "tensor", "says"),
    [
        ({}, 16, "exceeds the 8 GPUs of a node"),
        ({"attention_heads": 12, "head_dim": 64}, 8, "12 heads are no multiple of tensor degree 8"),
        (
            {"attention_heads": 24, "kv_heads": 6, "head_dim": 64},
            4,
            "6 key/value heads are no multiple of tensor degree 4",
        ),
        (
            {"attention_heads": 24, "kv_heads": 3, "head_dim": 64},
            8,
            "tensor degree 8 is no multiple of the 3 key/value heads",
        ),
        ({"ffn_hidden_size": 4100}, 8, "MLP width 4100 is no multiple of tensor degree 8"),
    ],
)
def test_tensor_degrees(model: dict[str, Any], tensor: int, says: str) -> None:
    found = space({"cluster/nodes/0/gpus": 8}, model=model, search={"tensor": tensor})
    assert not found.families
    assert says in blocking_reason(found)


def test_a_vocabulary_rules_out_no_degree() -> None:
    """151,669 is odd; it is padded (field case H09)."""
    found = space({"cluster/nodes/0/gpus": 8}, model={"vocab_size": 151_669})
    assert {c.tensor for c in (tables.configuration for tables in found.families)} == {1, 2, 4, 8}


@pytest.mark.parametrize(("options", "left"), [([True], set()), ([True, False], {False})])
def test_a_sequence_that_cannot_be_divided(options: list[bool], left: set[bool]) -> None:
    found = space(
        model={"sequence_length": 511}, training={"sequence_parallel": options}, search={"tensor": 2}
    )
    assert {tables.configuration.sequence_parallel for tables in found.families} == left
    assert "sequence parallel: sequence length 511 is no multiple of tensor degree 2" in reasons(found)


def test_fewer_sequences_than_replicas() -> None:
    found = space(training={"global_batch_size": 2}, search={"data": [4]})
    assert not found.families
    assert "global batch 2 is no multiple of the data degree 4; 4 would be" in blocking_reason(found)


def test_seven_nodes() -> None:
    """56 GPUs after a node was lost, 80 layers, batch 512 (field case P22)."""
    model = costs(
        {**SEVEN_NODES, "training/global_batch_size": 512},
        model=preset_model("llama-3.1-70b", 4096),
        training={"flash_attention": True, "recompute": "full", "data_sharding": "optimizer"},
    )
    found = enumerate_space(model)
    assert found.families
    assert all(tables.data % 7 for tables in found.families)
    assert any(
        reason.startswith("global batch 512 is no multiple of the data degree 7; 511 or 518 would be")
        for reason in reasons(found)
    )
    seven = [tables for tables in found.families if tables.pipeline == 7]
    assert {(tables.tensor, tables.data) for tables in seven} >= {(8, 1), (4, 2)}
    assert all(sum(tables.configuration.layers_per_stage) == 80 for tables in seven)


@pytest.mark.parametrize(("batch", "data"), [(512, 8), (1, 1)])
def test_batches_that_divide(batch: int, data: int) -> None:
    assert data_refusal(batch, data) is None


# ---------------------------------------------------------------- memory
def qwen_on_six_gpus(gpus: dict[str, Any] | None = None) -> CostModel:
    """32 billion parameters, 40 heads, 6 GPUs of 16 GB in one node (field case H06)."""
    qwen = {
        "name": "qwen1.5-32b",
        "layers": 64,
        "hidden_size": 5120,
        "ffn_hidden_size": 27_392,
        "attention_heads": 40,
        "kv_heads": 8,
        "vocab_size": 152_064,
        "gated_mlp": True,
        "tied_embeddings": False,
        "position_embedding": "rope",
        "normalization": "rmsnorm",
        "biases": False,
        "qkv_bias": True,
    }
    changes = {
        "cluster/nodes/0": {"name": "node-{:03d}", "count": 1, "gpu_type": "gpu", "gpus": 6},
        "cluster/network/inter_node": None,
        "cluster/gpu_types/gpu/memory": "14.6 GiB",
    }
    return costs(
        {**changes, **(gpus or {})},
        model=qwen,
        training={
            "global_batch_size": 12,
            "recompute": "full",
            "flash_attention": True,
            "data_sharding": "optimizer",
        },
    )


def test_a_model_that_fits_nowhere_names_the_shortfall() -> None:
    found = enumerate_space(qwen_on_six_gpus())
    assert not found.families
    assert "40 heads are no multiple of tensor degree 6" in reasons(found)
    text = blocking_reason(found)
    assert text.startswith("infeasible: memory: stage ")
    assert "of 14.6 GiB is usable" in text
    short = min(r.memory_short_bytes for r in found.refusals if r.memory_short_bytes is not None)
    # 32.5e9 parameters of 18 bytes on 6 GPUs, less than 16 GB each
    assert 32.5e9 * 18 / 6 - 16e9 < short < 32.5e9 * 18 / 6 * 1.5


def test_the_shortfall_is_what_is_missing() -> None:
    """With as much more memory as the nearest configuration misses, it fits; with 2 % less it does not."""
    model = qwen_on_six_gpus()
    short = min(
        refusal.memory_short_bytes
        for refusal in enumerate_space(model).refusals
        if refusal.memory_short_bytes is not None
    )
    needed = (model.usable_bytes_of_type[0] + short) / 0.97
    enough = enumerate_space(qwen_on_six_gpus({"cluster/gpu_types/gpu/memory": needed * (1 + 1e-9)}))
    assert enough.families
    less = enumerate_space(qwen_on_six_gpus({"cluster/gpu_types/gpu/memory": needed * 0.98}))
    assert not less.families


def test_memory_is_judged_in_the_best_split() -> None:
    """Logits fill the last stage, so an even split does not fit, an uneven one does: in the least memory, to
    a tenth of a GiB, that anything fits in."""
    for tenths in range(10, 200):
        model = costs(
            {"cluster/gpu_types/gpu/memory": f"{tenths / 10} GiB"},
            model={"layers": 8, "vocab_size": 250_000},
            search={"pipeline": 2, "tensor": 2, "micro_batch": 1},
        )
        families = enumerate_space(model).families
        if families:
            break
    (tables,) = families
    even = [stage.peak_bytes for stage in model.stage_memory(tables.configuration)]
    assert max(even) > model.usable_bytes_of_type[0]
    assert memory_refusal(model, tables) is None


# ---------------------------------------------------------------- one configuration
@pytest.mark.parametrize(
    ("layers", "fields", "path", "says"),
    [
        ((3, 3), {"data": 2, "num_micro_batches": 7}, "num_micro_batches", "the global batch is 16"),
        ((3, 3), {"data": 3, "num_micro_batches": 5}, "num_micro_batches", "15 or 18 would be"),
        ((6,), {"data": 4, "micro_batch": 3, "num_micro_batches": 1}, "num_micro_batches", "micro-batch 3"),
        ((7, 7, 7, 7), {}, "stages", "hold 28 layers, the model has 6"),
        ((3, 3), {"pipeline": 4}, "stages", "has 2 entries, pipeline 4 x virtual stages 1 needs 4"),
        ((6,), {"tensor": 3}, "tensor", "exceeds the 2 GPUs of a node"),
        ((3, 3), {"data": 8, "num_micro_batches": 2}, "data", "2 x 1 x 8 needs 16 GPUs, 4 are usable"),
        ((3, 3), {"schedule": "interleaved", "pipeline_transfers": "async"}, "schedule", "virtual_stages"),
        ((3, 3), {"schedule": "zb-h1"}, "schedule", "no pipeline_transfers 'exchange'"),
        ((6,), {"context": 2}, "context", "needs training.flash_attention"),
        ((6,), {"context": 3}, "context", "tensor 1 x context 3 exceeds the 2 GPUs of a node"),
        ((6,), {"expert": 2}, "expert", "the model has no experts"),
        ((6,), {"gradient_dtype": "fp16"}, "gradient_dtype", "expected bf16 or fp32"),
    ],
)  # fmt: skip
def test_illegal_configurations(
    layers: tuple[int, ...], fields: dict[str, Any], path: str, says: str
) -> None:
    with pytest.raises(IllegalConfigurationError) as caught:
        check_legal(costs(), configuration(layers, **fields))
    problems = [problem for problem in caught.value.problems if problem.path == path]
    assert len(problems) == 1
    assert says in problems[0].message


def test_ends_of_the_model_are_on_the_ends_of_the_pipeline() -> None:
    stages = [
        {"embedding": False, "layers": 3, "head": False},
        {"embedding": True, "layers": 3, "head": True},
    ]
    wrong = Configuration.model_validate(
        {"pipeline": 2, "tensor": 1, "data": 2, "micro_batch": 1, "num_micro_batches": 8, "stages": stages}
    )
    with pytest.raises(IllegalConfigurationError, match="first stage must hold the embedding"):
        check_legal(costs(), wrong)


def test_tensor_groups_need_room_on_the_nodes() -> None:
    """3 GPUs a node: 6 in all, but only 2 groups of 2."""
    model = costs({"cluster/nodes/0/gpus": 3})
    with pytest.raises(IllegalConfigurationError, match="needs 3 tensor groups, the nodes have room for 2"):
        check_legal(model, configuration((2, 2, 2), tensor=2))


def test_all_faults_at_once_and_memory_is_none() -> None:
    with pytest.raises(IllegalConfigurationError) as caught:
        check_legal(costs(), configuration((4, 4), tensor=3, num_micro_batches=5))
    assert {problem.path for problem in caught.value.problems} == {"tensor", "stages", "num_micro_batches"}
    tiny_memory = costs({"cluster/gpu_types/gpu/memory": "1 GiB"})
    check_legal(tiny_memory, configuration((3, 3), data=2, num_micro_batches=8))
    check_legal(tiny_memory, configuration((6, 0), data=2, num_micro_batches=8))
