"""Mixture of experts and latent attention in ``config.json`` files of the transformers library.

One meaning under several names: experts per layer, how many a token visits, their width, shared experts (a
width for Qwen, a count of routed ones for DeepSeek), and the rule that says which layers have them. A list
``mlp_layer_types`` counts before every rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


class Reader(Protocol):
    """What is needed of the reader of a config."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    def problem(self, key: str, message: str) -> None: ...


@dataclass(frozen=True)
class ExpertFamily:
    """How the class behind a ``model_type`` names and places its experts."""

    experts: str
    """Key of the number of routed experts."""
    width: str = "moe_intermediate_size"
    """Key of the width of one expert."""
    shared: Literal["none", "width", "count"] = "none"
    """``shared_expert_intermediate_size``, or ``n_shared_experts`` times the width."""
    shared_gate: bool = False
    router_bias: bool = False
    layers: Literal["all", "step", "dense-first"] = "all"
    """step: ``decoder_sparse_step``, ``mlp_only_layers``; dense-first: ``first_k_dense_replace``,
    ``moe_layer_freq``."""
    dense_first: int | None = None
    """Default of ``first_k_dense_replace``, None = the file has to say it."""


EXPERT_FAMILIES: dict[str, ExpertFamily] = {
    "mixtral": ExpertFamily("num_local_experts", width="intermediate_size"),
    "qwen2_moe": ExpertFamily("num_experts", shared="width", shared_gate=True, layers="step"),
    "qwen3_moe": ExpertFamily("num_experts", layers="step"),
    "deepseek_v2": ExpertFamily("n_routed_experts", shared="count", layers="dense-first"),
    "deepseek_v3": ExpertFamily("n_routed_experts", shared="count", router_bias=True, layers="dense-first"),
    "kimi_k2": ExpertFamily("n_routed_experts", shared="count", router_bias=True, layers="dense-first"),
    "glm4_moe": ExpertFamily("n_routed_experts", shared="count", router_bias=True, layers="dense-first"),
}
LATENT = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})
"""Classes with latent attention."""


def mixture_of(reader: Reader, kind: str, layers: int | None) -> dict[str, Any] | None:
    """Section ``model.moe``; None where no layer has experts."""
    family = EXPERT_FAMILIES[kind]
    config = reader.config
    experts = _whole(reader, family.experts, least=1)
    chosen = _whole(reader, "num_experts_per_tok", least=1)
    width = _whole(reader, family.width, least=1)
    if experts is None or chosen is None or width is None or layers is None:
        return None
    moe: dict[str, Any] = {"experts": experts, "top_k": chosen, "ffn_hidden_size": width}
    if chosen > experts:
        reader.problem("num_experts_per_tok", f"{chosen} exceeds the {experts} experts")
    if family.shared == "width":
        shared = _whole(reader, "shared_expert_intermediate_size", least=0)
        moe["shared_ffn_hidden_size"] = shared or 0
    elif family.shared == "count":
        if "n_shared_experts" not in config:
            reader.problem("n_shared_experts", "is required (null = no shared expert)")
        count = _whole(reader, "n_shared_experts", least=0, default=0)
        moe["shared_ffn_hidden_size"] = (count or 0) * width
    if family.shared_gate and moe.get("shared_ffn_hidden_size"):
        moe["shared_expert_gate"] = True
    if family.router_bias:
        moe["router_bias"] = True
    has_experts = _layers(reader, family, layers)
    if has_experts is None or not any(has_experts):
        return None
    return moe | which_layers(has_experts)


def which_layers(has_experts: Sequence[bool]) -> dict[str, Any]:
    """The shortest way to say in ``model.moe`` which layers have experts."""
    first = has_experts.index(True) if True in has_experts else len(has_experts)
    if all(has_experts[first:]):
        return {"first_dense_layers": first} if first else {}
    return {"layers": [int(each) for each in has_experts]}


def _layers(reader: Reader, family: ExpertFamily, layers: int) -> list[bool] | None:
    """Whether each layer has experts; None after a problem."""
    config = reader.config
    listed = config.get("mlp_layer_types")
    if listed:
        unknown = [item for item in listed if item not in ("sparse", "dense")]
        if unknown or len(listed) != layers:
            what = (
                f"{unknown[0]!r} is unknown" if unknown else f"has {len(listed)} entries for {layers} layers"
            )
            reader.problem("mlp_layer_types", what)
            return None
        return [item == "sparse" for item in listed]
    if family.layers == "step":
        step = _whole(reader, "decoder_sparse_step", least=1, default=1)
        only = config.get("mlp_only_layers") or []
        if not isinstance(only, list) or not all(
            isinstance(item, int) and not isinstance(item, bool) for item in only
        ):
            reader.problem("mlp_only_layers", f"expected a list of layer numbers, got {only!r}")
            return None
        return None if step is None else [i not in only and (i + 1) % step == 0 for i in range(layers)]
    if family.layers == "dense-first":
        first = _whole(reader, "first_k_dense_replace", least=0, default=family.dense_first)
        frequency = _whole(reader, "moe_layer_freq", least=1, default=1)
        if first is None or frequency is None:
            return None
        return [i >= first and i % frequency == 0 for i in range(layers)]
    return [True] * layers


def latent_of(reader: Reader) -> dict[str, Any] | None:
    """Section ``model.mla``; None after a problem."""
    rank = _whole(reader, "q_lora_rank", least=1, default=0)
    parts = {
        name: _whole(reader, name, least=1)
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    }
    if rank is None or None in parts.values():
        return None
    return {**({"q_lora_rank": rank} if rank else {}), **parts}


def _whole(reader: Reader, key: str, *, least: int, default: int | None = None) -> int | None:
    """A whole number; null and absent mean the default, without one they are a problem."""
    value = reader.config.get(key)
    if value is None:
        if default is None:
            reader.problem(key, "is required")
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        reader.problem(key, f"expected a whole number of at least {least}, got {value!r}")
        return None
    return value
