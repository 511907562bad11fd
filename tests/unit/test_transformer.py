"""Parameter counts of published models, and the closed forms of activations (arXiv 2205.05198)."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.layer_shapes import layer_matrices
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


DEEPSEEK_V3 = {
    "layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "attention_heads": 128,
    "vocab_size": 129_280, "tied_embeddings": False, "gated_mlp": True, "biases": False,
    "position_embedding": "rope", "normalization": "rmsnorm",
    "moe": {"experts": 256, "top_k": 8, "ffn_hidden_size": 2048, "shared_ffn_hidden_size": 2048,
            "router_bias": True, "first_dense_layers": 3},
    "mla": {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128},
}  # fmt: skip
QWEN3_235B = {
    **{k: v for k, v in DEEPSEEK_V3.items() if k != "mla"},
    "layers": 94, "hidden_size": 4096, "attention_heads": 64, "kv_heads": 4, "head_dim": 128,
    "vocab_size": 151_936, "qk_norm": True, "moe": {"experts": 128, "top_k": 8, "ffn_hidden_size": 1536},
}  # fmt: skip
QWEN15_MOE = {
    **{k: v for k, v in DEEPSEEK_V3.items() if k != "mla"},
    "layers": 24, "hidden_size": 2048, "attention_heads": 16, "vocab_size": 151_936, "qkv_bias": True,
    "moe": {"experts": 60, "top_k": 4, "ffn_hidden_size": 1408, "shared_ffn_hidden_size": 5632,
            "shared_expert_gate": True},
}  # fmt: skip
MIXTRAL = {
    **{k: v for k, v in DEEPSEEK_V3.items() if k != "mla"},
    "layers": 32, "hidden_size": 4096, "attention_heads": 32, "kv_heads": 8, "vocab_size": 32_000,
    "moe": {"experts": 8, "top_k": 2, "ffn_hidden_size": 14336},
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [
        (DEEPSEEK_V3, 671_026_419_200, 37.5e9),
        (QWEN3_235B, 235_093_634_560, 22.1e9),
        (QWEN15_MOE, 14_315_784_192, 2.69e9),
        (MIXTRAL, 46_702_792_704, 12.9e9),
    ],
)
def test_parameters_of_published_mixtures(model: dict[str, Any], parameters: int, active: float) -> None:
    """Counts of the published checkpoints (field cases H02, H08), and what their papers call active."""
    counted = transformer(**model)
    assert counted.parameters == parameters
    forward = counted.model_flop_per_token / 3
    matrices = forward - counted.model.layers * counted.attention_flop(1, causal=False)
    embedding = counted.model.vocab_size * counted.model.hidden_size
    assert matrices / 2 + embedding == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (1, 8), (2, 4), (4, 64)])
def test_ranks_share_experts_and_repeat_router_and_latents(tensor: int, expert: int) -> None:
    counted = transformer(**DEEPSEEK_V3)
    assert counted.layer_kinds == ("dense",) * 3 + ("moe",) * 58
    routed = 256 * 3 * 7168 * 2048
    assert counted.routed_parameters(tensor, "moe", expert) * tensor * expert == routed
    assert counted.routed_parameters(tensor, "dense", expert) == 0
    latents = 7168 * (1536 + 512 + 64) + 1536 + 512
    repeated = latents + 2 * 7168 + 256 * 7168 + 256
    rest = counted.layer_parameters(tensor, "moe", expert) - counted.routed_parameters(tensor, "moe", expert)
    whole = counted.layer_parameters(1, "moe") - counted.routed_parameters(1, "moe")
    assert (rest - repeated) * tensor == whole - repeated
    flop = [
        counted.layer_matrix_flop(tensor, "moe"),
        sum(m.flop for m in layer_matrices(counted.model, tensor, "moe", expert)),
    ]
    assert flop[0] == pytest.approx(flop[1], rel=1e-12)  # equal loads: the expert degree does not matter


def test_shared_expert_counts_once() -> None:
    """A width of 5632 is four experts' worth, once per layer, plus a gate of 2048 weights (H08)."""
    with_shared = transformer(**QWEN15_MOE)
    moe = {"experts": 60, "top_k": 4, "ffn_hidden_size": 1408}
    without = transformer(**{**QWEN15_MOE, "moe": moe})
    assert with_shared.parameters - without.parameters == 24 * (3 * 2048 * 5632 + 2048)


@pytest.mark.parametrize("tensor", [1, 4])
def test_activations_of_a_layer_with_experts_and_latent_attention(tensor: int) -> None:
    """What Megatron-LM keeps per token: norms in and out, latents in and out of their norms, queries, keys,
    values and output of the attention, eight copies of the token for eight experts, their hidden layer."""
    counted = transformer(**DEEPSEEK_V3)
    h, heads, qk, v = 7168, 128, 192, 128
    attention = 2 * heads * (2 * qk + 2 * v) + 4 * heads
    experts = 8 * (2 * h + 3 * 2 * 2048) + 3 * 2 * 2048
    latents = 4 * (1536 + 512)
    expected = 8 * h + latents + 8 * 256 + (attention + experts) / tensor
    assert activations(counted, tensor, flash=True, kind="moe") == pytest.approx(expected, rel=1e-14)
    dense = 8 * h + latents + (attention + 3 * 2 * 18432) / tensor
    assert activations(counted, tensor, flash=True) == pytest.approx(dense, rel=1e-14)


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
