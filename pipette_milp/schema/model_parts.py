"""Parts of a layer that some models have: mixture of experts, latent attention."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import Count, Flag
from pipette_milp.schema.strict import Location, problems_error

WholeNumber = Annotated[int, Field(ge=0, strict=True)]


class MixtureOfExperts(FrozenModel):
    """Experts in place of the MLP, in some layers or all of them.

    Which layers: ``layers`` says 1 or 0 for each; else layer ``i`` has experts if
    ``i >= first_dense_layers`` and ``i % layer_frequency == 0`` (DeepSeek, Megatron-LM).
    """

    experts: Count
    """Routed experts of a layer."""
    top_k: Count
    """Experts a token is sent to."""
    ffn_hidden_size: Count
    """Width of one routed expert, a gated MLP where the model's MLP is gated."""
    shared_ffn_hidden_size: WholeNumber = 0
    """Width of all shared experts together; 0 = none."""
    shared_expert_gate: Flag = False
    """A gate of ``hidden_size`` weights on the shared expert (Qwen)."""
    router_bias: Flag = False
    """One number per expert added to the router's scores (DeepSeek-V3)."""
    first_dense_layers: WholeNumber = 0
    layer_frequency: Count = 1
    layers: tuple[Annotated[int, Field(ge=0, le=1, strict=True)], ...] | None = None
    """1 for every layer with experts, 0 for the others; excludes the two fields above."""

    @model_validator(mode="after")
    def _consistent(self) -> MixtureOfExperts:
        problems: list[tuple[Location, str]] = []
        if self.top_k > self.experts:
            problems.append((("top_k",), f"{self.top_k} exceeds the {self.experts} experts"))
        if self.shared_expert_gate and not self.shared_ffn_hidden_size:
            problems.append((("shared_expert_gate",), "there is no shared expert to gate"))
        if self.layers is not None and (self.first_dense_layers or self.layer_frequency != 1):
            problems.append((("layers",), "leave out either this or first_dense_layers and layer_frequency"))
        if problems:
            raise problems_error(problems)
        return self

    def has_experts(self, layer: int) -> bool:
        """Whether layer ``layer``, counted from 0, has experts."""
        if self.layers is not None:
            return bool(self.layers[layer])
        return layer >= self.first_dense_layers and layer % self.layer_frequency == 0


class LatentAttention(FrozenModel):
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values from low-rank projections.

    Heads are ``attention_heads``; ``kv_heads`` and ``head_dim`` of the model do not apply.
    """

    q_lora_rank: Count | None = None
    """None: queries are projected directly."""
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
