"""Weight matrices of one layer on one rank, shape by shape.

``t`` is the tensor degree, ``ep`` the expert degree. Shapes are those of Megatron-LM: column-parallel
projections into heads and MLP, row-parallel ones back; the down-projections of latent attention and the
router are repeated on every tensor rank (``multi_latent_attention.py``, ``router.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pipette_milp.schema.model import ModelSection

LayerKind = Literal["dense", "moe"]


@dataclass(frozen=True)
class Matrix:
    """``count`` equal weight matrices that each multiply ``tokens`` of the micro-batch's tokens."""

    name: str
    inputs: int
    outputs: int
    count: int = 1
    tokens: float = 1.0
    """Tokens one of them sees per token of the micro-batch (routed experts: ``top_k * ep / experts``)."""

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.count

    @property
    def flop(self) -> float:
        """Forward FLOP per token of the micro-batch."""
        return 2.0 * self.inputs * self.outputs * self.count * self.tokens


def kv_heads_per_rank(model: ModelSection, tensor: int) -> int:
    """Key/value heads a tensor rank holds; replicated when there are fewer heads than ranks."""
    return max(1, model.kv_heads // tensor)


def query_width(model: ModelSection) -> int:
    """Width of all heads' queries; scores are products over it."""
    if model.mla is not None:
        return model.attention_heads * (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim)
    return model.attention_heads * model.head_dim


def value_width(model: ModelSection) -> int:
    """Width of all heads' outputs."""
    head = model.head_dim if model.mla is None else model.mla.v_head_dim
    return model.attention_heads * head


def attention_matrices(model: ModelSection, tensor: int) -> tuple[Matrix, ...]:
    """Projections of the attention block. Joined projections count as the frameworks multiply them."""
    hidden = model.hidden_size
    out = Matrix("attention_output", value_width(model) // tensor, hidden)
    if model.mla is None:
        kv_width = kv_heads_per_rank(model, tensor) * model.head_dim
        return (Matrix("qkv", hidden, query_width(model) // tensor + 2 * kv_width), out)
    mla = model.mla
    heads = model.attention_heads // tensor
    keys_and_values = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    queries = (
        (Matrix("q", hidden, query_width(model) // tensor),)
        if mla.q_lora_rank is None
        else (
            Matrix("q_down", hidden, mla.q_lora_rank),
            Matrix("q_up", mla.q_lora_rank, query_width(model) // tensor),
        )
    )
    return (
        *queries,
        Matrix("kv_down", hidden, mla.kv_lora_rank + mla.qk_rope_head_dim),
        Matrix("kv_up", mla.kv_lora_rank, keys_and_values),
        out,
    )


def mlp_matrices(model: ModelSection, width: int, tensor: int, name: str = "mlp") -> tuple[Matrix, ...]:
    """An MLP of ``width``; gate and up projection are multiplied as one."""
    up = 2 if model.gated_mlp else 1
    return (
        Matrix(f"{name}_up", model.hidden_size, up * width // tensor),
        Matrix(f"{name}_down", width // tensor, model.hidden_size),
    )


def routed_matrices(model: ModelSection, tensor: int, expert: int) -> tuple[Matrix, ...]:
    """Routed experts one rank holds, ``experts / expert`` of them, all equally loaded."""
    moe = model.moe
    if moe is None:
        return ()
    held = moe.experts // expert
    share = moe.top_k / held
    return tuple(
        replace(matrix, count=held, tokens=share)
        for matrix in mlp_matrices(model, moe.ffn_hidden_size, tensor, "expert")
    )


def layer_matrices(
    model: ModelSection, tensor: int, kind: LayerKind = "dense", expert: int = 1
) -> tuple[Matrix, ...]:
    """All matrices of a layer on one rank, in the order of the forward."""
    attention = attention_matrices(model, tensor)
    moe = model.moe
    if kind == "dense" or moe is None:
        return (*attention, *mlp_matrices(model, model.ffn_hidden_size, tensor))
    router = Matrix("router", model.hidden_size, moe.experts)
    shared = (
        mlp_matrices(model, moe.shared_ffn_hidden_size, tensor, "shared_expert")
        if moe.shared_ffn_hidden_size
        else ()
    )
    return (*attention, router, *routed_matrices(model, tensor, expert), *shared)
