"""A dense transformer, counted: parameters, operations and bytes of its parts on one tensor rank.

Everything here is arithmetic on shapes; nothing knows a GPU or a network. ``t`` is the tensor degree,
``e`` the bytes of an activation element, one *token* is one position of one sequence.

Sources: parameter shapes as in Megatron-LM's GPT model (column- and row-parallel linears, vocabulary
padded to ``128 * t``); activation bytes after arXiv 2205.05198, generalised to gated MLPs and grouped
key/value heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from pipette_milp.schema.model import ModelSection

VOCABULARY_MULTIPLE = 128
"""Megatron-LM pads the vocabulary to this times the tensor degree (``--make-vocab-size-divisible-by``)."""


@dataclass(frozen=True)
class Transformer:
    """Counts for one model. All methods are pure; ``tensor`` must divide the attention heads."""

    model: ModelSection

    # ------------------------------------------------------------------ shapes
    @cached_property
    def attention_width(self) -> int:
        """Width of the concatenated heads; equals the hidden size in most models."""
        return self.model.attention_heads * self.model.head_dim

    def kv_heads_per_rank(self, tensor: int) -> int:
        """Key/value heads a tensor rank holds; replicated when there are fewer heads than ranks."""
        return max(1, self.model.kv_heads // tensor)

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
        total = model.layers * self.layer_parameters(1) + self.norm_parameters
        total += model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2)
        return total + self.position_parameters

    @property
    def position_parameters(self) -> int:
        """Rows of a learned position table times the hidden size."""
        if self.model.position_embedding != "learned":
            return 0
        return self.model.max_positions * self.model.hidden_size

    def layer_matrix_parameters(self, tensor: int) -> int:
        """Weights of one layer's matrices on one tensor rank."""
        model = self.model
        q_and_out = 2 * model.hidden_size * self.attention_width // tensor
        kv = 2 * model.hidden_size * self.kv_heads_per_rank(tensor) * model.head_dim
        mlp = self.mlp_matrices * model.hidden_size * model.ffn_hidden_size // tensor
        return q_and_out + kv + mlp

    def layer_parameters(self, tensor: int) -> int:
        """Parameters of one layer on one tensor rank; norms and row-parallel biases are replicated."""
        model = self.model
        kv_width = self.kv_heads_per_rank(tensor) * model.head_dim
        total = self.layer_matrix_parameters(tensor) + 2 * self.norm_parameters
        if model.biases or model.qkv_bias:
            total += self.attention_width // tensor + 2 * kv_width
        if model.biases:
            total += model.hidden_size  # attention output
            total += (self.mlp_matrices - 1) * model.ffn_hidden_size // tensor + model.hidden_size
        if model.qk_norm:
            total += 2 * model.head_dim
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
    def layer_matrix_flop(self, tensor: int) -> float:
        """Forward FLOP per token of one layer's weight matrices on one tensor rank."""
        return 2.0 * self.layer_matrix_parameters(tensor)

    def attention_flop(self, tensor: int, *, causal: bool) -> float:
        """Forward FLOP per token of scores and their product with the values on one tensor rank.

        ``causal``: the kernel skips the masked half (flash attention does, separate kernels do not).
        """
        full = 4.0 * self.model.sequence_length * self.attention_width / tensor
        return full / 2 if causal else full

    def head_flop(self, tensor: int) -> float:
        """Forward FLOP per token of the output matrix on one tensor rank, padding included."""
        return 2.0 * self.model.hidden_size * self.padded_vocabulary(tensor) / tensor

    @cached_property
    def model_flop_per_token(self) -> float:
        """Forward and backward FLOP per token that the model needs: no recompute, no padding, the full
        attention square (the convention of arXiv 2104.04473, so figures compare with Megatron-LM's)."""
        per_layer = self.layer_matrix_flop(1) + self.attention_flop(1, causal=False)
        head = 2.0 * self.model.hidden_size * self.model.vocab_size
        return 3.0 * (self.model.layers * per_layer + head)

    # ------------------------------------------------------------------- bytes
    @property
    def dropout(self) -> bool:
        """Whether dropout masks are kept: the GPT recipe (learned positions) trains with dropout."""
        return self.model.position_embedding == "learned"

    def layer_activation_bytes(
        self, tensor: int, *, element_bytes: int, sequence_parallel: bool, flash: bool, recompute: str
    ) -> float:
        """Bytes per token kept from forward to backward of one layer on one tensor rank.

        ``recompute`` none or selective (core attention dropped); with ``full`` see
        `layer_checkpoint_bytes`.
        """
        model = self.model
        scale = element_bytes / 2
        replicated = 8.0 * model.hidden_size * scale + (2.0 * model.hidden_size if self.dropout else 0.0)
        kv_width = self.kv_heads_per_rank(tensor) * tensor * model.head_dim
        mlp = 2.0 * model.ffn_hidden_size * self.mlp_matrices
        split = (4.0 * self.attention_width + 4.0 * kv_width + mlp) * scale
        if recompute == "selective":
            core = 0.0
        elif flash:
            core = 4.0 * model.attention_heads
        else:
            kept = 2.0 * scale + (1.0 + 2.0 * scale if self.dropout else 0.0)
            core = kept * model.attention_heads * model.sequence_length
        return replicated / (tensor if sequence_parallel else 1) + (split + core) / tensor

    def layer_checkpoint_bytes(self, tensor: int, *, element_bytes: int, sequence_parallel: bool) -> float:
        """Bytes per token kept of one layer under full recompute: its input."""
        return element_bytes * self.model.hidden_size / (tensor if sequence_parallel else 1)

    def layer_memory_traffic_bytes(
        self, tensor: int, *, element_bytes: int, sequence_parallel: bool, flash: bool
    ) -> float:
        """Bytes per token moved to and from device memory by the forward's element-wise kernels.

        Two norms (read, write), two residual additions (two reads, one write) with their dropout masks,
        the MLP's activation function, and without flash attention the scores: scale, mask and softmax
        (read, write), dropout (read, write, mask).
        """
        model = self.model
        hidden = model.hidden_size * (4.0 + 6.0) * element_bytes + (2.0 * model.hidden_size * self.dropout)
        activation = self.mlp_matrices * model.ffn_hidden_size * element_bytes
        scores = self.scores_memory_traffic_bytes(tensor, element_bytes=element_bytes, flash=flash)
        return hidden / (tensor if sequence_parallel else 1) + activation / tensor + scores

    def scores_memory_traffic_bytes(self, tensor: int, *, element_bytes: int, flash: bool) -> float:
        """The part of it that selective recompute repeats: softmax and dropout over the scores."""
        if flash:
            return 0.0
        passes = 2.0 * element_bytes + ((2.0 * element_bytes + 1.0) if self.dropout else 0.0)
        return passes * self.model.attention_heads * self.model.sequence_length / tensor
