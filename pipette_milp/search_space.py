"""Legal configurations, and the reason for every refusal.

One function per rule; `families` walks the degrees from the outside in, so that a refusal names the rule that
cut a whole branch once instead of once per option below it. Rules are those of the instance's framework
(formats, sections 1.2 and 1.3), of the schedule and of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.legality import (
    context_refusal,
    data_refusal,
    expert_refusal,
    micro_batch_refusal,
    sequence_parallel_refusal,
    sharding_refusal,
    stage_count_refusal,
    tensor_refusal,
)
from pipette_milp.schedules import get_schedule
from pipette_milp.schema.plan import Configuration, DataSharding, Overlap, split_stages
from pipette_milp.units import Dimension, format_quantity

FEWER_GPUS = "search.use_all_gpus = false looks at plans that leave GPUs or nodes out"
MOST_NAMED = 6
"""Degrees named in one refusal."""


@dataclass(frozen=True)
class Refusal:
    """A part of the space that is out before any search: the degrees concerned and the rule."""

    degrees: dict[str, Any]
    reason: str
    memory_short_bytes: float | None = None
    """How much the tightest stage of the best split misses; None where memory is not the reason."""


@dataclass(frozen=True)
class SearchSpace:
    """Families in the order of enumeration, with their cost tables, and all refusals."""

    families: list[CostTables] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


def enumerate_space(costs: CostModel) -> SearchSpace:
    """All legal families of an instance and the reason for each refusal."""
    space = SearchSpace()
    # fewer replicas never need less memory: each has more micro-batches in flight, and shards are larger;
    # only a single one does without the communicators of a data group
    too_large: dict[tuple[str, int], int] = {}
    for configuration in _configurations(costs, space.refusals):
        options = _options(configuration)
        data = too_large.get(options, 0)
        if 1 < configuration.data < data:
            reason = f"memory: data degree {data} needs no more of it, and does not fit"
            space.refusals.append(Refusal(_degrees(configuration), reason))
            continue
        tables = costs.tables(configuration)
        refusal = memory_refusal(costs, tables)
        if refusal is None:
            space.families.append(tables)
        else:
            space.refusals.append(refusal)
            too_large[options] = max(data, configuration.data)
    return space


def legal_configurations(costs: CostModel) -> Iterator[Configuration]:
    """One configuration of every legal family with its default layer split, whether it fits or not."""
    yield from _configurations(costs, [])


def _options(configuration: Configuration) -> tuple[str, int]:
    """All that decides memory but how many replicas share the batch; with a smaller batch fewer micro-batches
    are in flight."""
    options = configuration.model_dump_json(
        exclude={"data", "num_micro_batches", "stages", "layers_per_stage"}
    )
    return options, configuration.global_batch_size


def _configurations(costs: CostModel, refusals: list[Refusal]) -> Iterator[Configuration]:
    instance, cluster = costs.instance, costs.cluster
    search = instance.search
    for tensor in _allowed(search.tensor, search.fix.tensor, range(1, _largest_node(costs) + 1)):
        reason = tensor_refusal(costs, tensor)
        if reason is None and all(instance.training.sequence_parallel):
            reason = sequence_parallel_refusal(costs, tensor)
        if reason:
            refusals.append(Refusal({"tensor": tensor}, reason))
            continue
        for context in _allowed(search.context, search.fix.context, ()):
            cell = {"tensor": tensor, **({"context": context} if context > 1 else {})}
            reason = context_refusal(costs, tensor, context)
            if reason:
                refusals.append(Refusal(cell, reason))
                continue
            places = cluster.for_cells(tensor * context) or cluster
            cells = int((places.gpus_per_node // (tensor * context)).sum())
            for pipeline, data in _grids(costs, cell, cells, refusals):
                for batch in instance.training.global_batch_size:
                    yield from _with_batch(costs, cell, pipeline, data, batch, refusals)


def _with_batch(
    costs: CostModel, cell: dict[str, int], pipeline: int, data: int, batch: int, refusals: list[Refusal]
) -> Iterator[Configuration]:
    search = costs.instance.search
    degrees = {**cell, "pipeline": pipeline, "data": data}
    smallest = min(_allowed(search.micro_batch, search.fix.micro_batch, (1,)))
    reason = data_refusal(batch, data, smallest)
    if reason:
        if search.use_all_gpus and data > 1:
            reason += f"; or {FEWER_GPUS}"
        refusals.append(Refusal(degrees, reason))
        return
    per_replica = batch // data
    for micro_batch in _allowed(search.micro_batch, search.fix.micro_batch, _divisors(per_replica)):
        reason = micro_batch_refusal(per_replica, micro_batch)
        if reason:
            refusals.append(Refusal({**degrees, "micro_batch": micro_batch}, reason))
            continue
        for schedule, virtual in _schedules(costs, pipeline):
            yield from _with_schedule(
                costs,
                {**degrees, "micro_batch": micro_batch, "num_micro_batches": per_replica // micro_batch},
                schedule,
                virtual,
                refusals,
            )


def _with_schedule(
    costs: CostModel, degrees: dict[str, Any], name: str, virtual: int, refusals: list[Refusal]
) -> Iterator[Configuration]:
    training = costs.instance.training
    schedule = get_schedule(name)
    pipeline = degrees["pipeline"]
    layers = costs.instance.search.layers_per_stage or default_split(costs, pipeline * virtual)
    for transfers in training.transfers_for(name):
        reason = None
        if costs.instance.search.layers_per_stage is None:
            reason = stage_count_refusal(costs, pipeline * virtual)
        elif len(layers) != pipeline * virtual:
            reason = f"the fixed split has {len(layers)} stages, not {pipeline * virtual}"
        reason = reason or schedule.legality(
            pipeline, virtual, degrees["num_micro_batches"], transfers, layers
        )
        if reason:
            refusals.append(Refusal({**degrees, "schedule": name, "virtual_stages": virtual}, reason))
            continue
        for sequence_parallel in training.sequence_parallel:
            if sequence_parallel and degrees["tensor"] == 1 and False in training.sequence_parallel:
                continue  # the same plan as without
            reason = (
                sequence_parallel_refusal(costs, degrees["tensor"], degrees.get("context", 1))
                if sequence_parallel
                else None
            )
            if reason:
                refusals.append(Refusal({**degrees, "sequence_parallel": True}, reason))
                continue
            for expert in _allowed(costs.instance.search.expert, costs.instance.search.fix.expert, ()):
                for sharding in _shardings(costs, degrees, expert, sequence_parallel, refusals):
                    for recompute in training.recompute:
                        yield Configuration(
                            **degrees,
                            expert=expert,
                            virtual_stages=virtual,
                            schedule=name,
                            pipeline_transfers=transfers,
                            stages=split_stages(tuple(layers)),
                            recompute=recompute,
                            sequence_parallel=sequence_parallel and degrees["tensor"] > 1,
                            data_sharding=sharding,
                            gradient_dtype=training.gradient_dtype,
                            overlap=Overlap(**training.overlap.model_dump()),
                        )


def _shardings(
    costs: CostModel, degrees: dict[str, Any], expert: int, sequence_parallel: bool, refusals: list[Refusal]
) -> Iterator[DataSharding]:
    """What may be sharded over the replicas with an expert degree; with one replica that is nothing."""
    training = costs.instance.training
    tensor, context, data = degrees["tensor"], degrees.get("context", 1), degrees["data"]
    shared = {**degrees, "expert": expert} if expert > 1 else degrees
    reason = expert_refusal(
        costs,
        expert,
        tensor=tensor,
        context=context,
        data=data,
        sequence_parallel=sequence_parallel and tensor > 1,
    )
    if reason:
        refusals.append(Refusal(shared, reason))
        return
    for sharding in training.data_sharding:
        if sharding != "none" and data * context == 1:
            if sharding == training.data_sharding[0] and "none" not in training.data_sharding:
                yield "none"
            continue  # the same plan as without
        reason = sharding_refusal(
            costs, sharding, pipeline=degrees["pipeline"], context=context, data=data, expert=expert
        )
        if reason:
            refusals.append(Refusal({**shared, "data_sharding": sharding}, reason))
        else:
            yield sharding


def _grids(
    costs: CostModel, cell: dict[str, int], cells: int, refusals: list[Refusal]
) -> Iterator[tuple[int, int]]:
    """Pipeline and data degrees that use all cells, or fewer where the instance allows it."""
    search, cluster = costs.instance.search, costs.cluster
    size = math.prod(cell.values())
    stages = _allowed(
        search.pipeline, search.fix.pipeline, range(1, min(cells, costs.instance.model.layers) + 1)
    )
    if search.use_all_gpus and cells * size != cluster.num_gpus:
        refusals.append(
            Refusal(
                cell,
                f"groups of {size} leave {cluster.num_gpus - cells * size} of {cluster.num_gpus} GPUs "
                "idle; search.use_all_gpus = false allows it",
            )
        )
        return
    if search.use_all_gpus:
        uneven = [pipeline for pipeline in stages if cells % pipeline]
        if uneven:
            named = ", ".join(map(str, uneven[:MOST_NAMED])) + (", ..." if len(uneven) > MOST_NAMED else "")
            refusals.append(
                Refusal(
                    {**cell, "pipeline": uneven},
                    f"{cells} {_cell_name(cell)}s are no multiple of pipeline degree {named}; {FEWER_GPUS}",
                )
            )
    for pipeline in stages:
        if search.use_all_gpus:
            if cells % pipeline:
                continue
            replicas: Iterable[int] = (cells // pipeline,)
        else:
            replicas = _sharing(costs, {**cell, "pipeline": pipeline}, cells // pipeline, refusals)
        for data in _allowed(None, search.fix.data, replicas):
            if search.data is not None and data not in search.data:
                if search.use_all_gpus and search.fix.data is None:
                    refusals.append(
                        Refusal(
                            {**cell, "pipeline": pipeline},
                            f"all {cells} {_cell_name(cell)}s need data degree {data}, which search.data "
                            f"leaves out; {FEWER_GPUS}",
                        )
                    )
                continue
            if data * pipeline > cells or (search.use_all_gpus and data * pipeline != cells):
                refusals.append(
                    Refusal(
                        {**cell, "pipeline": pipeline, "data": data},
                        f"{pipeline} x {' x '.join(map(str, cell.values()))} x {data} does not use the "
                        f"{cluster.num_gpus} GPUs there are"
                        + (f"; {FEWER_GPUS}" if data * pipeline < cells else ""),
                    )
                )
                continue
            yield pipeline, data


def _cell_name(cell: dict[str, int]) -> str:
    return "tensor and context group" if "context" in cell else "tensor group"


def _sharing(costs: CostModel, degrees: dict[str, int], most: int, refusals: list[Refusal]) -> Iterator[int]:
    """Data degrees up to ``most`` that divide a global batch, and ``most`` itself, whose refusal names the
    batches that would use all GPUs; the others are refused together."""
    search = costs.instance.search
    batches = costs.instance.training.global_batch_size
    if search.data is not None or search.fix.data is not None:
        yield from range(most, 0, -1)
        return
    others = [data for data in range(most - 1, 0, -1) if all(batch % data for batch in batches)]
    if others:
        named = ", ".join(map(str, others[:MOST_NAMED])) + (", ..." if len(others) > MOST_NAMED else "")
        batch = " or ".join(map(str, batches))
        refusals.append(
            Refusal(
                {**degrees, "data": others},
                f"global batch {batch} is no multiple of the data degree {named}",
            )
        )
    yield from (data for data in range(most, 0, -1) if data == most or data not in others)


def _schedules(costs: CostModel, pipeline: int) -> Iterator[tuple[str, int]]:
    search = costs.instance.search
    for name in search.schedules or _default_schedules(costs):
        many = get_schedule(name).allows_virtual_stages
        for virtual in search.virtual_stages:
            if many == (virtual > 1):
                yield name, virtual


def _default_schedules(costs: CostModel) -> tuple[str, ...]:
    """What Megatron-LM runs: 1F1B, interleaved as soon as several virtual stages are allowed."""
    virtual = costs.instance.search.virtual_stages
    names = ("1f1b",) if 1 in virtual else ()
    return (*names, "interleaved") if max(virtual) > 1 else names


def memory_refusal(costs: CostModel, tables: CostTables) -> Refusal | None:
    """Why no layer split fits, or None. Names the stage and how much it misses in the best case."""
    configuration = tables.configuration
    usable = tables.memory_usable_bytes
    low = tables.min_layers
    chunks, pipeline = configuration.virtual_stages, configuration.pipeline
    low_stage = low.reshape(chunks, pipeline).sum(axis=0)
    per_layer = tables.memory_layer_bytes[:pipeline]
    room = (usable - tables.memory_extra_bytes) / per_layer
    most = np.floor(room).astype(np.int64)
    degrees = _degrees(configuration)
    if np.all(most >= low_stage) and most.sum() >= tables.total_layers:
        return None
    needed = _least_peak_bytes(tables, low_stage)
    stage, need = int(np.argmax(needed)), float(needed.max())
    return Refusal(
        degrees,
        f"memory: stage {stage} needs {_memory(need)} per GPU in the best split, "
        f"{_memory(usable)} of {_memory(max(gpu.memory_bytes for gpu in costs.cluster.gpu_types))} is usable",
        memory_short_bytes=need - usable,
    )


def _least_peak_bytes(tables: CostTables, low_stage: np.ndarray) -> np.ndarray:
    """[p] memory of each stage in the split whose fullest stage is least full (layers added one by one)."""
    per_layer = tables.memory_layer_bytes[: tables.pipeline]
    layers = low_stage.copy()
    for _ in range(int(tables.total_layers - layers.sum())):
        layers[np.argmin(tables.memory_extra_bytes + per_layer * (layers + 1))] += 1
    return np.asarray(tables.memory_extra_bytes + per_layer * layers)


def default_split(costs: CostModel, virtual: int) -> tuple[int, ...]:
    """Layers as even as they go; what is left over goes to the middle, away from embedding and head."""
    layers = costs.instance.model.layers
    if virtual > layers:
        return (0,) * virtual
    base, rest = divmod(layers, virtual)
    split = [base] * virtual
    start = (virtual - rest) // 2
    for index in range(start, start + rest):
        split[index] += 1
    return tuple(split)


def _degrees(configuration: Configuration) -> dict[str, Any]:
    keys = ("pipeline", "virtual_stages", "tensor", "data", "micro_batch", "schedule")
    options = ("recompute", "sequence_parallel", "data_sharding")
    degrees = {key: getattr(configuration, key) for key in keys + options}
    return degrees | {
        key: getattr(configuration, key) for key in ("context", "expert") if getattr(configuration, key) > 1
    }


def _largest_node(costs: CostModel) -> int:
    return int(costs.cluster.gpus_per_node.max())


def _allowed(listed: Iterable[int] | None, fixed: int | None, default: Iterable[int]) -> list[int]:
    if fixed is not None:
        return [fixed]
    return sorted(set(listed)) if listed is not None else list(default)


def _divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def _memory(size_bytes: float) -> str:
    return format_quantity(size_bytes, Dimension.BYTES)


def blocking_reason(space: SearchSpace) -> str:
    """Why a space without families is empty: the constraint that blocks and the nearest relaxation."""
    short = [refusal for refusal in space.refusals if refusal.memory_short_bytes is not None]
    if short:
        nearest = min(short, key=lambda refusal: refusal.memory_short_bytes or 0.0)
        degrees = ", ".join(f"{key} {value}" for key, value in nearest.degrees.items())
        return f"infeasible: {nearest.reason}. Nearest configuration: {degrees}"
    reasons = list(dict.fromkeys(refusal.reason for refusal in space.refusals))
    return "infeasible: " + (
        "; ".join(reasons[:8]) if reasons else "no configuration matches the search limits"
    )
