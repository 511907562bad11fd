"""One tensor rank's share of a layer, the embedding and the head, as PyTorch modules made to be timed.

Weights and inputs are random; what counts is the shape of every operation. Collectives of the tensor group
are left out. Without sequence parallelism, so norms see all positions.
"""

from __future__ import annotations

from typing import Any

from pipette_milp.schema.instance import Instance
from pipette_milp.transformer import Transformer

DROPOUT = 0.1
"""Of the GPT recipe (learned positions), as `Transformer.dropout` has it."""


def build_part(torch: Any, instance: Instance, kind: str, tensor: int) -> Any:
    """A module for ``dense``, ``embedding`` or ``head``, on the CPU in fp32.

    Its ``forward`` takes hidden states [micro-batch, positions, hidden]; the embedding takes token ids
    [micro-batch, positions]; the head takes hidden states and token ids and returns the loss.
    """
    parts = {"dense": _layer, "embedding": _embedding, "head": _head}
    return parts[kind](torch, instance, Transformer(instance.model), tensor)


def _norm(torch: Any, instance: Instance, width: int) -> Any:
    model = instance.model
    if model.normalization == "rmsnorm":
        return torch.nn.RMSNorm(width)
    return torch.nn.LayerNorm(width, bias=model.biases)


def _layer(torch: Any, instance: Instance, transformer: Transformer, tensor: int) -> Any:
    model = instance.model
    nn: Any = torch.nn
    functional = nn.functional
    heads = model.attention_heads // tensor
    kv_heads = transformer.kv_heads_per_rank(tensor)
    width, kv_width = heads * model.head_dim, kv_heads * model.head_dim
    ffn = model.ffn_hidden_size // tensor
    flash = instance.training.flash_attention
    dropout = DROPOUT if transformer.dropout else 0.0
    bias_of_qkv = model.biases or model.qkv_bias

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first_norm = _norm(torch, instance, model.hidden_size)
            self.second_norm = _norm(torch, instance, model.hidden_size)
            self.query_key_value = nn.Linear(model.hidden_size, width + 2 * kv_width, bias=bias_of_qkv)
            self.projection = nn.Linear(width, model.hidden_size, bias=model.biases)
            inner = 2 * ffn if model.gated_mlp else ffn
            self.up = nn.Linear(model.hidden_size, inner, bias=model.biases)
            self.down = nn.Linear(ffn, model.hidden_size, bias=model.biases)
            self.head_norms = nn.ModuleList(
                [nn.RMSNorm(model.head_dim) for _ in range(2)] if model.qk_norm else []
            )

        def attention(self, hidden: Any) -> Any:
            batch, positions, _ = hidden.shape
            query, key, value = self.query_key_value(hidden).split([width, kv_width, kv_width], dim=-1)
            query = query.view(batch, positions, heads, model.head_dim)
            key = key.view(batch, positions, kv_heads, model.head_dim)
            value = value.view(batch, positions, kv_heads, model.head_dim)
            if len(self.head_norms):
                query, key = self.head_norms[0](query), self.head_norms[1](key)
            query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
            if kv_heads != heads:
                key = key.repeat_interleave(heads // kv_heads, dim=1)
                value = value.repeat_interleave(heads // kv_heads, dim=1)
            if flash:
                mixed = functional.scaled_dot_product_attention(
                    query, key, value, dropout_p=dropout, is_causal=True
                )
            else:
                scores = query @ key.transpose(-2, -1) * model.head_dim**-0.5
                ones = torch.ones(positions, positions, dtype=torch.bool, device=hidden.device)
                weights = scores.masked_fill(ones.triu(1), float("-inf")).softmax(dim=-1)
                mixed = functional.dropout(weights, dropout) @ value
            return self.projection(mixed.transpose(1, 2).reshape(batch, positions, width))

        def mlp(self, hidden: Any) -> Any:
            inner = self.up(hidden)
            if model.gated_mlp:
                gate, inner = inner.chunk(2, dim=-1)
                return self.down(functional.silu(gate) * inner)
            return self.down(functional.gelu(inner, approximate="tanh"))

        def forward(self, hidden: Any) -> Any:
            hidden = hidden + functional.dropout(self.attention(self.first_norm(hidden)), dropout)
            return hidden + functional.dropout(self.mlp(self.second_norm(hidden)), dropout)

    return Layer()


def _embedding(torch: Any, instance: Instance, transformer: Transformer, tensor: int) -> Any:
    model, nn = instance.model, torch.nn
    rows = transformer.padded_vocabulary(tensor) // tensor
    dropout = DROPOUT if transformer.dropout else 0.0

    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(rows, model.hidden_size)
            learned = model.position_embedding == "learned"
            self.positions = nn.Embedding(model.max_positions, model.hidden_size) if learned else None

        def forward(self, tokens: Any) -> Any:
            # ids of other ranks' rows are masked to zero in training; here they fall on this rank's rows
            hidden = self.words(tokens % rows)
            if self.positions is not None:
                hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
            return nn.functional.dropout(hidden, dropout)

    return Embedding()


def _head(torch: Any, instance: Instance, transformer: Transformer, tensor: int) -> Any:
    model, nn = instance.model, torch.nn
    rows = transformer.padded_vocabulary(tensor) // tensor

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = _norm(torch, instance, model.hidden_size)
            self.output = nn.Linear(model.hidden_size, rows, bias=False)

        def forward(self, hidden: Any, tokens: Any) -> Any:
            logits = self.output(self.norm(hidden)).float()
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten() % rows)

    return Head()
