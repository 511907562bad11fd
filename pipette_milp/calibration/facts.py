"""What the tables of measured runs leave out and is known from elsewhere: frameworks, model families,
clusters.

Facts only, each with its source; nothing here is fitted and nothing is chosen by the outcome of a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import PipetteError


class Refused(PipetteError):
    """A row that cannot be expressed; the message is the reason."""


@dataclass(frozen=True)
class FrameworkFacts:
    """How a framework trains where a row does not say."""

    profile: str
    """Key of the constants' ``frameworks``."""
    framework: str = "megatron"
    """Whose rules of legality and buffers it has, as in ``training.framework``."""
    gradient_dtype: dict[str, str] = field(default_factory=dict)
    """By precision; the schema's default otherwise."""
    scatter_gather_hops: bool = False
    overlap_gradient_reduce: bool = False
    sharded_reduce_exposed: bool = False
    """Whether the overlap of the gradient reduction is given up with a sharded optimiser."""
    overlap_parameter_gather: bool = False
    overlap_tensor: bool = False
    """Chunked overlap of tensor collectives, where sequence parallel is on."""
    recompute: str = "none"
    sequence_parallel: bool = False
    data_sharding: str = "none"


FRAMEWORKS: tuple[tuple[str, FrameworkFacts], ...] = (
    # DeepSpeed's pipeline engine partitions hops over tensor ranks (deepspeed/runtime/pipe/engine.py)
    ("megatron-deepspeed", FrameworkFacts("megatron-deepspeed", "deepspeed", scatter_gather_hops=True)),
    ("deepspeed pipeline", FrameworkFacts("deepspeed", "deepspeed", scatter_gather_hops=True)),
    ("megatron-lm + deepspeed", FrameworkFacts("megatron-v2")),
    # arXiv 2104.04473, section 4.1: scatter/gather of hops; its code has no overlap of any collective
    ("megatron-lm v2", FrameworkFacts("megatron-v2", scatter_gather_hops=True)),
    ("megatron-lm v1", FrameworkFacts("megatron-v2")),
    # performance recipes of NeMo and Megatron-Bridge: distributed optimizer, all three overlaps
    (
        "nemo",
        FrameworkFacts(
            "nemo",
            overlap_gradient_reduce=True,
            overlap_parameter_gather=True,
            overlap_tensor=True,
            data_sharding="optimizer",
        ),
    ),
    (
        "megatron-bridge",
        FrameworkFacts(
            "nemo",
            overlap_gradient_reduce=True,
            overlap_parameter_gather=True,
            overlap_tensor=True,
            data_sharding="optimizer",
        ),
    ),
    # nanotron: fp32 gradient accumulation by default, reduced after the last backward of a bucket
    (
        "nanotron",
        FrameworkFacts(
            "nanotron", overlap_gradient_reduce=True, sharded_reduce_exposed=True, sequence_parallel=True
        ),
    ),
    ("llm-foundry", FrameworkFacts("fsdp", overlap_gradient_reduce=True, overlap_parameter_gather=True)),
    ("fsdp", FrameworkFacts("fsdp", overlap_gradient_reduce=True, overlap_parameter_gather=True)),
    ("torchtitan", FrameworkFacts("fsdp", overlap_gradient_reduce=True, overlap_parameter_gather=True)),
    # launch lines of the runs say it where overlap is on
    ("megatron", FrameworkFacts("megatron")),
)
"""By the beginning of the column ``framework``, lower case; the first that matches."""

GENERAL_FRAMEWORK = FrameworkFacts("megatron")


def framework_facts(framework: str) -> FrameworkFacts:
    """Facts of a framework by its name; Megatron-LM without overlaps for unknown ones."""
    wanted = framework.lower()
    for beginning, facts in FRAMEWORKS:
        if wanted.startswith(beginning) or f" {beginning}" in wanted:
            return facts
    return GENERAL_FRAMEWORK


_LLAMA: dict[str, Any] = {
    "gated_mlp": True,
    "tied_embeddings": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "biases": False,
}
_GPT: dict[str, Any] = {
    "gated_mlp": False,
    "tied_embeddings": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "biases": True,
}

_MLA = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_QWEN3 = {**_LLAMA, "head_dim": 128, "qk_norm": True}

MODELS: tuple[tuple[str, dict[str, Any]], ...] = (
    # nanotron's benchmark script ties the embedding of the small models (1.34 and 3.57 B match only so)
    (r"nanotron-llama-[13]B", {**_LLAMA, "tied_embeddings": True}),
    # shapes of the published config.json files
    (
        r"deepseek-?v2",
        {
            **_LLAMA,
            "mla": _MLA,
            "moe": {"ffn_hidden_size": 1536, "shared_ffn_hidden_size": 3072, "first_dense_layers": 1},
        },
    ),
    (
        r"deepseek-?v3",
        {
            **_LLAMA,
            "mla": _MLA,
            "moe": {
                "ffn_hidden_size": 2048,
                "shared_ffn_hidden_size": 2048,
                "first_dense_layers": 3,
                "router_bias": True,
            },
        },
    ),
    (
        r"kimi-?k2",
        {
            **_LLAMA,
            "mla": _MLA,
            "moe": {
                "ffn_hidden_size": 2048,
                "shared_ffn_hidden_size": 2048,
                "first_dense_layers": 1,
                "router_bias": True,
            },
        },
    ),
    (r"qwen3-30B", {**_QWEN3, "moe": {"ffn_hidden_size": 768}}),
    (r"qwen3-235B", {**_QWEN3, "moe": {"ffn_hidden_size": 1536}}),
    (r"gpt-oss", {**_LLAMA, "head_dim": 64, "biases": True, "moe": {"ffn_hidden_size": 2880}}),
    (r"mixtral-8x7B", {**_LLAMA, "moe": {"ffn_hidden_size": 14336}}),
    (r"mixtral-8x22B", {**_LLAMA, "moe": {"ffn_hidden_size": 16384}}),
    (r"llama|nanotron|qwen|mistral|mixtral|deepseek|kimi|gpt-oss", _LLAMA),
    # squared ReLU, no gate (Nemotron-4 technical report)
    (r"nemotron", {**_LLAMA, "gated_mlp": False, "normalization": "layernorm"}),
    # MPT: no biases, tied, no dropout; its learned positions are left out (they would imply dropout)
    (r"mpt", {**_GPT, "position_embedding": "none", "biases": False}),
)
"""By a pattern in the column ``model_name``; GPT (learned positions, dropout, biases, tied) otherwise."""


def model_facts(name: str) -> dict[str, Any]:
    """Model options that no column holds."""
    for pattern, options in MODELS:
        if re.search(pattern, name, re.IGNORECASE):
            return dict(options)
    return dict(_GPT)


@dataclass(frozen=True)
class ClusterFacts:
    """Network of a published cluster."""

    cards: int
    bytes_per_s_per_card: float
    """Nominal, one direction."""
    source: str
    technology: str = "infiniband"
    """Key of `ATTAINED_FRACTIONS`."""
    all_reduce_bytes_per_s: tuple[tuple[int, float], ...] = ()
    """Measured bus bandwidth of a large all-reduce by number of nodes; what a node attains then."""


ATTAINED_FRACTIONS = {"omni-path": 0.21}
"""Attained / nominal rate of large collectives where the preset rule (InfiniBand) does not hold. Measured,
not fitted: an all-reduce of 4 GB on four nodes of Jean Zay has a bus bandwidth of 84.6 of 400 Gbit/s
(BigScience, experiments/bandwidth/all_reduce_bench-32gb-4n.txt). NCCL's rings passed two of the four cards
there and got 42 Gbit/s of each; one ring over one card of an A100 node got 40.5
(all_reduce_bench-a100-n4.txt), 16 nodes 54 (n16_32gb_all_reduce_bench.txt)."""

CLUSTERS: tuple[tuple[str, ClusterFacts], ...] = (
    (
        "bloom",
        ClusterFacts(4, 12.5e9, "Jean Zay, 8 x A100 nodes with 4 Omni-Path links of 100 Gbit/s", "omni-path"),
    ),
    (
        "bs1b3",
        ClusterFacts(4, 12.5e9, "Jean Zay, 4 x V100 nodes with 4 Omni-Path links of 100 Gbit/s", "omni-path"),
    ),
    (
        "nanotron",
        ClusterFacts(
            8,
            50e9,
            "8 x H100 nodes, four EFA links of 100 Gbit/s a GPU; all-reduce as plotted beside the runs",
            "ethernet",
            (
                (1, 436e9),
                (2, 362e9),
                (4, 160e9),
                (8, 100e9),
                (16, 85e9),
                (32, 65e9),
                (64, 33e9),
            ),
        ),
    ),
    ("zb", ClusterFacts(4, 25e9, "arXiv 2401.10241: RoCE, 4 x 200 Gbit/s a node assumed")),
)
"""By the prefix of ``run_id``, where the columns hold no network."""

CARDS_OF_GPU: tuple[tuple[str, tuple[int, int, float]], ...] = (
    ("GB300", (4, 4, 100e9)),
    ("GB200", (4, 4, 50e9)),
    ("GH200", (4, 4, 25e9)),
    ("B300", (8, 8, 100e9)),
    ("B200", (8, 8, 50e9)),
    ("H200", (8, 8, 50e9)),
    ("H100", (8, 8, 50e9)),
    ("A100", (8, 8, 25e9)),
    ("V100", (8, 4, 12.5e9)),
)
"""GPUs and network cards of the vendor's reference node, bytes/s of a card (DGX and NVL72 data sheets),
where nothing else is known."""

SCALE_UP_DOMAINS = {"GB200": 64, "GB300": 64}
"""GPUs of an NVLink domain that a job uses: NVL72 racks keep two trays of four as spares."""


@dataclass(frozen=True)
class HostFacts:
    """Links of a host in a mixed cluster, bytes/s."""

    scale_up_bytes_per_s: float
    attained_bytes_per_s: float
    """Of its network card."""


HOSTS: tuple[tuple[str, HostFacts], ...] = (
    # AWS p3.8xlarge: 170 Gbit/s between GPUs, 10 Gbit/s card; g4dn.12xlarge: 50 and 50 (AMP, het_cluster.py)
    ("V100", HostFacts(21.25e9, 0.92 * 1.25e9)),
    ("T4", HostFacts(6.25e9, 0.92 * 6.25e9)),
)
"""By the beginning of the GPU's name."""

GPU_OF_MODEL: tuple[tuple[str, str], ...] = (
    ("A100-40", "a100-40gb"),
    ("A100", "a100-80gb"),
    ("GB300", "gb300"),
    ("GB200", "gb200"),
    ("B300", "b300"),
    ("B200", "b200"),
    ("GH200", "gh200"),
    ("H200", "h200-141gb"),
    ("H100-PCIE", "h100-80gb-pcie"),
    ("H100-96", "h100-96gb"),
    ("H100", "h100-80gb"),
    ("V100-32", "v100-32gb"),
    ("V100", "v100-16gb"),
    ("T4", "t4-16gb"),
    ("RTX 4090", "rtx-4090"),
    ("RTX 3090", "rtx-3090"),
    ("TITAN", "titan-rtx"),
)
"""Preset by the beginning of the column ``gpu_model``, where it is no preset's name itself."""
