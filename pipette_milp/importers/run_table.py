"""A training log with the arguments of its run as a row for ``accuracy`` and ``calibrate``.

Columns are those of `pipette_milp.calibration.runs`; what nobody says is left empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from pipette_milp.errors import Problem
from pipette_milp.importers.framework_settings import FrameworkSettings
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.training_log import TrainingLog
from pipette_milp.schema.plan import Configuration
from pipette_milp.units import GIB

COLUMNS = (
    "run_id",
    "source",
    "split_hint",
    "gpu_model",
    "gpus_per_node",
    "num_gpus",
    "model_name",
    "layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "moe_experts",
    "moe_topk",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "micro_batch",
    "global_batch",
    "num_microbatches",
    "schedule",
    "seq_parallel",
    "recompute",
    "zero_stage_or_dist_opt",
    "precision",
    "flash_attention",
    "framework",
    "measured_iter_time_s",
    "measured_tflops_per_gpu",
    "measured_peak_mem_gb",
    "mem_metric",
    "status",
    "notes",
)
"""Columns of a row, a part of those that ``accuracy`` reads."""

NEEDED = (
    "gpu_model",
    "num_gpus",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "micro_batch",
    "global_batch",
)
"""Columns without which ``accuracy`` refuses a row."""

_SHARDING = {"none": "0", "optimizer": "1", "gradients": "2", "parameters": "3"}
_HINT = {
    "gpu_model": "--gpu-type",
    "num_gpus": "--world-size",
    "vocab": "a config.json as well",
    "seq_len": "--sequence-length",
    "global_batch": "--global-batch",
}


def run_row(
    log: TrainingLog,
    model: Mapping[str, Any],
    run: MegatronRun | FrameworkSettings | None,
    *,
    gpu_type: str | None = None,
    gpus_per_node: int | None = None,
    name: str | None = None,
) -> tuple[dict[str, str], list[Problem]]:
    """The row, and what it still lacks.

    Args:
        model: fields of an instance's ``model``.
        run: arguments or settings of the run.
    """
    warnings: list[Problem] = []
    row: dict[str, Any] = {
        "run_id": name or PurePath(log.source).name,
        "source": log.source,
        "split_hint": "runs",
        "gpu_model": gpu_type,
        "gpus_per_node": gpus_per_node,
        "model_name": model.get("name"),
        "layers": model.get("layers"),
        "hidden": model.get("hidden_size"),
        "ffn_hidden": model.get("ffn_hidden_size"),
        "heads": model.get("attention_heads"),
        "kv_heads": model.get("kv_heads"),
        "vocab": model.get("vocab_size"),
        "seq_len": model.get("sequence_length"),
        "global_batch": log.global_batch_size,
        "measured_iter_time_s": None if log.median_time_s is None else f"{log.median_time_s:.6g}",
        "status": "ok",
    }
    experts = model.get("moe") or {}
    row |= {"moe_experts": experts.get("experts"), "moe_topk": experts.get("top_k")}
    if log.flop_per_s_per_gpu is not None:
        row["measured_tflops_per_gpu"] = f"{log.flop_per_s_per_gpu / 1e12:.6g}"
    if log.peak_allocated_bytes is not None and log.peak_reserved_bytes is not None:
        row["measured_peak_mem_gb"] = f"{log.peak_allocated_bytes / GIB:.6g}"
        row["mem_metric"] = "GiB, torch max allocated, ranks with data-parallel index 0"
        row["notes"] = f"max reserved {log.peak_reserved_bytes / GIB:.6g} GiB"
    if run is not None:
        row |= _of_run(run)
        said = run.training.get("global_batch_size")
        if log.global_batch_size is not None and said not in (None, log.global_batch_size):
            warnings.append(
                Problem(
                    log.source,
                    f"contradiction: the log has a global batch of {log.global_batch_size}, the arguments "
                    f"{said}: the log counts",
                )
            )
        row["global_batch"] = log.global_batch_size or said
    for column, value in log.degrees:
        if row.get(column) not in (None, value):
            warnings.append(
                Problem(
                    log.source,
                    f"contradiction: the log has {column} {value}, the arguments {row[column]}: of "
                    f"another run? The log counts",
                )
            )
        row[column] = value
    text = {column: "" if row.get(column) is None else str(row[column]) for column in COLUMNS}
    for column in NEEDED:
        if not text[column]:
            hint = _HINT.get(column, "the arguments of the run as well")
            warnings.append(Problem("runs", f"column {column} is empty: give {hint}"))
    return text, warnings


def _of_run(run: MegatronRun | FrameworkSettings) -> dict[str, Any]:
    """Columns that arguments or settings fill."""
    training = run.training
    found: dict[str, Any] = {
        "tp": run.tensor,
        "pp": run.pipeline,
        "cp": run.context,
        "ep": run.expert,
        "dp": run.data,
        "micro_batch": run.micro_batch,
        "seq_parallel": training.get("sequence_parallel"),
        "recompute": training.get("recompute"),
        "zero_stage_or_dist_opt": _SHARDING.get(str(training.get("data_sharding"))),
        "precision": training.get("precision"),
        "flash_attention": training.get("flash_attention"),
        "framework": run.framework if isinstance(run, FrameworkSettings) else "Megatron-LM",
    }
    if run.data is not None:
        found["num_gpus"] = run.data * (run.tensor or 1) * (run.pipeline or 1) * (run.context or 1)
    configuration: Configuration | None = run.configuration if isinstance(run, MegatronRun) else None
    if configuration is not None:
        found |= {
            "vpp": configuration.virtual_stages,
            "num_microbatches": configuration.num_micro_batches,
            "schedule": "none" if configuration.pipeline == 1 else _schedule(configuration.schedule),
        }
    return found


def _schedule(name: str) -> str:
    return {"1f1b": "1F1B", "interleaved": "interleaved-1F1B"}.get(name, name)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
