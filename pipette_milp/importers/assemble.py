"""Everything that was imported as one document: an instance, or the sections there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.describe import record_of
from pipette_milp.importers.diagnose import Diagnosis
from pipette_milp.importers.framework_settings import FrameworkSettings
from pipette_milp.importers.huggingface import ImportedModel
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.merge import CLUSTER_FACTS, ClusterImport, merge_cluster
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.importers.run_table import run_row
from pipette_milp.importers.training_log import TrainingLog
from pipette_milp.schema.instance import parse_instance
from pipette_milp.schema.plan import Placement, Plan

_MICRO_BATCHES = (1, 2, 4, 8)
"""What a complete instance lets the search choose from, as `init` does."""

_OPEN_OPTIONS = {
    "data_sharding": ["none", "optimizer"],
    "sequence_parallel": [False, True],
    "recompute": ["none", "selective", "full"],
}
"""What a complete instance leaves to the search, whatever a run does today."""


@dataclass(frozen=True)
class Found:
    """One fact and the file it came from."""

    source: str
    kind: str
    fact: Any


@dataclass(frozen=True)
class AssembleOptions:
    """What the files do not say, None = not given."""

    name: str | None = None
    sequence_length: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


@dataclass(frozen=True)
class Assembled:
    """The document and everything to say about it."""

    document: dict[str, Any]
    complete: bool
    """Whether the document is an instance, and has passed validation."""
    missing: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    diagnosis: Diagnosis | None
    plan: Plan | None
    """What runs today, where arguments of a run were imported and say it all."""
    rows: tuple[dict[str, str], ...] = ()
    """One for every training log, for `accuracy` and `calibrate`."""


def assemble(found: Sequence[Found], options: AssembleOptions | None = None) -> Assembled:
    """Joins facts about one model and one cluster.

    Raises:
        InputError: contradictions between files, or a complete instance that is refused; all of it at once.
    """
    options = options or AssembleOptions()
    runs = [item.fact for item in found if isinstance(item.fact, MegatronRun | FrameworkSettings)]
    logs = [item.fact for item in found if isinstance(item.fact, TrainingLog)]
    configs = [item for item in found if isinstance(item.fact, ImportedModel)]
    facts = [item.fact for item in found if isinstance(item.fact, CLUSTER_FACTS)]
    if len(runs) > 1:
        raise InputError(f"{len(runs)} sets of arguments or settings: import one run at a time")
    run = runs[0] if runs else None
    missing: list[Problem] = list(run.missing) if run is not None else []
    warnings: list[Problem] = list(run.warnings) if run is not None else []
    warnings += [Problem(item.source, note) for item in configs for note in item.fact.notes]
    document: dict[str, Any] = {}
    model = _model(configs, run, options, missing, warnings)
    if model:
        document["model"] = model
    training = _training(run, options)
    if training:
        document["training"] = training
    cluster = merge_cluster(facts, options.cluster) if facts else None
    if cluster is not None:
        document["cluster"] = cluster.section
        missing += cluster.missing
        warnings += cluster.warnings
    if model and cluster is not None and "global_batch_size" not in training:
        missing.append(Problem("training.global_batch_size", "is not in the files: say --global-batch"))
    plan = _plan(run)
    rows: list[dict[str, str]] = []
    for log in logs:
        warnings += log.warnings
        row, lacking = run_row(
            log,
            model,
            run,
            gpu_type=options.cluster.gpu_type,
            gpus_per_node=options.cluster.gpus_per_node,
            name=options.name if len(logs) == 1 else None,
        )
        rows.append(row)
        warnings += lacking
    complete = bool(model) and cluster is not None and not [item for item in missing if _needed(item)]
    if complete and cluster is not None:
        document = _instance(document, cluster, found, options, run)
        parse_instance(document)
    else:
        if plan is not None:
            document["configuration"] = plan.configuration.model_dump(mode="json")
            document["placement"] = plan.placement.model_dump(mode="json")
        if cluster is not None and cluster.diagnosis is not None:
            document["diagnosis"] = cluster.diagnosis.lines()
        document["facts"] = [
            {"source": item.source, "kind": item.kind, **record_of(item.fact)} for item in found
        ]
    return Assembled(
        document=document,
        complete=complete,
        missing=tuple(dict.fromkeys(missing)),
        warnings=tuple(dict.fromkeys(warnings)),
        diagnosis=cluster.diagnosis if cluster is not None else None,
        plan=plan,
        rows=tuple(rows),
    )


def _needed(problem: Problem) -> bool:
    """Whether an instance cannot do without it; what only the configuration of a run lacks is no obstacle."""
    return problem.path.split(".")[0] in ("model", "training", "cluster")


def _model(
    configs: list[Found],
    run: MegatronRun | FrameworkSettings | None,
    options: AssembleOptions,
    missing: list[Problem],
    warnings: list[Problem],
) -> dict[str, Any]:
    """Fields of all sources.

    Raises:
        InputError: two sources give one field different values.
    """
    sources: list[tuple[str, dict[str, Any]]] = [(item.source, item.fact.section) for item in configs]
    if run is not None:
        fields = dict(run.model)
        if fields.pop("mtp_layers", None):
            warnings.append(Problem(run.source, "extra prediction layers (MTP) are not counted"))
        sources.append((run.source, fields))
    if not sources:
        return {}
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    problems: list[Problem] = []
    for source, fields in sources:
        for name, value in fields.items():
            if isinstance(value, dict) and isinstance(merged.get(name), dict):
                known = merged[name]
                problems += [
                    Problem(
                        source,
                        f"{name}.{key} is {item}, but {known[key]} in {origin[name]}: correct one of them",
                    )
                    for key, item in value.items()
                    if key in known and known[key] != item
                ]
                merged[name] = {**value, **known}
                continue
            if name in merged and merged[name] != value:
                problems.append(
                    Problem(
                        source,
                        f"{name} is {value}, but {merged[name]} in {origin[name]}: correct one of them",
                    )
                )
            merged.setdefault(name, value)
            origin.setdefault(name, source)
    sequence = merged.get("sequence_length")
    if options.sequence_length is not None:
        if sequence not in (None, options.sequence_length):
            problems.append(
                Problem(
                    "--sequence-length",
                    f"is {options.sequence_length}, but {origin['sequence_length']} has {sequence}",
                )
            )
        merged["sequence_length"] = options.sequence_length
    elif sequence is None:
        missing.append(
            Problem(
                "model.sequence_length", "is never taken from max_position_embeddings: say --sequence-length"
            )
        )
    if problems:
        raise InputError(problems)
    if "vocab_size" not in merged:
        missing.append(
            Problem("model.vocab_size", "is in no file (the tokenizer's): give a config.json as well")
        )
    return {"name": options.name or _short_name(sources[0][0]), **merged}


def _short_name(source: str) -> str:
    parts = source.replace("\\", "/").rsplit("/", 2)
    name = parts[-1]
    if name == "config.json" and len(parts) > 1 and parts[-2]:
        name = parts[-2]
    for ending in (".json", ".yaml", ".yml", ".toml", ".config", ".sh"):
        name = name.removesuffix(ending)
    return name or "model"


def _training(run: MegatronRun | FrameworkSettings | None, options: AssembleOptions) -> dict[str, Any]:
    training = dict(run.training) if run is not None else {}
    if options.global_batch_size is not None:
        given = training.get("global_batch_size")
        if given not in (None, options.global_batch_size):
            raise InputError(
                Problem(
                    "--global-batch",
                    f"is {options.global_batch_size}, but the arguments of the run have {given}",
                )
            )
        training["global_batch_size"] = options.global_batch_size
    if options.precision is not None:
        given = training.get("precision")
        if given not in (None, options.precision):
            raise InputError(Problem("--precision", f"is {options.precision}, but the run has {given}"))
        training["precision"] = options.precision
    return training


def _plan(run: MegatronRun | FrameworkSettings | None) -> Plan | None:
    if not isinstance(run, MegatronRun) or run.configuration is None:
        return None
    gpus = run.gpu_of_rank()
    return (
        None if gpus is None else Plan(configuration=run.configuration, placement=Placement(gpu_of_rank=gpus))
    )


def _instance(
    sections: dict[str, Any],
    cluster: ClusterImport,
    found: Sequence[Found],
    options: AssembleOptions,
    run: MegatronRun | FrameworkSettings | None,
) -> dict[str, Any]:
    training = dict(sections["training"])
    provenance: dict[str, Any] = {
        "model": ", ".join(
            item.source
            for item in found
            if isinstance(item.fact, ImportedModel | MegatronRun | FrameworkSettings)
        ),
        **cluster.provenance,
    }
    peak = next(iter(cluster.section["gpu_types"].values()))["peak_flops"]
    if "precision" not in training:
        training["precision"] = "bf16" if "bf16" in peak else "fp16"
        provenance["training.precision"] = "default of import: the fastest 16-bit type of the GPU"
    if "flash_attention" not in training and run is None:
        # FlashAttention needs Ampere or newer, which are the GPUs that have bf16.
        training["flash_attention"] = "bf16" in peak
        provenance["training.flash_attention"] = "default of import: where the GPU has it"
    training |= _OPEN_OPTIONS
    provenance["training"] = "sharding, sequence parallelism and recompute are left to the search"
    nodes = len(cluster.section["nodes"])
    name = options.name or f"{sections['model']['name']}-{nodes}-nodes"
    return {
        "schema_version": 1,
        "name": name,
        "provenance": provenance,
        "model": sections["model"],
        "training": training,
        "cluster": cluster.section,
        "compute": {"kind": "analytic"},
        "search": {"micro_batch": list(_MICRO_BATCHES), "schedules": ["1f1b"]},
    }
