"""Section ``model`` of an instance: the shape of the transformer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from pipette_milp.schema.model_parts import LatentAttention, MixtureOfExperts
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import Count, Flag, LayerCount
from pipette_milp.schema.strict import problems_error

PositionEmbedding = Literal["learned", "rope", "none"]
Normalization = Literal["layernorm", "rmsnorm"]


class ModelSection(FrozenModel):
    """A decoder-only transformer; layers are equal but for the experts that some of them have.

    ``vocab_size`` is the tokenizer's; padding to the tensor degree is the framework's affair.
    """

    name: str = Field(min_length=1)
    layers: LayerCount
    hidden_size: Count
    ffn_hidden_size: Count
    """Width of the MLP in layers without experts."""
    attention_heads: Count
    kv_heads: Count = Field(default=None, validate_default=True)
    """Default: ``attention_heads``."""
    head_dim: Count = Field(default=None, validate_default=True)
    """Default: ``hidden_size / attention_heads``."""
    vocab_size: Count
    sequence_length: Count
    gated_mlp: Flag
    """Three matrices per MLP instead of two."""
    tied_embeddings: Flag
    position_embedding: PositionEmbedding
    max_positions: Count = Field(default=None, validate_default=True)
    """Rows of a learned position table. Default: ``sequence_length``."""
    normalization: Normalization
    biases: Flag
    """Biases on all linear layers and, with layernorm, on the norms."""
    qkv_bias: Flag = False
    """Biases on the query, key and value projections only (Qwen2); implied by ``biases``."""
    qk_norm: Flag = False
    """A norm of ``head_dim`` weights on queries and one on keys (Qwen3)."""
    moe: MixtureOfExperts | None = None
    mla: LatentAttention | None = None

    # Defaults that follow from fields above. Where such a field is invalid itself, 1 stands in: the
    # section is refused for that field and not for this one.

    @field_validator("kv_heads", mode="before")
    @classmethod
    def _default_kv_heads(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("attention_heads", 1) if value is None else value

    @field_validator("head_dim", mode="before")
    @classmethod
    def _default_head_dim(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        hidden, heads = info.data.get("hidden_size"), info.data.get("attention_heads")
        if hidden is None or heads is None:
            return 1
        if hidden % heads:
            raise ValueError(f"is required: {heads} heads do not divide hidden_size {hidden}")
        return hidden // heads

    @field_validator("max_positions", mode="before")
    @classmethod
    def _default_max_positions(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("sequence_length", 1) if value is None else value

    @field_validator("kv_heads")
    @classmethod
    def _kv_heads(cls, value: int, info: ValidationInfo) -> int:
        heads = info.data.get("attention_heads")
        if heads is not None and heads % value:
            raise ValueError(f"expected a divisor of the {heads} attention heads")
        return value

    @field_validator("max_positions")
    @classmethod
    def _table_long_enough(cls, value: int, info: ValidationInfo) -> int:
        sequence = info.data.get("sequence_length")
        if info.data.get("position_embedding") == "learned" and sequence is not None and value < sequence:
            raise ValueError(f"a learned table of {value} rows is shorter than sequence_length {sequence}")
        return value

    @field_validator("moe")
    @classmethod
    def _layers_exist(cls, value: MixtureOfExperts | None, info: ValidationInfo) -> MixtureOfExperts | None:
        layers = info.data.get("layers")
        if value is None or layers is None:
            return value
        if value.layers is not None and len(value.layers) != layers:
            text = f"has {len(value.layers)} entries, expected one per layer, {layers}"
            raise problems_error([(("layers",), text)])
        if not any(value.has_experts(layer) for layer in range(layers)):
            raise ValueError("no layer has experts: leave moe out")
        return value
