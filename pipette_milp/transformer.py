"""A transformer, counted: parameters, operations and bytes of its parts on one tensor rank.

Everything here is arithmetic on shapes; nothing knows a GPU or a network. ``t`` is the tensor degree,
``e`` the bytes of an activation element, one *token* is one position of one sequence.

Sources: parameter shapes as in Megatron-LM's GPT model (column- and row-parallel linears, vocabulary
padded to ``128 * t``); activation bytes after arXiv 2205.05198, generalised to gated MLPs and grouped
key/value heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from pipette_milp.layer_shapes import (
    LayerKind,
    attention_matrices,
    kv_heads_per_rank,
    layer_matrices,
    query_width,
    routed_matrices,
    value_width,
)
from pipette_milp.schema.model import ModelSection

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to this times the tensor degree (``--make-vocab-size-divisible-by``)."""


@dataclass(frozen=True)
class Transformer:
    """Counts for one model. All methods are pure; ``tensor`` must divide the attention heads.

    A layer is of kind "dense" or "moe"; ``expert`` is the expert degree, which must divide the experts.
    """

    model: ModelSection
    _counted: dict[tuple[str, int, str, int], int] = field(default_factory=dict, compare=False, repr=False)
    """Parameters counted before: a search asks for the same few thousands of times."""

    # ------------------------------------------------------------------ shapes
    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Kind of every layer in model order."""
        moe = self.model.moe
        return tuple(
            "moe" if moe is not None and moe.has_experts(layer) else "dense"
            for layer in range(self.model.layers)
        )

    @cached_property
    def attention_width(self) -> int:
        """Width of the concatenated heads; equals the hidden size in most models."""
        return value_width(self.model)

    def kv_heads_per_rank(self, tensor: int) -> int:
        """Key/value heads a tensor rank holds; replicated when there are fewer heads than ranks."""
        return kv_heads_per_rank(self.model, tensor)

    def key_value_width(self, tensor: int) -> int:
        """Numbers per token in keys and values on one tensor rank: what context parallelism passes around."""
        mla = self.model.mla
        if mla is not None:
            return (query_width(self.model) + value_width(self.model)) // tensor
        return 2 * self.kv_heads_per_rank(tensor) * self.model.head_dim

    def padded_vocabulary(self, tensor: int) -> int:
        """Rows of the embedding after padding, over all tensor ranks."""
        multiple = VOCABULARY_MULTIPLE * tensor
        return math.ceil(self.model.vocab_size / multiple) * multiple

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP: 3 when gated, else 2."""
        return 3 if self.model.gated_mlp else 2

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm."""
        return self.model.hidden_size * (2 if self.model.normalization == "layernorm" else 1)

    # -------------------------------------------------------------- parameters
    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model, unpadded, a tied embedding counted once."""
        model = self.model
        total = sum(self.layer_parameters(1, kind) for kind in self.layer_kinds) + self.norm_parameters
        total += model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2)
        return total + self.position_parameters

    @property
    def position_parameters(self) -> int:
        """Rows of a learned position table times the hidden size."""
        if self.model.position_embedding != "learned":
            return 0
        return self.model.max_positions * self.model.hidden_size

    def layer_matrix_parameters(self, tensor: int, kind: LayerKind = "dense", expert: int = 1) -> int:
        """Weights of one layer's matrices on one tensor rank."""
        return sum(matrix.parameters for matrix in layer_matrices(self.model, tensor, kind, expert))

    def routed_parameters(self, tensor: int, kind: LayerKind = "dense", expert: int = 1) -> int:
        """Parameters of one layer's routed experts on one rank; their gradients are reduced apart.

        ``expert`` is the expert degree: a rank holds ``experts / expert`` of them.
        """
        moe = self.model.moe
        if kind == "dense" or moe is None:
            return 0
        key = ("routed", tensor, kind, expert)
        if key in self._counted:
            return self._counted[key]
        total = sum(matrix.parameters for matrix in routed_matrices(self.model, tensor, expert))
        if self.model.biases:
            up = (self.mlp_matrices - 1) * moe.ffn_hidden_size // tensor
            total += moe.experts // expert * (up + self.model.hidden_size)
        self._counted[key] = total
        return total

    def layer_parameters(self, tensor: int, kind: LayerKind = "dense", expert: int = 1) -> int:
        """Parameters of one layer on one tensor rank; norms, router and row-parallel biases are
        replicated."""
        key = ("layer", tensor, kind, expert)
        if key not in self._counted:
            self._counted[key] = self._layer_parameters(tensor, kind, expert)
        return self._counted[key]

    def _layer_parameters(self, tensor: int, kind: LayerKind, expert: int) -> int:
        model, moe, mla = self.model, self.model.moe, self.model.mla
        dense = sum(
            matrix.parameters
            for matrix in layer_matrices(model, tensor, kind, expert)
            if not matrix.name.startswith("expert_")
        )
        total = dense + self.routed_parameters(tensor, kind, expert) + 2 * self.norm_parameters
        if mla is not None:
            # norms of the two latents (RMSNorm in every published model)
            total += mla.kv_lora_rank + (mla.q_lora_rank or 0)
        if model.biases or model.qkv_bias:
            total += sum(m.outputs for m in attention_matrices(model, tensor)[:-1])
        if model.biases:
            total += model.hidden_size  # attention output
        if model.qk_norm:
            total += 2 * model.head_dim
        if kind == "dense" or moe is None:
            width = model.ffn_hidden_size
        else:
            width = moe.shared_ffn_hidden_size
            total += moe.experts * moe.router_bias + model.hidden_size * moe.shared_expert_gate
        if model.biases and width:
            total += (self.mlp_matrices - 1) * width // tensor + model.hidden_size
        return total

    def embedding_parameters(self, tensor: int) -> int:
        """Input embedding with learned positions on one tensor rank."""
        rows = self.padded_vocabulary(tensor) // tensor
        return rows * self.model.hidden_size + self.position_parameters

    def head_parameters(self, tensor: int, *, embedding_on_same_stage: bool) -> int:
        """Final norm and output matrix on one tensor rank.

        A tied matrix is one more full copy when the head sits on another stage than the embedding.
        """
        if self.model.tied_embeddings and embedding_on_same_stage:
            return self.norm_parameters
        return self.norm_parameters + self.padded_vocabulary(tensor) // tensor * self.model.hidden_size

    # -------------------------------------------------------------- operations
    def layer_matrix_flop(self, tensor: int, kind: LayerKind = "dense") -> float:
        """Forward FLOP per token of one layer's weight matrices on one tensor rank.

        The expert degree does not matter: with equally loaded experts every rank multiplies as many tokens.
        """
        return sum(matrix.flop for matrix in layer_matrices(self.model, tensor, kind))

    def attention_flop(self, tensor: int, *, causal: bool) -> float:
        """Forward FLOP per token of scores and their product with the values on one tensor rank.

        ``causal``: the kernel skips the masked half (flash attention does, separate kernels do not).
        """
        width = query_width(self.model) + value_width(self.model)
        full = 2.0 * self.model.sequence_length * width / tensor
        return full / 2 if causal else full

    def head_flop(self, tensor: int) -> float:
        """Forward FLOP per token of the output matrix on one tensor rank, padding included."""
        return 2.0 * self.model.hidden_size * self.padded_vocabulary(tensor) / tensor

    @cached_property
    def model_flop_per_token(self) -> float:
        """Forward and backward FLOP per token that the model needs: no recompute, no padding, the full
        attention square (the convention of arXiv 2104.04473, so figures compare with Megatron-LM's)."""
        layers = sum(self.layer_matrix_flop(1, kind) for kind in self.layer_kinds)
        layers += self.model.layers * self.attention_flop(1, causal=False)
        head = 2.0 * self.model.hidden_size * self.model.vocab_size
        return 3.0 * (layers + head)

    # ------------------------------------------------------------------- bytes
    @property
    def dropout(self) -> bool:
        """Whether dropout masks are kept: the GPT recipe (learned positions) trains with dropout."""
        return self.model.position_embedding == "learned"

    def layer_activation_bytes(
        self,
        tensor: int,
        *,
        element_bytes: int,
        sequence_parallel: bool,
        flash: bool,
        recompute: str,
        kind: LayerKind = "dense",
    ) -> float:
        """Bytes per token kept from forward to backward of one layer on one tensor rank.

        ``recompute`` none or selective (core attention dropped); with ``full`` see
        `layer_checkpoint_bytes`. Experts are taken as equally loaded.
        """
        model = self.model
        scale = element_bytes / 2
        replicated = 8.0 * model.hidden_size * scale + (2.0 * model.hidden_size if self.dropout else 0.0)
        replicated += 4.0 * self._latent_width * scale
        split = (self._attention_kept(tensor) + self._mlp_kept(kind)) * scale
        if recompute == "selective":
            core = 0.0
        elif flash:
            core = 4.0 * model.attention_heads
        else:
            kept = 2.0 * scale + (1.0 + 2.0 * scale if self.dropout else 0.0)
            core = kept * model.attention_heads * model.sequence_length
        router = 0.0
        if kind == "moe" and model.moe is not None:
            router = 8.0 * model.moe.experts  # fp32 scores and their softmax
        shared = tensor if sequence_parallel else 1
        return (replicated + router) / shared + (split + core) / tensor

    @property
    def _latent_width(self) -> int:
        """Numbers per token in the latents of queries and keys; each is a norm's input and its output."""
        mla = self.model.mla
        return 0 if mla is None else (mla.q_lora_rank or 0) + mla.kv_lora_rank

    def _attention_kept(self, tensor: int) -> float:
        """Bytes at 2 per number, all tensor ranks together: queries, keys, values and the output."""
        model = self.model
        if model.mla is not None:
            return 4.0 * (query_width(model) + value_width(model))
        kv_width = self.kv_heads_per_rank(tensor) * tensor * model.head_dim
        return 4.0 * value_width(model) + 4.0 * kv_width

    def _mlp_kept(self, kind: LayerKind) -> float:
        """The same for the MLP, or for the experts a rank runs: their input sent there once per choice, what
        the activation function reads and writes. The router's weights are applied inside the experts, so
        their output is not kept."""
        model, moe = self.model, self.model.moe
        if kind == "dense" or moe is None:
            return 2.0 * model.ffn_hidden_size * self.mlp_matrices
        routed = moe.top_k * (2.0 * model.hidden_size + 2.0 * moe.ffn_hidden_size * self.mlp_matrices)
        return routed + 2.0 * moe.shared_ffn_hidden_size * self.mlp_matrices

    def layer_checkpoint_bytes(self, tensor: int, *, element_bytes: int, sequence_parallel: bool) -> float:
        """Bytes per token kept of one layer under full recompute: its input."""
        return element_bytes * self.model.hidden_size / (tensor if sequence_parallel else 1)

    def layer_memory_traffic_bytes(
        self,
        tensor: int,
        *,
        element_bytes: int,
        sequence_parallel: bool,
        flash: bool,
        kind: LayerKind = "dense",
    ) -> float:
        """Bytes per token moved to and from device memory by the forward's element-wise kernels.

        Two norms (read, write), two residual additions (two reads, one write) with their dropout masks,
        the MLP's activation function, and without flash attention the scores: scale, mask and softmax
        (read, write), dropout (read, write, mask). Experts: tokens ordered by expert (read, write) and
        added up again (read, write), their activation function.
        """
        model, moe = self.model, self.model.moe
        hidden = model.hidden_size * (4.0 + 6.0) * element_bytes + (2.0 * model.hidden_size * self.dropout)
        hidden += 4.0 * self._latent_width * element_bytes
        width = float(model.ffn_hidden_size)
        moved = 0.0
        if kind == "moe" and moe is not None:
            width = float(moe.shared_ffn_hidden_size + moe.top_k * moe.ffn_hidden_size)
            moved = 4.0 * moe.top_k * model.hidden_size * element_bytes
        activation = self.mlp_matrices * width * element_bytes
        scores = self.scores_memory_traffic_bytes(tensor, element_bytes=element_bytes, flash=flash)
        return hidden / (tensor if sequence_parallel else 1) + (activation + moved) / tensor + scores

    def scores_memory_traffic_bytes(self, tensor: int, *, element_bytes: int, flash: bool) -> float:
        """The part of it that selective recompute repeats: softmax and dropout over the scores."""
        if flash:
            return 0.0
        passes = 2.0 * element_bytes + ((2.0 * element_bytes + 1.0) if self.dropout else 0.0)
        return passes * self.model.attention_heads * self.model.sequence_length / tensor
