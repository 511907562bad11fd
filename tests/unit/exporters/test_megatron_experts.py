"""Megatron-LM arguments of experts and latent attention, read back by the importer."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.exporters.megatron import megatron_arguments
from pipette_milp.exporters.megatron_experts import expert_arguments, latent_attention_arguments
from pipette_milp.schema.model import ModelSection
from tests.detail_cases import MOE, mixture
from tests.instance_cases import configuration

SHAPE: dict[str, Any] = {
    "name": "m", "layers": 5, "hidden_size": 64, "ffn_hidden_size": 128, "attention_heads": 4,
    "vocab_size": 1000, "sequence_length": 128, "gated_mlp": True, "tied_embeddings": False,
    "position_embedding": "rope", "normalization": "rmsnorm", "biases": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({}, "([1]*5)"),
        ({"first_dense_layers": 2}, "([0]*2+[1]*3)"),
        ({"layer_frequency": 2}, "([1]*1+[0]*1+[1]*1+[0]*1+[1]*1)"),
    ],
)
def test_layers_with_experts(fields: dict[str, Any], pattern: str) -> None:
    model = ModelSection(**SHAPE, moe={**MOE, **fields})
    assert f"--moe-layer-freq {pattern}" in expert_arguments(model, 2)


def test_everything_the_experts_have() -> None:
    moe = {**MOE, "shared_ffn_hidden_size": 256, "shared_expert_gate": True, "router_bias": True}
    arguments = expert_arguments(ModelSection(**SHAPE, moe=moe), 4)
    for expected in (
        "--num-experts 8", "--moe-router-topk 2", "--moe-ffn-hidden-size 1024",
        "--expert-model-parallel-size 4", "--moe-shared-expert-intermediate-size 256",
        "--moe-shared-expert-gate", "--moe-router-enable-expert-bias",
        "--moe-router-score-function sigmoid",
    ):  # fmt: skip
        assert expected in arguments
    assert expert_arguments(ModelSection(**SHAPE), 1) == ()


@pytest.mark.parametrize("rank", [None, 96])
def test_latent_attention(rank: int | None) -> None:
    mla = {"q_lora_rank": rank, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
           "v_head_dim": 24}  # fmt: skip
    arguments = latent_attention_arguments(ModelSection(**SHAPE, mla=mla))
    assert ("--q-lora-rank 96" in arguments) == (rank is not None)
    assert {"--kv-lora-rank 64", "--qk-head-dim 32", "--qk-pos-emb-head-dim 16", "--v-head-dim 24"} <= set(
        arguments
    )
    assert latent_attention_arguments(ModelSection(**SHAPE)) == ()


def test_a_plan_with_experts() -> None:
    model = mixture(dense_first=2)
    words = megatron_arguments(model.instance, configuration((6,), data=4, expert=2)).words
    assert words[words.index("--expert-model-parallel-size") + 1] == "2"
    assert words[words.index("--moe-layer-freq") + 1] == "([0]*2+[1]*4)"
