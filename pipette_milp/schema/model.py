"""Section ``model`` of an instance: the shape of the transformer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import Count, unsupported
from pipette_milp.schema.strict import problems_error

PositionEmbedding = Literal["learned", "rope", "none"]
Normalization = Literal["layernorm", "rmsnorm"]


class ModelSection(FrozenModel):
    """A decoder-only transformer of equal dense layers.

    ``vocab_size`` is the tokenizer's; padding to the tensor degree is the framework's affair.
    """

    name: str = Field(min_length=1)
    layers: Count
    hidden_size: Count
    ffn_hidden_size: Count
    attention_heads: Count
    kv_heads: Count
    """Default: ``attention_heads``."""
    head_dim: Count
    """Default: ``hidden_size / attention_heads``."""
    vocab_size: Count
    sequence_length: Count
    gated_mlp: bool
    """Three matrices per MLP instead of two."""
    tied_embeddings: bool
    position_embedding: PositionEmbedding
    max_positions: Count
    """Rows of a learned position table. Default: ``sequence_length``."""
    normalization: Normalization
    biases: bool
    """Biases on all linear layers and, with layernorm, on the norms."""
    qkv_bias: bool = False
    """Biases on the query, key and value projections only (Qwen2); implied by ``biases``."""
    qk_norm: bool = False
    """A norm of ``head_dim`` weights on queries and one on keys (Qwen3)."""
    moe: Annotated[None, unsupported(None, what="mixture of experts")] = None
    mla: Annotated[None, unsupported(None, what="latent attention")] = None

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        heads, hidden = data.get("attention_heads"), data.get("hidden_size")
        if data.get("kv_heads") is None and heads is not None:
            filled["kv_heads"] = heads
        if data.get("max_positions") is None and data.get("sequence_length") is not None:
            filled["max_positions"] = data["sequence_length"]
        if data.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int):
            if heads < 1 or hidden < 1:
                return filled  # the fields themselves say what is wrong
            if hidden % heads:
                raise problems_error(
                    [(("head_dim",), f"is required: {heads} heads do not divide hidden_size {hidden}")]
                )
            filled["head_dim"] = hidden // heads
        return filled

    @field_validator("kv_heads")
    @classmethod
    def _kv_heads(cls, value: int, info: ValidationInfo) -> int:
        heads = info.data.get("attention_heads")
        if heads is not None and heads % value:
            raise ValueError(f"expected a divisor of the {heads} attention heads")
        return value

    @model_validator(mode="after")
    def _contradictions(self) -> ModelSection:
        if self.position_embedding == "learned" and self.max_positions < self.sequence_length:
            raise ValueError(
                f"a learned table of max_positions = {self.max_positions} is shorter than "
                f"sequence_length = {self.sequence_length}"
            )
        return self
