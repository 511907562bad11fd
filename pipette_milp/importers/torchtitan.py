"""torchtitan's TOML settings (up to 0.2; later versions keep settings in Python).

The model is a name and a flavour, whose shape is in torchtitan's code: give its ``config.json`` as well.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.framework_settings import FrameworkSettings, Settings
from pipette_milp.importers.text import clean

KIND = "torchtitan"

SCHEDULES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved1f1b": "interleaved",
}
"""torchtitan's name, lower case -> ours."""

_RECOMPUTE = {"none": "none", "selective": "selective", "full": "full"}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def detect(text: str) -> float:
    """Confidence in 0..1 that these are torchtitan settings."""
    parallel = re.search(r"(?m)^\s*\[(?:parallelism|training|experimental)\]", text)
    named = re.search(
        r"(?m)^\s*(?:data_parallel_shard_degree|tensor_parallel_degree|pipeline_parallel_degree|flavor)\s*=",
        text,
    )
    return 0.92 if parallel and named else 0.0


def parse(text: str, source: str, world_size: int | None = None) -> FrameworkSettings:
    """The settings.

    Args:
        world_size: GPUs in all; ``data_parallel_shard_degree = -1`` is what they leave.

    Raises:
        InputError: not TOML (with line and column), a value of the wrong kind, degrees that do not multiply
            to the number of GPUs, a schedule or split that contradicts itself.
    """
    plain = "\n".join(line.text for line in clean(text, source).lines).lstrip("\ufeff")
    try:
        data = tomllib.loads(plain)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = f"{source}:{match[1]}:{match[2]}" if match else source
        raise InputError(Problem(place, f"is not TOML: {str(error).partition(' (at')[0]}")) from None
    if not {"parallelism", "training", "model"} & set(data):
        raise InputError(Problem(source, "found none of the sections [model], [training], [parallelism]"))
    settings = Settings(data, source)
    for name in ("model", "training", "parallelism", "activation_checkpoint"):
        settings.section(name)
    found = _read(settings, world_size)
    if settings.problems:
        raise InputError(settings.problems)
    return found


def _read(settings: Settings, world_size: int | None) -> FrameworkSettings:
    degree = {
        name: settings.whole(f"parallelism.{key}") or 1
        for name, key in (
            ("tensor", "tensor_parallel_degree"),
            ("pipeline", "pipeline_parallel_degree"),
            ("context", "context_parallel_degree"),
            ("expert", "expert_parallel_degree"),
        )
    }
    replicas = settings.whole("parallelism.data_parallel_replicate_degree") or 1
    shard = settings.whole("parallelism.data_parallel_shard_degree", instead=(-1,))
    said_rest = settings.get("parallelism.data_parallel_shard_degree") in (None, -1)
    group = degree["tensor"] * degree["pipeline"] * degree["context"] * replicas
    missing: list[Problem] = []
    if said_rest:
        if world_size is None:
            missing.append(
                Problem(
                    settings.place("parallelism.data_parallel_shard_degree"),
                    "is what the GPUs leave: say --world-size",
                )
            )
        elif world_size % group:
            settings.problems.append(
                Problem(
                    settings.place("parallelism"), f"{world_size} GPUs do not divide by the degrees, {group}"
                )
            )
        else:
            shard = world_size // group
    elif world_size is not None and shard is not None and group * shard != world_size:
        settings.problems.append(
            Problem(
                settings.place("parallelism"),
                f"the degrees multiply to {group * shard}, but there are {world_size} GPUs",
            )
        )
    data = None if shard is None else replicas * shard
    local = settings.whole("training.local_batch_size") or settings.whole("training.batch_size")
    batch = settings.whole("training.global_batch_size", instead=(-1,))
    if batch is None and local and data:
        batch = local * data  # torchtitan's default
    micro = _micro_batch(settings, degree["pipeline"], local)
    if batch and data and local and batch % (local * data):
        settings.problems.append(
            Problem(
                settings.place("training.global_batch_size"),
                f"{batch} is no multiple of local_batch_size {local} * data degree {data}",
            )
        )
    schedule, chunks = _schedule(settings, degree["pipeline"])
    sharding = "none" if shard == 1 else None if shard is None else "parameters"
    training: dict[str, Any] = {
        "global_batch_size": batch,
        "precision": settings.choice("training.mixed_precision_param", _DTYPES) or "bf16",
        "data_sharding": sharding,
        "recompute": settings.choice("activation_checkpoint.mode", _RECOMPUTE),
    }
    sequence = settings.whole("training.seq_len")
    name = settings.get("model.name")
    model = {"sequence_length": sequence} if sequence else {}
    others = {
        key: value
        for key in (
            "model.name",
            "model.flavor",
            "parallelism.pipeline_parallel_schedule_csv",
            "job.description",
        )
        if (value := settings.get(key)) is not None
    }
    if name is not None:
        missing.append(
            Problem(
                settings.place("model"),
                f"{name} {settings.get('model.flavor') or ''} is a shape in torchtitan's code: give its "
                f"config.json as well".replace("  ", " "),
            )
        )
    return FrameworkSettings(
        source=settings.source,
        framework="torchtitan",
        model=model,
        training={key: value for key, value in training.items() if value is not None},
        **degree,
        data=data,
        micro_batch=micro,
        num_micro_batches=batch // (micro * data) if batch and micro and data else None,
        schedule=schedule,
        virtual_stages=chunks,
        others=others,
        missing=tuple(missing),
        warnings=tuple(settings.warnings),
    )


def _micro_batch(settings: Settings, pipeline: int, local: int | None) -> int | None:
    """With a pipeline the local batch is cut into micro-batches, of one sequence by default."""
    if pipeline == 1:
        return local
    micro = settings.whole("parallelism.pipeline_parallel_microbatch_size") or 1
    if local and local % micro:
        settings.problems.append(
            Problem(
                settings.place("parallelism.pipeline_parallel_microbatch_size"),
                f"local_batch_size {local} does not divide by {micro}",
            )
        )
    return micro


def _schedule(settings: Settings, pipeline: int) -> tuple[str | None, int | None]:
    """Our name of the schedule, and the stages each rank holds where the file says it."""
    if pipeline == 1:
        return None, 1
    name = settings.get("parallelism.pipeline_parallel_schedule") or "1F1B"
    if not isinstance(name, str) or name.lower() not in SCHEDULES:
        known: Mapping[str, str] = SCHEDULES
        settings.problems.append(
            Problem(
                settings.place("parallelism.pipeline_parallel_schedule"),
                f"not supported yet: schedule {name!r}, known are {', '.join(known)}",
            )
        )
        return None, None
    schedule = SCHEDULES[name.lower()]
    return schedule, 1 if schedule != "interleaved" else None
