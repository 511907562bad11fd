"""NeMo settings in YAML: the fields of NeMo 1 and of Megatron-Bridge name Megatron-LM's arguments.

They are translated and read as those, so that the same rules and refusals hold. Interpolations such as
``${model.encoder_seq_length}`` are resolved where they name another value, and refused otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.megatron_flags import KNOWN, RENAMED, SWITCHES, Argument, Arguments
from pipette_milp.importers.megatron_run import MegatronRun, run_of
from pipette_milp.importers.text import clean
from pipette_milp.importers.yamltext import load_yaml

KIND = "nemo"

_INTERPOLATION = re.compile(r"\$\{(\.*)([A-Za-z_][\w.]*)\}")
_MOST_STEPS = 20

NAMES = {
    "encoder_seq_length": "seq-length",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "num_moe_experts": "num-experts",
    "moe_ffn_hidden_size": "moe-ffn-hidden-size",
    "vocab_size": "vocab-size",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "use_flash_attention": "use-flash-attn",
    "max_position_embeddings": "max-position-embeddings",
    "grad_allreduce_chunk_size_mb": "",
}
"""NeMo's name -> Megatron's where they differ beyond dashes; "" = does not concern the plan."""

_PRECISIONS = {
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "bf16-true": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "16-true": "fp16",
    "32": "",
    "32-true": "",
}
_GATED = ("swiglu", "fast-swiglu", "geglu", "fast-geglu", "reglu", "fast-reglu")
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a settings file of NeMo."""
    if re.search(r"(?m)^\s*#?.*(?:--)", text) and text.lstrip().startswith("#!"):
        return 0.0
    parallel = re.search(r"(?m)^\s*(?:tensor|pipeline)_model_parallel_size\s*:", text)
    model = re.search(r"(?m)^\s*(?:trainer|model)\s*:\s*(?:#.*)?$", text)
    return 0.92 if parallel and model else 0.0


def parse(
    text: str, source: str, world_size: int | None = None, tensor_overlap: float | None = None
) -> MegatronRun:
    """The run that a settings file describes.

    Raises:
        InputError: not YAML, an interpolation that cannot be resolved, or what Megatron-LM refuses.
    """
    data = load_yaml("\n".join(line.text for line in clean(text, source).lines) + "\n", source)
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise InputError(Problem(source, "expected a mapping with a section model:"))
    trainer = data.get("trainer") or {}
    if not isinstance(trainer, dict):
        raise InputError(Problem(f"{source}: trainer", "expected a mapping"))
    reading = _Reading(data, source)
    reading.read(data["model"], trainer)
    if reading.problems:
        raise InputError(reading.problems)
    if not reading.given:
        raise InputError(Problem(source, "section model: holds no setting such as num_layers"))
    arguments = Arguments(source, reading.given, tuple(reading.others), tuple(reading.warnings))
    return run_of(arguments, world_size, tensor_overlap)


class _Reading:
    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self.data, self.source = data, source
        self.given: dict[str, Argument] = {}
        self.others: list[str] = []
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def read(self, model: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
        values = {str(key): self.resolved(value, ("model", str(key))) for key, value in model.items()}
        for key, value in values.items():
            self._setting(key, value)
        nodes = self.resolved(trainer.get("num_nodes"), ("trainer", "num_nodes"))
        devices = self.resolved(trainer.get("devices"), ("trainer", "devices"))
        if nodes is not None and devices is not None:
            self.give("nnodes", nodes, "trainer.num_nodes")
            self.give("nproc-per-node", devices, "trainer.devices")
        precision = self.resolved(trainer.get("precision"), ("trainer", "precision"))
        precision = values.get("precision", precision) if precision is None else precision
        self._precision(precision)
        optimizer = values.get("optim")
        if isinstance(optimizer, Mapping) and optimizer.get("name") == "distributed_fused_adam":
            self.give("use-distributed-optimizer", "", "model.optim.name")
            if optimizer.get("overlap_grad_sync"):
                self.give("overlap-grad-reduce", "", "model.optim.overlap_grad_sync")
        if values.get("bias") is False:
            self.give("disable-bias-linear", "", "model.bias")
        if values.get("share_embeddings_and_output_weights") is False:
            self.give("untie-embeddings-and-output-weights", "", "model.share_embeddings_and_output_weights")
        if values.get("num_query_groups") is not None:
            self.give("group-query-attention", "", "model.num_query_groups")
        activation = values.get("activation")
        if activation in _GATED:
            self.give("swiglu", "", "model.activation")
        elif values.get("gated_linear_unit") is True:
            self.give("swiglu", "", "model.gated_linear_unit")

    def _setting(self, key: str, value: Any) -> None:
        name = NAMES.get(key, key.replace("_", "-"))
        name = RENAMED.get(name, name)
        if value is None or isinstance(value, dict) or name == "":
            return
        if name == "normalization" and isinstance(value, str):
            if value.lower() not in _NORMS:
                self.problems.append(
                    Problem(f"{self.source}: model.{key}", f"expected {', '.join(_NORMS)}, got {value!r}")
                )
                return
            value = _NORMS[value.lower()]
        if name not in KNOWN:
            self.others.append(key)
        elif name in SWITCHES:
            if not isinstance(value, bool):
                self.problems.append(
                    Problem(f"{self.source}: model.{key}", f"expected true or false, got {value!r}")
                )
            elif value:
                self.give(name, "", f"model.{key}")
        elif isinstance(value, list) and name != "moe-layer-freq":
            self.problems.append(Problem(f"{self.source}: model.{key}", f"expected one value, got {value!r}"))
        elif isinstance(value, list):
            self.give(name, "+".join(f"[{item}]" for item in value), f"model.{key}")
        elif isinstance(value, bool):
            self.problems.append(Problem(f"{self.source}: model.{key}", f"expected a value, got {value}"))
        else:
            self.give(name, value, f"model.{key}")

    def give(self, name: str, value: Any, place: str) -> None:
        self.given.setdefault(name, Argument(name, str(value), f"{self.source}: {place}"))

    def _precision(self, value: Any) -> None:
        if value is None:
            return
        kind = _PRECISIONS.get(str(value).lower())
        if kind is None:
            self.problems.append(
                Problem(
                    f"{self.source}: trainer.precision", f"expected {', '.join(_PRECISIONS)}, got {value!r}"
                )
            )
        elif kind:
            self.give(kind, "", "trainer.precision")

    def resolved(self, value: Any, path: tuple[str, ...]) -> Any:
        """A value with its interpolation replaced by what it names."""
        for _ in range(_MOST_STEPS):
            if not isinstance(value, str) or "${" not in value:
                return value
            place = f"{self.source}: {'.'.join(path)}"
            match = _INTERPOLATION.fullmatch(value.strip())
            if match is None:
                if _name_of(path) in KNOWN or path[0] == "trainer":
                    self.problems.append(
                        Problem(place, f"{value} cannot be resolved here: write the value itself")
                    )
                return None
            base = path[: len(path) - len(match[1])] if match[1] else ()
            target: Any = self.data
            for part in (*base, *match[2].split(".")):
                target = target.get(part) if isinstance(target, dict) else None
            if target is None:
                if _name_of(path) in KNOWN or path[0] == "trainer":
                    self.problems.append(Problem(place, f"{value} names nothing in this file"))
                return None
            path = (*base, *match[2].split("."))
            value = target
        self.problems.append(Problem(f"{self.source}: {'.'.join(path)}", "interpolations go in a circle"))
        return None


def _name_of(path: tuple[str, ...]) -> str:
    name = NAMES.get(path[-1], path[-1].replace("_", "-"))
    return RENAMED.get(name, name)
