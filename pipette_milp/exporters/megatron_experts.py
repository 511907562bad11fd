"""Megatron-LM arguments of experts and of latent attention.

Names: Megatron-LM, training/arguments.py and transformer_config.py (formats, section 1.2). Experts have the
tensor degree of the dense layers, Megatron's default.
"""

from __future__ import annotations

from itertools import groupby

from pipette_milp.schema.model import ModelSection


def expert_arguments(model: ModelSection, expert: int) -> tuple[str, ...]:
    """Shape of the experts, and how they are spread; nothing for a dense model."""
    moe = model.moe
    if moe is None:
        return ()
    arguments = [
        f"--num-experts {moe.experts}",
        f"--moe-router-topk {moe.top_k}",
        f"--moe-ffn-hidden-size {moe.ffn_hidden_size}",
        f"--moe-layer-freq {_pattern([moe.has_experts(layer) for layer in range(model.layers)])}",
        f"--expert-model-parallel-size {expert}",
        "--moe-token-dispatcher-type alltoall",
        "--moe-grouped-gemm",
    ]
    if moe.shared_ffn_hidden_size:
        arguments.append(f"--moe-shared-expert-intermediate-size {moe.shared_ffn_hidden_size}")
    if moe.shared_expert_gate:
        arguments.append("--moe-shared-expert-gate")
    if moe.router_bias:
        # Megatron has the bias with sigmoid scores only, as DeepSeek-V3 does
        arguments += ["--moe-router-score-function sigmoid", "--moe-router-enable-expert-bias"]
    return tuple(arguments)


def latent_attention_arguments(model: ModelSection) -> tuple[str, ...]:
    """Ranks and head widths of latent attention; nothing without it."""
    mla = model.mla
    if mla is None:
        return ()
    queries = () if mla.q_lora_rank is None else (f"--q-lora-rank {mla.q_lora_rank}",)
    return (
        "--multi-latent-attention",
        *queries,
        f"--kv-lora-rank {mla.kv_lora_rank}",
        f"--qk-head-dim {mla.qk_nope_head_dim}",
        f"--qk-pos-emb-head-dim {mla.qk_rope_head_dim}",
        f"--v-head-dim {mla.v_head_dim}",
    )


def _pattern(flags: list[bool]) -> str:
    """A Python list expression as Megatron reads it: ``([0]*3+[1]*58)``."""
    parts = [f"[{int(flag)}]*{len(list(run))}" for flag, run in groupby(flags)]
    return f"({'+'.join(parts)})"
