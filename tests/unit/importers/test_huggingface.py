from __future__ import annotations

import json
from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers.huggingface import FAMILIES, import_config
from pipette_milp.schema.model import ModelSection
from pipette_milp.transformer import Transformer
from tests.conftest import shared_data

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
        ({"model_type": "mixtral"}, "model_type"),
        ({"model_type": "qwen3_moe"}, "model_type"),
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
    section = import_config({**LLAMA, "model_type": kind}).section
    ModelSection(name="m", sequence_length=128, **section)


@pytest.mark.parametrize(
    ("file", "parameters"),
    [
        ("h01_llama31_405b.config.json", 405_853_388_800),
        ("h04_gpt2_xl.config.json", 1_557_611_200),
        ("h11_llama32_1b_tied.config.json", 1_235_814_400),
    ],
)
def test_published_totals_of_field_cases(file: str, parameters: int) -> None:
    config = json.loads(shared_data(f"data/field_cases/{file}").read_text())
    model = ModelSection(name="m", sequence_length=1024, **import_config(config).section)
    assert Transformer(model).parameters == parameters


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("h02_deepseek_v3.config.json", {"kv_lora_rank", "n_routed_experts"}),
        ("h08_qwen15_moe_a27b.config.json", {"num_experts"}),
    ],
)
def test_field_cases_that_are_not_dense(file: str, keys: set[str]) -> None:
    config = json.loads(shared_data(f"data/field_cases/{file}").read_text())
    assert keys <= set(problems(config))
