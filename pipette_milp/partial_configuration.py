"""Completes a configuration that people write: only what cannot be derived has to be there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.schema.strict import validate
from pipette_milp.search_space import default_split


def complete_configuration(given: Any, instance: Instance, source: str = "") -> Configuration:
    """A whole configuration from some of its fields.

    Left out are derived: ``data`` from the usable GPUs, ``micro_batch`` or ``num_micro_batches`` from each
    other and the global batch, ``stages`` as the even split, ``schedule``, ``pipeline_transfers``,
    ``gradient_dtype`` and ``overlap`` from the instance. Options of which the instance allows exactly one
    value take it; the others take the defaults of `Configuration`. Degrees left out are 1.

    Args:
        given: a JSON object with fields of `Configuration`.
        source: heads the message of an error.

    Raises:
        InputError: unknown or wrong fields.
        IllegalConfigurationError: the fields do not go together or not with the instance.
    """
    if not isinstance(given, Mapping):
        raise IllegalConfigurationError("expected a JSON object with the fields of a configuration", source)
    fields: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    problems: list[Problem] = []
    costs = CostModel.of(instance)
    fields.setdefault("pipeline", 1)
    fields.setdefault("tensor", 1)
    _options(fields, instance)
    _data(fields, costs.cluster.num_gpus, problems)
    _batch(fields, instance, problems)
    if problems:
        raise IllegalConfigurationError(problems, source)
    virtual = _count(fields, "pipeline") * _count(fields, "virtual_stages")
    if "stages" not in fields and "layers_per_stage" not in fields and virtual:
        fields["stages"] = split_stages(instance.search.layers_per_stage or default_split(costs, virtual))
    return validate(Configuration, fields, source)


def _count(fields: Mapping[str, Any], name: str) -> int:
    """A positive whole number, 1 where it is left out; 0 stands for what `validate` will refuse."""
    value = fields.get(name, 1)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _options(fields: dict[str, Any], instance: Instance) -> None:
    training = instance.training
    schedules = instance.search.schedules
    fields.setdefault("schedule", schedules[0] if schedules else "1f1b")
    fields.setdefault("pipeline_transfers", training.transfers_for(str(fields["schedule"]))[0])
    fields.setdefault("gradient_dtype", training.gradient_dtype)
    fields.setdefault("overlap", training.overlap)
    for name, allowed in (
        ("recompute", training.recompute),
        ("sequence_parallel", training.sequence_parallel),
        ("data_sharding", training.data_sharding),
    ):
        if len(allowed) == 1:
            fields.setdefault(name, allowed[0])


def _data(fields: dict[str, Any], gpus: int, problems: list[Problem]) -> None:
    grid = _count(fields, "pipeline") * _count(fields, "tensor") * _count(fields, "context")
    if "data" in fields or not grid:
        return
    if gpus % grid:
        text = f"{fields['pipeline']} x {fields['tensor']}"
        problems.append(Problem("data", f"pipeline x tensor = {text} does not divide the {gpus} usable GPUs"))
    fields["data"] = max(gpus // grid, 1)


def _batch(fields: dict[str, Any], instance: Instance, problems: list[Problem]) -> None:
    """Micro-batch, micro-batches per replica and global batch: two of them give the third."""
    batches = instance.training.global_batch_size
    data, micro = _count(fields, "data"), _count(fields, "micro_batch")
    if not data or not micro:
        return
    if "num_micro_batches" in fields:
        micro_batches = _count(fields, "num_micro_batches")
        if "micro_batch" not in fields and micro_batches:
            _divide(
                fields, "micro_batch", batches, data * micro_batches, "data x num_micro_batches", problems
            )
        elif micro_batches and data * micro * micro_batches not in batches:
            allowed = " or ".join(map(str, batches))
            problems.append(
                Problem(
                    "num_micro_batches",
                    f"{micro_batches} x micro-batch {micro} x data {data} = {data * micro * micro_batches} "
                    f"sequences, the global batch is {allowed}",
                )
            )
        return
    if "micro_batch" not in fields:
        problems.append(Problem("micro_batch", "is required (or num_micro_batches)"))
        return
    _divide(fields, "num_micro_batches", batches, data * micro, "data x micro_batch", problems)


def _divide(
    fields: dict[str, Any], name: str, batches: tuple[int, ...], by: int, what: str, problems: list[Problem]
) -> None:
    if len(batches) > 1:
        problems.append(Problem(name, "is required: the instance allows several global batches"))
    elif batches[0] % by:
        problems.append(Problem(name, f"{what} = {by} does not divide the global batch {batches[0]}"))
    else:
        fields[name] = batches[0] // by
