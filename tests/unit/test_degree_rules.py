"""Rules of context, expert and sharding degrees; the search space lists them only when asked."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.legality import check_legal
from pipette_milp.search_space import enumerate_space
from tests.detail_cases import FLASH, mixture, two_types
from tests.instance_cases import configuration, costs

FOUR = {"cluster/nodes/0/gpus": 4}


def refusals(model: CostModel, layers: tuple[int, ...], **fields: Any) -> dict[str, str]:
    try:
        check_legal(model, configuration(layers, **fields))
    except IllegalConfigurationError as error:
        return {problem.path: problem.message for problem in error.problems}
    return {}


@pytest.mark.parametrize(
    ("expert", "legal"), [(1, True), (2, True), (3, True), (6, True), (8, False), (12, True), (7, False)]
)
def test_expert_degrees_divide_the_experts(expert: int, legal: bool) -> None:
    """60 experts: 1, 2, 3, 4, 5, 6, 10, 12, 15 and so on, but not 8 (field case H08)."""
    moe = {"experts": 60, "top_k": 4, "ffn_hidden_size": 1024}
    model = mixture(
        model={"moe": moe}, training={"global_batch_size": 168}, changes={"cluster/nodes/0/count": 84}
    )
    found = refusals(model, (6,), data=168, expert=expert, num_micro_batches=1)
    if legal:
        assert "expert" not in found
    else:
        assert f"60 experts are no multiple of expert degree {expert}" in found["expert"]


@pytest.mark.parametrize(
    ("model", "fields", "path", "says"),
    [
        (mixture(), {"data": 2, "expert": 4, "num_micro_batches": 8}, "expert", "does not divide data x"),
        (mixture(), {"tensor": 2, "data": 2, "expert": 2, "num_micro_batches": 8}, "expert", "needs seq"),
        (mixture(changes=FOUR), {"context": 4, "data": 1, "expert": 2}, "expert", "multiple of the context"),
        (costs(), {"data": 2, "expert": 2, "num_micro_batches": 8}, "expert", "the model has no experts"),
        (mixture(), {"data": 2, "expert": 2, "num_micro_batches": 8, "data_sharding": "parameters"},
         "data_sharding", "sharded parameters with expert parallelism"),
        (costs(FOUR, training=FLASH), {"context": 2, "data_sharding": "parameters"}, "data_sharding", "over"),
        (costs(training={"framework": "deepspeed"}), {"pipeline": 2, "data": 2, "num_micro_batches": 8,
         "data_sharding": "gradients"}, "data_sharding", "DeepSpeed's pipeline engine"),
        (costs(FOUR, model={"sequence_length": 510}, training=FLASH), {"context": 4}, "context", "twice"),
        (costs(FOUR, training=FLASH), {"context": 3, "tensor": 2}, "context", "tensor 2 x context 3 exceeds"),
        (costs(FOUR), {"context": 2}, "context", "flash_attention"),
    ],
)  # fmt: skip
def test_degrees_that_break_a_rule(model: CostModel, fields: dict[str, Any], path: str, says: str) -> None:
    layers = (3, 3) if fields.get("pipeline") == 2 else (6,)
    assert says in refusals(model, layers, **fields)[path]


def test_latent_attention_has_no_key_value_heads_to_divide() -> None:
    mla = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    plain, latent = (
        costs(FOUR, model={"kv_heads": 3, "attention_heads": 12, "head_dim": 64, "mla": value})
        for value in (None, mla)
    )
    assert "key/value heads" in refusals(plain, (6,), tensor=4)["tensor"]
    assert "tensor" not in refusals(latent, (6,), tensor=4)


def test_the_space_has_new_degrees_only_where_they_are_listed() -> None:
    plain = enumerate_space(costs(FOUR, training=FLASH))
    assert {(t.configuration.context, t.configuration.expert) for t in plain.families} == {(1, 1)}
    assert {t.configuration.data_sharding for t in plain.families} == {"none"}
    assert all(tables.detail is None for tables in plain.families)
    listed = enumerate_space(costs(FOUR, training=FLASH, search={"context": [1, 2]}))
    with_context = [t for t in listed.families if t.configuration.context == 2]
    assert len(listed.families) == len(plain.families) + len(with_context)
    for tables in with_context:
        assert tables.tensor == 2 * tables.configuration.tensor
        assert tables.configuration.num_gpus == 8
    # where rings leave the node for certain and its cards are slower than the scale-up ports inside a cell
    exact = [t.configuration for t in with_context if t.detail is None]
    assert exact
    assert all(c.data > 4 // c.cell_size for c in exact)


def test_expert_degrees_and_shardings_of_the_space() -> None:
    every = ["none", "optimizer", "gradients", "parameters"]
    space = enumerate_space(
        mixture(changes=FOUR, training={"data_sharding": every}, search={"expert": [1, 2, 8], "tensor": [1]})
    )
    found = {
        (t.configuration.data, t.configuration.expert, t.configuration.data_sharding) for t in space.families
    }
    assert {(8, 8, "optimizer"), (8, 2, "none"), (8, 1, "parameters")} <= found
    assert not any(
        data % expert or (expert > 1 and sharding == "parameters") for data, expert, sharding in found
    )
    assert any("does not divide data x context" in refusal.reason for refusal in space.refusals)


def test_virtual_stages_of_the_space() -> None:
    space = enumerate_space(
        costs(FOUR, search={"virtual_stages": [1, 3], "pipeline": [2], "micro_batch": [1]})
    )
    assert {t.configuration.virtual_stages for t in space.families} == {1, 3}


def test_the_largest_gpu_decides_what_is_infeasible_for_all() -> None:
    small = two_types({"cluster/gpu_types/gpu/memory": "1 GiB", "cluster/gpu_types/old/memory": "2 GiB"})
    reasons = [refusal.reason for refusal in enumerate_space(small).refusals]
    assert any("of 2.0 GiB is usable" in reason or "of 2 GiB is usable" in reason for reason in reasons)
