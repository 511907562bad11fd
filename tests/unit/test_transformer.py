"""Parameter counts of published models, and the closed forms of activations (arXiv 2205.05198)."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.schema.model import ModelSection
from pipette_milp.transformer import Transformer
from tests.instance_cases import GPT, costs, preset_model


def transformer(**changes: Any) -> Transformer:
    return Transformer(ModelSection(**{**GPT, **changes}))


def preset(name: str) -> Transformer:
    return Transformer(ModelSection(**preset_model(name)))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt2-xl", 1_557_611_200),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("llama-2-7b", 6_738_415_616),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_parameters_of_published_models(name: str, parameters: int) -> None:
    """Counts of the published checkpoints."""
    assert preset(name).parameters == parameters


@pytest.mark.parametrize(("tensor", "padded"), [(1, 151_680), (4, 152_064), (8, 152_576)])
def test_vocabulary_is_padded_for_the_tensor_degree(tensor: int, padded: int) -> None:
    """A vocabulary of 151,669 does not rule out any degree (field case H09)."""
    model = transformer(vocab_size=151_669)
    assert model.padded_vocabulary(tensor) == padded
    assert model.embedding_parameters(tensor) == padded // tensor * 1024 + 512 * 1024


def test_tensor_ranks_share_matrices_and_repeat_norms() -> None:
    model = transformer()
    norms = 2 * 2 * 1024
    row_parallel_biases = 2 * 1024
    repeated = norms + row_parallel_biases
    assert 4 * (model.layer_parameters(4) - repeated) == model.layer_parameters(1) - repeated
    assert model.layer_parameters(1) == 12 * 1024**2 + 13 * 1024


def test_few_key_value_heads_are_repeated() -> None:
    model = transformer(kv_heads=2)
    assert [model.kv_heads_per_rank(tensor) for tensor in (1, 2, 4, 8)] == [2, 1, 1, 1]


def test_a_tied_matrix_is_held_twice_when_the_pipeline_parts_its_ends() -> None:
    tied, untied = preset("llama-3.2-1b"), transformer(tied_embeddings=False)
    matrix = 128_256 * 2048
    assert tied.head_parameters(1, embedding_on_same_stage=True) == 2048
    assert tied.head_parameters(1, embedding_on_same_stage=False) == 2048 + matrix
    both = [untied.head_parameters(1, embedding_on_same_stage=same) for same in (True, False)]
    assert both[0] == both[1] == 2 * 1024 + untied.padded_vocabulary(1) * 1024


@pytest.mark.parametrize(("pipeline", "copies"), [(1, 1), (2, 2), (4, 2)])
def test_stages_together_hold_the_model(pipeline: int, copies: int) -> None:
    model = costs(model=preset_model("llama-3.2-1b"))
    counted = model.transformer
    held = 16 * counted.layer_parameters(1) + counted.embedding_parameters(1)
    held += counted.head_parameters(1, embedding_on_same_stage=pipeline == 1)
    assert held == 1_235_814_400 + (copies - 1) * 128_256 * 2048


def activations(model: Transformer, tensor: int, **options: Any) -> float:
    defaults: dict[str, Any] = {
        "element_bytes": 2,
        "sequence_parallel": False,
        "flash": False,
        "recompute": "none",
    }
    return model.layer_activation_bytes(tensor, **{**defaults, **options})


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_activations_of_a_layer_with_dropout(tensor: int) -> None:
    """Per token, with S b h taken out: the five closed forms of arXiv 2205.05198, table 2."""
    model, h, a, s, t = transformer(), 1024, 16, 512, tensor
    assert activations(model, 1) == pytest.approx(h * (34 + 5 * a * s / h), rel=1e-14)
    assert activations(model, t) == pytest.approx(h * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-14)
    parallel = activations(model, t, sequence_parallel=True)
    assert parallel == pytest.approx(h * (34 + 5 * a * s / h) / t, rel=1e-14)
    selective = activations(model, t, sequence_parallel=True, recompute="selective")
    assert selective == pytest.approx(34 * h / t, rel=1e-14)
    assert activations(model, t, recompute="selective") == pytest.approx(h * (10 + 24 / t), rel=1e-14)
    kept = model.layer_checkpoint_bytes(t, element_bytes=2, sequence_parallel=False)
    assert kept == 2 * h
    assert model.layer_checkpoint_bytes(t, element_bytes=2, sequence_parallel=True) == 2 * h / t


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_activations_of_a_gated_layer_with_grouped_heads_and_flash(tensor: int) -> None:
    """8 h + [4 h + 4 h r + 3 * 2 f + 4 a] / t, r = key/value heads per head (costs, section 6)."""
    model = transformer(
        kv_heads=4, gated_mlp=True, ffn_hidden_size=2816, position_embedding="rope", biases=False
    )
    h, f, a, r, t = 1024, 2816, 16, 4 / 16, tensor
    split = 4 * h + 4 * h * r + 2 * f * 3 + 4 * a
    assert activations(model, t, flash=True) == pytest.approx(8 * h + split / t, rel=1e-14)
    parallel = activations(model, t, flash=True, sequence_parallel=True)
    assert parallel == pytest.approx((8 * h + split) / t, rel=1e-14)


def test_model_operations_are_those_of_the_published_formula() -> None:
    """96 s l h^2 (1 + s/(6h) + V/(16 l h)) per sequence with full recompute (arXiv 2104.04473, section 5.1);
    the model alone needs one forward of the layers less."""
    s, layers, h, vocabulary = 512, 6, 1024, 50257
    published = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    forward_of_layers = layers * (24 * s * h**2 + 4 * s**2 * h)
    assert s * transformer().model_flop_per_token == pytest.approx(published - forward_of_layers, rel=1e-12)


def test_causal_attention_counts_half_the_square() -> None:
    model = transformer()
    whole = model.attention_flop(2, causal=False)
    assert whole == 4 * 512 * 1024 / 2
    assert model.attention_flop(2, causal=True) == whole / 2
