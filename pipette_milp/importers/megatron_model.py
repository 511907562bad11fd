"""The shape of the model that Megatron-LM arguments describe, with Megatron's own defaults."""

from __future__ import annotations

import re
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.huggingface_experts import which_layers
from pipette_milp.importers.megatron_flags import ArgumentReader, Arguments
from pipette_milp.schema.quantities import MOST_LAYERS

_POSITIONS = {
    "learned_absolute": "learned",
    "rope": "rope",
    "yarn": "rope",
    "mrope": "rope",
    "none": "none",
}
_NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}


def padded_vocabulary(vocabulary: int, tensor: int, multiple: int = 128) -> int:
    """Rows of the embedding as Megatron allocates it: the next multiple of ``multiple * tensor``."""
    step = multiple * tensor
    return -(-vocabulary // step) * step


def model_fields(arguments: Arguments, warnings: list[Problem]) -> dict[str, Any]:
    """Fields of an instance's ``model`` that the arguments give, without those that they do not.

    Mixture of experts, latent attention and prediction layers are kept under ``moe``, ``mla`` and
    ``mtp_layers``.

    Raises:
        InputError: everything that is no whole number or contradicts something else.
    """
    reader = _Model(arguments, warnings)
    fields = reader.fields()
    if reader.problems:
        raise InputError(reader.problems)
    return {name: value for name, value in fields.items() if value is not None}


class _Model(ArgumentReader):
    def fields(self) -> dict[str, Any]:
        on, text = self.arguments.on, self.arguments.text
        hidden, heads = self.whole("hidden-size"), self.whole("num-attention-heads")
        gated = on("swiglu")
        ffn = self.whole("ffn-hidden-size")
        if ffn is None and hidden is not None:
            ffn = int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden
        groups = self.whole("num-query-groups")
        if groups is not None and not on("group-query-attention"):
            # Megatron reads the number only together with the switch.
            self.warnings.append(
                Problem(
                    self.arguments.place("num-query-groups"), "has no effect without --group-query-attention"
                )
            )
            groups = None
        if groups is not None and heads is not None and heads % groups:
            self.refuse("num-query-groups", f"{heads} heads do not divide by {groups} query groups")
        head_dim = self.whole("kv-channels")
        if head_dim is None and hidden is not None and heads is not None:
            if hidden % heads:
                self.refuse(
                    "num-attention-heads",
                    f"hidden size {hidden} does not divide by {heads} heads: --kv-channels is needed",
                )
            else:
                head_dim = hidden // heads
        latent = self._latent_attention()
        if latent is not None:  # one latent for all heads: no groups, and heads of their own width
            groups, head_dim = None, latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
        sequence, positions = (
            self.whole("seq-length", "encoder-seq-length"),
            self.whole("max-position-embeddings"),
        )
        if sequence is not None and positions is not None and positions < sequence:
            self.refuse(
                "max-position-embeddings", f"{positions} positions are fewer than the sequence of {sequence}"
            )
        embedding = self._position_embedding()
        norm = text("normalization") or "LayerNorm"
        if norm not in _NORMS:
            self.refuse("normalization", f"expected LayerNorm or RMSNorm, got {norm!r}")
        return {
            "layers": self.whole("num-layers", "encoder-num-layers"),
            "hidden_size": hidden,
            "ffn_hidden_size": ffn,
            "attention_heads": heads,
            "kv_heads": groups if groups is not None else heads,
            "head_dim": head_dim,
            "vocab_size": self.whole("vocab-size"),
            "sequence_length": sequence,
            "gated_mlp": gated,
            "tied_embeddings": not on("untie-embeddings-and-output-weights"),
            "position_embedding": embedding,
            "max_positions": positions if embedding == "learned" else None,
            "normalization": _NORMS.get(norm, "layernorm"),
            "biases": not on("disable-bias-linear"),
            "qkv_bias": True if on("add-qkv-bias") and on("disable-bias-linear") else None,
            "qk_norm": True if on("qk-layernorm") else None,
            "moe": self._experts(),
            "mla": latent,
            "mtp_layers": self.whole("mtp-num-layers"),
        }

    def _position_embedding(self) -> str:
        kind = self.arguments.text("position-embedding-type")
        if kind is None:
            if self.arguments.on("use-rotary-position-embeddings"):
                return "rope"
            return "none" if self.arguments.on("no-position-embedding") else "learned"
        if kind not in _POSITIONS:
            self.refuse("position-embedding-type", f"not supported yet: position embedding {kind!r}")
        return _POSITIONS.get(kind, "none")

    def _experts(self) -> dict[str, Any] | None:
        experts = self.whole("num-experts")
        if experts is None:
            return None
        fields = {
            "experts": experts,
            "ffn_hidden_size": self.whole("moe-ffn-hidden-size", "ffn-hidden-size"),
            "top_k": self.whole("moe-router-topk") or 2,  # Megatron's default
            "shared_ffn_hidden_size": self.whole("moe-shared-expert-intermediate-size"),
            "shared_expert_gate": True if self.arguments.on("moe-shared-expert-gate") else None,
            "router_bias": True if self.arguments.on("moe-router-enable-expert-bias") else None,
        }
        expert = self.whole("expert-model-parallel-size") or 1
        if experts % expert:
            self.refuse(
                "expert-model-parallel-size", f"{experts} experts do not divide by expert degree {expert}"
            )
        pattern = self._expert_layers()
        placed = {} if pattern is None else which_layers([bool(item) for item in pattern])
        return {name: value for name, value in fields.items() if value is not None} | placed

    def _expert_layers(self) -> list[int] | None:
        """1 for every layer with experts, from --moe-layer-freq: a number, or a list expression."""
        text, layers = self.arguments.text("moe-layer-freq"), self.whole("num-layers")
        if layers is not None and layers > MOST_LAYERS:
            self.refuse("num-layers", f"{layers} layers, expected at most {MOST_LAYERS}")
            layers = None
        if text is None or layers is None:
            return None if layers is None else [1] * layers
        if re.fullmatch(r"\d{1,6}", text) and int(text) > 0:
            return [int(index % int(text) == 0) for index in range(layers)]
        pattern = _list_expression(text)
        if pattern is None:
            self.refuse("moe-layer-freq", f"expected a number or a list such as ([0]*3+[1]*58), got {text!r}")
            return None
        if len(pattern) != layers:
            self.refuse("moe-layer-freq", f"lists {len(pattern)} layers, the model has {layers}")
        return pattern

    def _latent_attention(self) -> dict[str, Any] | None:
        if not self.arguments.on("multi-latent-attention"):
            return None
        fields = {
            "q_lora_rank": self.whole("q-lora-rank"),
            "kv_lora_rank": self.whole("kv-lora-rank") or 512,  # this and the next three: Megatron's defaults
            "qk_nope_head_dim": self.whole("qk-head-dim") or 128,
            "qk_rope_head_dim": self.whole("qk-pos-emb-head-dim") or 64,
            "v_head_dim": self.whole("v-head-dim") or 128,
        }
        return {name: value for name, value in fields.items() if value is not None}


_TERM = re.compile(r"\(*\[([01](?:,[01])*)\]\)*(?:\*(\d{1,5}))?\)*")


def _list_expression(text: str) -> list[int] | None:
    """Value of a sum of repeated 0/1 lists, None for anything else. Nothing is evaluated."""
    found: list[int] = []
    for term in text.replace(" ", "").split("+"):
        match = _TERM.fullmatch(term)
        if match is None:
            return None
        found += [int(item) for item in match[1].split(",")] * int(match[2] or 1)
        if len(found) > MOST_LAYERS:
            return None
    return found
