"""Which importer reads which kind of file, and guessing the kind from the content."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from pipette_milp.errors import InputError, Problem

_PACKAGE = "pipette_milp.importers"

KINDS: dict[str, str] = {
    "hf-config": f"{_PACKAGE}.huggingface",
    "megatron": f"{_PACKAGE}.megatron",
    "nvidia-smi-topo": f"{_PACKAGE}.topology",
    "nccl-tests": f"{_PACKAGE}.nccl_tests",
    "nccl-tests-json": f"{_PACKAGE}.nccl_tests_json",
    "mpigraph": f"{_PACKAGE}.mpigraph",
    "pipette-json": f"{_PACKAGE}.reference_json",
    "matrix": f"{_PACKAGE}.matrix_table",
    "pairs": f"{_PACKAGE}.pair_list",
    "nemo": f"{_PACKAGE}.nemo",
    "torchtitan": f"{_PACKAGE}.torchtitan",
    "deepspeed": f"{_PACKAGE}.deepspeed",
    "nccl-topology": f"{_PACKAGE}.nccl_xml",
    "ibnetdiscover": f"{_PACKAGE}.ibnetdiscover",
    "slurm-topology": f"{_PACKAGE}.slurm_topology",
    "slurm-topology-yaml": f"{_PACKAGE}.slurm_yaml",
    "perftest": f"{_PACKAGE}.perftest",
    "osu": f"{_PACKAGE}.osu",
    "megatron-log": f"{_PACKAGE}.megatron_log",
}
"""Kind -> module with ``detect(text) -> confidence`` and ``parse(text, source) -> facts``."""

ALIASES: dict[str, str] = {
    "huggingface": "hf-config",
    "config.json": "hf-config",
    "topo": "nvidia-smi-topo",
    "nccl": "nccl-tests",
    "csv": "matrix",
    "tsv": "matrix",
    "nccl-xml": "nccl-topology",
    "fabric": "ibnetdiscover",
    "topology.conf": "slurm-topology",
    "topology.yaml": "slurm-topology-yaml",
    "ib_write_bw": "perftest",
}
"""Further names people try."""

MODEL_KINDS = frozenset({"hf-config", "megatron", "nemo", "torchtitan", "deepspeed"})
"""Kinds that describe a model; the others describe a cluster."""

# Below this no kind is guessed.
LEAST_CONFIDENCE = 0.5


def guess_kind(text: str, source: str) -> str:
    """The kind whose `detect` is most certain.

    Raises:
        InputError: no kind fits, or two fit equally well; names ``--kind``.
    """
    certainty = {kind: importlib.import_module(module).detect(text) for kind, module in KINDS.items()}
    best = max(certainty.values())
    fitting = [kind for kind, value in certainty.items() if value == best]
    if best < LEAST_CONFIDENCE:
        raise InputError(
            Problem(source, f"cannot tell what kind of file this is: say --kind, one of {', '.join(KINDS)}")
        )
    if len(fitting) > 1:
        raise InputError(Problem(source, f"could be {' or '.join(fitting)}: say --kind"))
    return fitting[0]


def parse(text: str, source: str, kind: str | None = None, **options: Any) -> Any:
    """Facts of a text, by the importer of its kind.

    Args:
        kind: one of `KINDS`; None = guessed.
        options: given to the importer where it takes them (``unit``); others are left out.

    Raises:
        InputError: unknown kind, or whatever the importer finds wrong.
    """
    if kind is None:
        kind = guess_kind(text, source)
    kind = ALIASES.get(kind, kind)
    if kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}, known are {', '.join(KINDS)}")
    reader = importlib.import_module(KINDS[kind]).parse
    taken = inspect.signature(reader).parameters
    return reader(text, source, **{name: value for name, value in options.items() if name in taken})
