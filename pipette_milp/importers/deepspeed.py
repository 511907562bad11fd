"""DeepSpeed's JSON settings: batch, ZeRO stage, precision, tensor degree; "auto" = the trainer decides.

``train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * data degree``. Pipeline
stages are an argument in Python and not in this file.
"""

from __future__ import annotations

import json
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.framework_settings import FrameworkSettings, Settings
from pipette_milp.importers.jsontext import load

KIND = "deepspeed"

_AUTO = ("auto",)
SHARDING = {0: "none", 1: "optimizer", 2: "gradients", 3: "parameters"}
_TELLING = frozenset(
    (
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "zero_optimization",
    )
)


def detect(text: str) -> float:
    """Confidence in 0..1 that these are DeepSpeed settings."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return 0.0
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return 0.6 if '"train_micro_batch_size_per_gpu"' in text or '"zero_optimization"' in text else 0.0
    return 0.92 if isinstance(data, dict) and len(_TELLING & set(data)) >= 1 else 0.0


def parse(text: str, source: str, world_size: int | None = None) -> FrameworkSettings:
    """The settings.

    Args:
        world_size: GPUs in all, where the batch sizes leave the data degree open.

    Raises:
        InputError: not JSON, a value of the wrong kind, batch sizes that contradict each other.
    """
    data = load(text, source)
    if not isinstance(data, dict) or not _TELLING & set(data):
        raise InputError(Problem(source, "found no DeepSpeed setting such as train_micro_batch_size_per_gpu"))
    settings = Settings(data, source)
    batch = settings.whole("train_batch_size", instead=_AUTO)
    micro = settings.whole("train_micro_batch_size_per_gpu", instead=_AUTO)
    steps = settings.whole("gradient_accumulation_steps", instead=_AUTO)
    tensor = settings.whole("tensor_parallel.autotp_size", least=0, instead=_AUTO) or 1
    stage = settings.whole("zero_optimization.stage", least=0, instead=_AUTO)
    settings.section("zero_optimization")
    if stage is not None and stage not in SHARDING:
        settings.problems.append(
            Problem(settings.place("zero_optimization.stage"), f"expected 0 to 3, got {stage}")
        )
    precision = _precision(settings)
    _offload(settings)
    data_degree = _data_degree(settings, batch, micro, steps, world_size, tensor)
    if settings.problems:
        raise InputError(settings.problems)
    if batch is None and micro and steps and data_degree:
        batch = micro * steps * data_degree
    if steps is None and batch and micro and data_degree:
        steps = batch // (micro * data_degree)
    training: dict[str, Any] = {
        "global_batch_size": batch,
        "precision": precision,
        "data_sharding": SHARDING[stage or 0],
        "framework": "deepspeed",
    }
    missing = [
        Problem(settings.place(name), "is left to the trainer ('auto' or absent)")
        for name, value in (("train_batch_size", batch), ("train_micro_batch_size_per_gpu", micro))
        if value is None
    ]
    return FrameworkSettings(
        source=source,
        framework="deepspeed",
        model={},
        training={name: value for name, value in training.items() if value is not None},
        tensor=tensor,
        data=data_degree,
        micro_batch=micro,
        num_micro_batches=steps,
        missing=tuple(missing),
        warnings=tuple(settings.warnings),
    )


def _precision(settings: Settings) -> str | None:
    bf16, fp16 = settings.flag("bf16.enabled"), settings.flag("fp16.enabled")
    if bf16 is None:
        bf16 = settings.flag("bfloat16.enabled")
    if bf16 and fp16:
        settings.problems.append(Problem(settings.place("fp16.enabled"), "bf16 and fp16 exclude each other"))
    if bf16:
        return "bf16"
    if fp16:
        return "fp16"
    decided = settings.get("bf16.enabled") == "auto" or settings.get("fp16.enabled") == "auto"
    return None if decided else "fp32"


def _offload(settings: Settings) -> None:
    for name in ("offload_optimizer", "offload_param"):
        device = settings.get(f"zero_optimization.{name}.device")
        if device not in (None, "none"):
            settings.warnings.append(
                Problem(
                    settings.place(f"zero_optimization.{name}"),
                    f"offload to {device} is not supported yet: times and memory are those without it",
                )
            )


def _data_degree(
    settings: Settings,
    batch: int | None,
    micro: int | None,
    steps: int | None,
    world_size: int | None,
    tensor: int,
) -> int | None:
    """From the batch sizes, else from the number of GPUs (times one pipeline stage)."""
    if batch and micro and steps:
        if batch % (micro * steps):
            settings.problems.append(
                Problem(
                    settings.place("train_batch_size"),
                    f"{batch} is no multiple of train_micro_batch_size_per_gpu {micro} * "
                    f"gradient_accumulation_steps {steps}",
                )
            )
            return None
        return batch // (micro * steps)
    if batch and micro and batch % micro:
        settings.problems.append(
            Problem(settings.place("train_batch_size"), f"{batch} is no multiple of the micro-batch {micro}")
        )
        return None
    if world_size is None or world_size % tensor:
        return None
    return world_size // tensor
