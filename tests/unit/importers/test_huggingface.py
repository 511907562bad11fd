from __future__ import annotations

import json
from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers.huggingface import FAMILIES, import_config
from pipette_milp.importers.huggingface_experts import EXPERT_FAMILIES
from pipette_milp.importers.huggingface_experts import LATENT as LATENT_KINDS
from pipette_milp.schema.model import ModelSection
from pipette_milp.transformer import Transformer
from tests.conftest import shared_data
from tests.importer_samples import sample

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 131072,
}


def problems(config: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        import_config(config)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_absent_fields_take_the_defaults_of_the_class() -> None:
    section = import_config(LLAMA).section
    assert (section["kv_heads"], section["head_dim"], section["tied_embeddings"]) == (8, 32, False)
    assert (section["gated_mlp"], section["normalization"], section["position_embedding"]) == (
        True,
        "rmsnorm",
        "rope",
    )
    assert "sequence_length" not in section
    assert "max_positions" not in section


def test_old_and_new_spellings() -> None:
    old = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_inner": None,
        "n_positions": 512,
        "vocab_size": 100,
    }
    section = import_config(old).section
    assert (section["ffn_hidden_size"], section["max_positions"], section["tied_embeddings"]) == (
        256,
        512,
        True,
    )
    new = {
        **LLAMA,
        "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": 1e4},
        "layer_types": ["full_attention"] * 4,
    }
    assert import_config(new).section == import_config({**LLAMA, "torch_dtype": "bfloat16"}).section


def test_nested_text_configuration() -> None:
    nested = {
        "model_type": "some_vision_model",
        "vision_config": {},
        "text_config": LLAMA,
        "tie_word_embeddings": True,
    }
    imported = import_config(nested)
    assert imported.section["hidden_size"] == 256
    assert imported.section["tied_embeddings"] is True
    assert "text_config" in imported.notes[0]
    broken = {**nested, "text_config": {**LLAMA, "num_hidden_layers": 0}}
    assert "text_config.num_hidden_layers" in problems(broken)


def test_architecture_stands_in_for_model_type() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert "is required" in problems(config)["model_type"]
    assert (
        import_config({**config, "architectures": ["LlamaForCausalLM"]}).section
        == import_config(LLAMA).section
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1),
        ({"multi_query": False}, 8),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2),
    ],
)
def test_falcon_key_value_heads(changes: dict[str, Any], expected: int) -> None:
    config = {"model_type": "falcon", "hidden_size": 256, "n_layer": 4, "n_head": 8, "vocab_size": 1000}
    section = import_config({**config, **changes}).section
    assert section["kv_heads"] == expected
    assert section["ffn_hidden_size"] == 1024
    assert section["gated_mlp"] is False


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"num_experts": 60}, "num_experts"),
        ({"n_routed_experts": 256}, "n_routed_experts"),
        ({"moe_intermediate_size": 1408}, "moe_intermediate_size"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"q_lora_rank": 1536}, "q_lora_rank"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"model_type": "qwen3_moe"}, "num_experts"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank"),
        ({"model_type": "other_moe"}, "model_type"),
        ({"model_type": "mamba2"}, "model_type"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "256"}, "hidden_size"),
        ({"n_layer": 5}, "num_hidden_layers"),
        ({"num_attention_heads": 7}, "head_dim"),
    ],
)
def test_refused_by_the_key_that_shows_it(changes: dict[str, Any], key: str) -> None:
    assert key in problems({**LLAMA, **changes})


def test_every_problem_at_once() -> None:
    found = problems({"model_type": "llama", "hidden_size": -1})
    assert set(found) >= {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    }


@pytest.mark.parametrize("value", [[], "x", None])
def test_not_an_object(value: Any) -> None:
    with pytest.raises(InputError, match="expected a JSON object"):
        import_config(value)


def test_values_are_taken_as_given_with_a_note_where_they_disagree() -> None:
    imported = import_config({**LLAMA, "layer_types": ["full_attention"] * 6})
    assert imported.section["layers"] == 6
    assert any("the list counts" in note for note in imported.notes)
    assert import_config({**LLAMA, "sliding_window": 4096}).notes
    assert not import_config({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}).notes


@pytest.mark.parametrize("kind", list(FAMILIES))
def test_every_family_gives_a_valid_section(kind: str) -> None:
    experts = EXPERTS if kind in EXPERT_FAMILIES else {}
    latent = LATENT if kind in LATENT_KINDS else {}
    section = import_config({**LLAMA, **experts, **latent, "model_type": kind}).section
    assert ("moe" in section) == (kind in EXPERT_FAMILIES)
    assert ("mla" in section) == (kind in LATENT_KINDS)
    ModelSection(name="m", sequence_length=128, **section)


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        ("h01_llama31_405b.config.json", 405_853_388_800),
        ("h02_deepseek_v3.config.json", 671_026_419_200),
        ("h04_gpt2_xl.config.json", 1_557_611_200),
        ("h11_llama32_1b_tied.config.json", 1_235_814_400),
    ],
)
def test_published_totals_of_field_cases(file: str, parameters: int) -> None:
    config = json.loads(shared_data(f"data/field_cases/{file}").read_text())
    assert count(config) == parameters


def count(config: dict[str, Any]) -> int:
    model = ModelSection(name="m", sequence_length=1024, **import_config(config).section)
    return Transformer(model).parameters


# ---------------------------------------------------------------- experts and latent attention
EXPERTS = {
    "num_local_experts": 8,
    "num_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
QWEN3_235B = {
    "model_type": "qwen3_moe",
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN3_235B, 235_093_634_560),
        (MIXTRAL_8X7B, 46_702_792_704),
        (json.loads(sample("models/deepseek-v2-lite.config.json")), 15_706_484_224),
    ],
    ids=["Qwen3-235B", "Mixtral-8x7B", "DeepSeek-V2-Lite"],
)
def test_published_totals_with_experts(config: dict[str, Any], parameters: int) -> None:
    assert count(config) == parameters


def moe(**changes: Any) -> dict[str, Any]:
    kind = changes.pop("model_type", "qwen2_moe")
    latent = LATENT if kind in LATENT_KINDS else {}
    return import_config({**LLAMA, **EXPERTS, **latent, "model_type": kind, **changes}).section["moe"]


def test_which_layers_have_experts() -> None:
    """4 layers; Qwen counts from 1, DeepSeek from 0."""
    assert "layers" not in moe(decoder_sparse_step=1)
    assert moe(decoder_sparse_step=2)["layers"] == [0, 1, 0, 1]
    assert moe(mlp_only_layers=[0, 1])["first_dense_layers"] == 2
    assert moe(model_type="deepseek_v3")["first_dense_layers"] == 1
    assert moe(model_type="deepseek_v3", moe_layer_freq=2)["layers"] == [0, 0, 1, 0]
    listed = ["dense", "sparse", "dense", "sparse"]
    assert moe(mlp_layer_types=listed, decoder_sparse_step=1)["layers"] == [0, 1, 0, 1]


def test_a_shared_expert_is_a_width_or_a_count() -> None:
    assert moe()["shared_ffn_hidden_size"] == 96
    assert moe()["shared_expert_gate"] is True
    assert moe(model_type="deepseek_v2")["shared_ffn_hidden_size"] == 2 * 64
    assert moe(model_type="deepseek_v2", n_shared_experts=None)["shared_ffn_hidden_size"] == 0
    assert "shared_ffn_hidden_size" not in moe(model_type="mixtral")
    assert moe(model_type="mixtral")["ffn_hidden_size"] == LLAMA["intermediate_size"]


def test_heads_of_latent_attention_are_no_groups() -> None:
    section = import_config(
        {**LLAMA, **EXPERTS, **LATENT, "model_type": "deepseek_v3", "num_key_value_heads": 2}
    ).section
    assert section["kv_heads"] == section["attention_heads"]
    assert section["head_dim"] == 24
    assert section["mla"] == LATENT


def test_an_unused_width_may_be_zero() -> None:
    config = {**LLAMA, **EXPERTS, "model_type": "qwen3_moe", "intermediate_size": 0}
    assert import_config(config).section["ffn_hidden_size"] == 64
    assert "intermediate_size" in problems({**config, "mlp_only_layers": [0]})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"num_experts": "8"}, "num_experts"),
        ({"num_experts": None}, "num_experts"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"mlp_only_layers": "1"}, "mlp_only_layers"),
        ({"num_hidden_layers": 10**13}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**13, "model_type": "deepseek_v3"}, "num_hidden_layers"),
        ({"mlp_layer_types": ["sparse"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["sparse", "odd", "dense", "dense"]}, "mlp_layer_types"),
        ({"model_type": "deepseek_v2", "kv_lora_rank": None}, "kv_lora_rank"),
        ({"model_type": "deepseek_v2", "q_lora_rank": -1}, "q_lora_rank"),
        ({"model_type": "deepseek_v2", "first_k_dense_replace": None}, "first_k_dense_replace"),
    ],
)
def test_experts_that_contradict_themselves(changes: dict[str, Any], key: str) -> None:
    latent = LATENT if "model_type" in changes else {}
    assert key in problems({**LLAMA, **EXPERTS, **latent, "model_type": "qwen2_moe", **changes})
