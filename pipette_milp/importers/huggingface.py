"""Hugging Face ``config.json`` files -> section ``model`` of an instance.

The spellings and class defaults are those of the transformers library, versions 4 and 5. Values are
taken as they stand: a copy that disagrees with the published model is somebody's model too. The sequence
length is never read from here; ``max_position_embeddings`` is what a model could be run with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.huggingface_experts import EXPERT_FAMILIES, LATENT, latent_of, mixture_of
from pipette_milp.importers.jsontext import load
from pipette_milp.schema.quantities import MOST_LAYERS

SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "attention_heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "ffn_hidden_size": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("vocab_size",),
    "tied_embeddings": ("tie_word_embeddings",),
    "max_positions": ("n_positions", "n_ctx", "max_position_embeddings"),
}
"""Field of the model section <- keys of the file, the first one that is there counts."""


@dataclass(frozen=True)
class Family:
    """What the class behind a ``model_type`` fixes or defaults to."""

    gated_mlp: bool = True
    normalization: str = "rmsnorm"
    position_embedding: str = "rope"
    tied_embeddings: bool = False
    biases: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    ffn_factor: int | None = None
    """MLP width in hidden sizes where the file leaves it out."""


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "granite": Family(),
    "phi3": Family(),
    "gemma": Family(tied_embeddings=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "gpt2": Family(
        gated_mlp=False,
        normalization="layernorm",
        position_embedding="learned",
        tied_embeddings=True,
        biases=True,
        ffn_factor=4,
    ),
    "gpt_neox": Family(gated_mlp=False, normalization="layernorm", biases=True),
    "falcon": Family(gated_mlp=False, normalization="layernorm", tied_embeddings=True, ffn_factor=4),
    "mixtral": Family(),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3_moe": Family(qk_norm=True),
    "deepseek_v2": Family(),
    "deepseek_v3": Family(),
    "kimi_k2": Family(),
    "glm4_moe": Family(),
}
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "FalconForCausalLM": "falcon",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Glm4MoeForCausalLM": "glm4_moe",
}

SWITCHES = (
    "tie_word_embeddings",
    "bias",
    "attention_bias",
    "mlp_bias",
    "multi_query",
    "new_decoder_architecture",
    "alibi",
    "is_encoder_decoder",
    "use_sliding_window",
    "use_qk_norm",
)
"""Keys that are true, false, or null for the default of the class."""

EXPERT_KEYS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "moe_intermediate_size",
)
LATENT_KEYS = ("kv_lora_rank", "q_lora_rank")


@dataclass(frozen=True)
class ImportedModel:
    """A model section without name and sequence length, and what a reader should know about it."""

    section: dict[str, Any]
    notes: tuple[str, ...] = field(default=())


def import_config(config: Any, source: str = "config.json") -> ImportedModel:
    """Reads a parsed ``config.json``.

    Raises:
        InputError: an architecture that is not known, experts or latent attention in one that has none, or
            values that are missing or contradict each other; every problem with its key.
    """
    if not isinstance(config, Mapping):
        raise InputError("expected a JSON object with the keys of a Hugging Face config.json", source=source)
    prefix, notes = "", []
    if isinstance(config.get("text_config"), Mapping):
        prefix = "text_config."
        outer = config
        config = {**{k: outer[k] for k in ("tie_word_embeddings",) if k in outer}, **outer["text_config"]}
        notes.append("only the language model under text_config is counted")
    reader = _Reader(config, prefix)
    _refuse_wrong_types(reader)
    if reader.problems:
        raise InputError(reader.problems, source=source)
    _refuse_what_is_not_modelled(reader)
    family = _family(reader)
    if reader.problems:
        raise InputError(reader.problems, source=source)
    section = _section(reader, family, notes)
    if reader.problems:
        raise InputError(reader.problems, source=source)
    return ImportedModel(section, tuple(notes))


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a ``config.json`` of a language model."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return 0.0
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        return 0.6 if '"model_type"' in text else 0.0
    if not isinstance(config, dict):
        return 0.0
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    named = "model_type" in config or "architectures" in config
    return 0.9 if named and any(key in config for key in SPELLINGS["hidden_size"]) else 0.0


def parse(text: str, source: str) -> ImportedModel:
    """`import_config` of the text of a file.

    Raises:
        InputError: not JSON (with line and column), or whatever `import_config` finds wrong.
    """
    return import_config(load(text, source), source)


class _Reader:
    """Values by meaning, problems collected on the way."""

    def __init__(self, config: Mapping[str, Any], prefix: str) -> None:
        self.config = config
        self.prefix = prefix
        self.problems: list[Problem] = []

    def problem(self, key: str, message: str) -> None:
        self.problems.append(Problem(self.prefix + key, message))

    def count(self, meaning: str, default: int | None = None) -> int | None:
        """A positive whole number; null and absent mean the default."""
        keys = SPELLINGS[meaning]
        given = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                self.problem(key, f"expected a whole number of at least 1, got {value!r}")
                return None
        if not given:
            if default is None:
                self.problem(keys[0], f"is required for {meaning} (read from {' or '.join(keys)})")
            return default
        if meaning != "max_positions" and len(set(given.values())) > 1:
            text = ", ".join(f"{key} = {value}" for key, value in given.items())
            self.problem(next(iter(given)), f"contradiction: {text}")
        return next(iter(given.values()))


def _refuse_wrong_types(reader: _Reader) -> None:
    """Text, lists and switches that are something else; numbers are checked where they are read."""
    for key in ("architectures", "layer_types", "mlp_layer_types"):
        value = reader.config.get(key)
        if value is not None and not (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        ):
            reader.problem(key, f"expected a list of names, got {value!r}")
    if not isinstance(reader.config.get("model_type"), str | None):
        reader.problem("model_type", f"expected a name, got {reader.config['model_type']!r}")
    for key in SWITCHES:
        value = reader.config.get(key)
        if value is not None and not isinstance(value, bool):
            reader.problem(key, f"expected true or false, got {value!r}")


def _refuse_what_is_not_modelled(reader: _Reader) -> None:
    kind = _kind(reader) or ""
    if kind not in LATENT:
        for key in LATENT_KEYS:
            if reader.config.get(key) is not None:
                reader.problem(
                    key, f"= {reader.config[key]!r} means latent attention, not known for {kind!r}"
                )
    if kind not in EXPERT_FAMILIES:
        for key in EXPERT_KEYS:
            value = reader.config.get(key)
            if isinstance(value, int) and value > (1 if "num" in key or "routed" in key else 0):
                reader.problem(key, f"= {value} means a mixture of experts, not known for {kind!r}")
        if not reader.problems and "moe" in kind:
            reader.problem("model_type", f"{kind!r} is a mixture of experts, not supported yet")
        if "sparse" in (reader.config.get("mlp_layer_types") or ()):
            reader.problem("mlp_layer_types", f"'sparse' means a mixture of experts, not known for {kind!r}")
    for each in dict.fromkeys(reader.config.get("layer_types") or ()):
        if each not in ("full_attention", "sliding_attention"):
            reader.problem("layer_types", f"{each!r} layers are not supported yet")
    if reader.config.get("is_encoder_decoder"):
        reader.problem("is_encoder_decoder", "is true: only decoders are supported")


def _kind(reader: _Reader) -> str | None:
    """The class behind a config: ``model_type``, else the first known architecture."""
    kind = reader.config.get("model_type")
    if kind is not None:
        return str(kind)
    names = reader.config.get("architectures") or ()
    return next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)


def _family(reader: _Reader) -> Family:
    kind = _kind(reader)
    if kind in FAMILIES:
        return FAMILIES[kind]
    if not reader.problems:
        what = "is required" if kind is None else f"{kind!r} is not supported yet"
        reader.problem("model_type", f"{what}, known are {', '.join(FAMILIES)}")
    return Family()


def _section(reader: _Reader, family: Family, notes: list[str]) -> dict[str, Any]:
    config = reader.config
    hidden = reader.count("hidden_size")
    heads = reader.count("attention_heads")
    layers = reader.count("layers", default=len(config.get("layer_types") or ()) or None)
    if layers is not None and layers > MOST_LAYERS:
        reader.problem("num_hidden_layers", f"{layers} layers, expected at most {MOST_LAYERS}")
        layers = None
    listed = config.get("layer_types")
    if listed and layers is not None and len(listed) != layers:
        notes.append(
            f"layer_types lists {len(listed)} layers, num_hidden_layers says {layers}: the list counts"
        )
        layers = len(listed)
    kind = _kind(reader) or ""
    moe = mixture_of(reader, kind, layers) if kind in EXPERT_FAMILIES else None
    default_ffn = family.ffn_factor * hidden if family.ffn_factor and hidden else None
    ffn = _ffn(reader, moe, default_ffn)
    section: dict[str, Any] = {
        "layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "attention_heads": heads,
        "kv_heads": _kv_heads(reader, heads),
        "vocab_size": reader.count("vocab_size"),
        "gated_mlp": family.gated_mlp,
        "tied_embeddings": _switch(config, "tie_word_embeddings", family.tied_embeddings),
        "position_embedding": "none" if config.get("alibi") else family.position_embedding,
        "normalization": family.normalization,
        "biases": _switch(config, "bias", family.biases),
        "qkv_bias": family.qkv_bias,
        "qk_norm": family.qk_norm,
    }
    if hidden and heads:
        head_dim = reader.count("head_dim", default=hidden // heads)
        if config.get("head_dim") is None and hidden % heads and kind not in LATENT:
            reader.problem("head_dim", f"is required: {heads} heads do not divide hidden size {hidden}")
        section["head_dim"] = head_dim
    if moe is not None:
        section["moe"] = moe
    if kind in LATENT and (mla := latent_of(reader)) is not None:
        # heads, KV heads and their width do not apply: the file's num_key_value_heads is no grouping
        section["mla"] = mla
        section["kv_heads"] = heads
        section["head_dim"] = mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
    if section["position_embedding"] == "learned":
        section["max_positions"] = reader.count("max_positions")
    if kind == "glm4_moe":
        section["qk_norm"] = _switch(config, "use_qk_norm", False)
    _biases(config, section, notes)
    _notes(config, notes)
    return section


def _ffn(reader: _Reader, moe: Mapping[str, Any] | None, default: int | None) -> int | None:
    """Width of the MLP in layers without experts. Where there is none, the key is unused and may be 0."""
    dense = moe is None or moe.get("first_dense_layers", 0) > 0 or "layers" in moe
    if moe is not None and not dense:
        given = reader.config.get("intermediate_size")
        return given if isinstance(given, int) and given > 0 else int(moe["ffn_hidden_size"])
    return reader.count("ffn_hidden_size", default)


def _switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    """A switch; null and absent mean the default of the class."""
    value = config.get(key)
    return default if value is None else bool(value)


def _kv_heads(reader: _Reader, heads: int | None) -> int | None:
    config = reader.config
    if config.get("model_type") == "falcon" and not config.get("new_decoder_architecture"):
        return 1 if _switch(config, "multi_query", True) else heads
    return reader.count("kv_heads", default=heads)


def _biases(config: Mapping[str, Any], section: dict[str, Any], notes: list[str]) -> None:
    """``attention_bias`` and ``mlp_bias`` of llama-like classes."""
    attention, mlp = config.get("attention_bias"), config.get("mlp_bias")
    if attention and mlp:
        section["biases"] = True
    elif attention and not section["biases"]:
        section["qkv_bias"] = True
        notes.append("attention_bias: the bias of the output projection is not counted")
    elif mlp:
        notes.append("mlp_bias: biases of the MLP alone are not counted")


def _notes(config: Mapping[str, Any], notes: list[str]) -> None:
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        notes.append("sliding_window is not modelled: attention is counted over the whole sequence")
    if config.get("quantization_config"):
        notes.append("quantization_config is left out: training keeps full-precision weights")
    extra = next(
        (key for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers") if config.get(key)), None
    )
    if extra:
        notes.append(f"{extra}: extra prediction layers are not counted")
