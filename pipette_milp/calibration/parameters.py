"""The figures that are fitted to measured runs: names, plausible ranges, what was known before any run.

Every figure is shared: those of a GPU by all runs on its architecture, those of a framework by all sources
that used its kernels. None belongs to a row, a model or a source. A prior is the centre and the spread that
data sheets and published measurements of kernels leave; runs that say nothing about a figure leave it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pipette_milp.arrays import Array
from pipette_milp.calibration.least_squares import Parameter
from pipette_milp.calibration.prepared import Prepared
from pipette_milp.schema.constants import OTHER_ARCHITECTURE, CostConstants

GIB = 2.0**30

GPU_PARAMETERS = (
    Parameter("matrix_efficiency.volta", 0.70, 0.45, 0.95, 0.3),
    Parameter("matrix_efficiency.turing", 0.45, 0.20, 0.80, 0.4),
    Parameter("matrix_efficiency.ampere", 0.80, 0.60, 0.95, 0.3),
    Parameter("matrix_efficiency.hopper", 0.70, 0.45, 0.90, 0.3),
    Parameter("matrix_efficiency.blackwell", 0.65, 0.40, 0.90, 0.3),
    Parameter("fp8_matrix_efficiency", 0.80, 0.50, 1.00, 0.3),
    Parameter("exponential_efficiency", 0.60, 0.20, 1.00, 0.4),
    Parameter("memory_efficiency", 0.80, 0.60, 0.95, 0.1),
    Parameter("tile_s", 1.5e-6, 3e-7, 6e-6, 0.5),
    Parameter("misalignment", 0.04, 0.005, 0.25, 0.7),
    Parameter("kernel_s", 2e-6, 5e-7, 6e-6, 0.5),
)
"""Eleven figures of GPUs that times are fitted with; `COMMUNICATOR` is the twelfth and last."""
COMMUNICATOR = Parameter("communicator_bytes", 0.5 * GIB, 0.1 * GIB, 1.5 * GIB, 0.5)

LAUNCH = Parameter("launch_s", 4e-5, 2e-6, 2e-4, 0.5)
PASSES = Parameter("elementwise_passes", 1.3, 0.4, 4.0, 0.5)
ATTENTION = Parameter("attention_efficiency", 0.5, 0.2, 1.0, 0.3)
OVERLAP = Parameter("tensor_overlap", 0.5, 0.05, 0.95, 0.5)
ACTIVATIONS = Parameter("activation_factor", 1.0, 0.8, 2.0, 0.2)
"""Figures of a framework, at most four of which any of them has. Host time per task is not fitted (0.3 ms
everywhere): no set of runs tells it from launch times."""

SAME_KERNELS = {"megatron-v2": "megatron-deepspeed", "nemo": "megatron"}
"""Profiles that take their time figures from another one. Megatron-DeepSpeed (BigScience, vTrain) is a fork
of Megatron-LM 2.x with its fused softmax, GELU and dropout; only the pipeline's engine is DeepSpeed's. NeMo
and Megatron-Bridge run Megatron-Core with Transformer Engine, as Megatron-LM itself does."""


def kernels_of(profile: str) -> str:
    """The profile whose time figures a profile has."""
    return SAME_KERNELS.get(profile, profile)


def time_parameters(prepared: Sequence[Prepared]) -> list[Parameter]:
    """What the times of these runs can say something about."""
    profiles = dict.fromkeys(kernels_of(item.profile) for item in prepared)
    overlapping = {
        kernels_of(item.profile) for item in prepared if item.expressed.configuration.overlap.tensor > 0
    }
    architectures = {name for item in prepared for name in item.architectures}
    precisions = {item.expressed.instance.training.precision for item in prepared}
    fused_somewhere = any(item.expressed.instance.training.flash_attention for item in prepared)
    found = [
        parameter
        for parameter in GPU_PARAMETERS
        if not parameter.name.startswith("matrix_efficiency.")
        or parameter.name.split(".")[1] in architectures
        if parameter.name != "fp8_matrix_efficiency" or "fp8" in precisions
        if parameter.name != "exponential_efficiency" or fused_somewhere
    ]
    for profile in profiles:
        fused = any(
            item.expressed.instance.training.flash_attention
            for item in prepared
            if kernels_of(item.profile) == profile
        )
        used = [
            LAUNCH,
            PASSES,
            *([ATTENTION] if fused else []),
            *([OVERLAP] if profile in overlapping else []),
        ]
        found += [of_framework(profile, item) for item in used]
    return found


def of_framework(profile: str, parameter: Parameter) -> Parameter:
    """A figure of one framework."""
    return replace(parameter, name=f"frameworks.{profile}.{parameter.name}")


def at_priors(constants: CostConstants, parameters: Sequence[Parameter]) -> CostConstants:
    """Constants with these figures as they were before any run was seen."""
    return with_shared_values(constants, [p.name for p in parameters], [p.start for p in parameters])


def with_values(base: CostConstants, names: Sequence[str], values: Sequence[float] | Array) -> CostConstants:
    """Constants with the named figures replaced; a dotted name goes into a mapping."""
    data: dict[str, Any] = base.model_dump(mode="json")
    for name, value in zip(names, values, strict=True):
        *parents, last = name.split(".")
        target = data
        for part in parents:
            target = target[part]
        target[last] = float(value)
    return CostConstants.model_validate(data)


def with_shared_values(
    base: CostConstants, names: Sequence[str], values: Sequence[float] | Array
) -> CostConstants:
    """The same, and time figures also in every profile that has the same kernels."""
    every = dict(zip(names, map(float, values), strict=True))
    for profile, kernels in SAME_KERNELS.items():
        for name, value in list(every.items()):
            first, _, rest = name.partition(".")
            owner, _, figure = rest.rpartition(".")
            if first == "frameworks" and owner == kernels and figure != ACTIVATIONS.name:
                every[f"frameworks.{profile}.{figure}"] = value
    return with_values(base, list(every), list(every.values()))


def with_unseen(constants: CostConstants, architectures: Iterable[str]) -> CostConstants:
    """Matrix efficiency of these architectures only; others have their geometric mean."""
    seen = {name: constants.matrix_efficiency[name] for name in sorted(architectures)}
    seen[OTHER_ARCHITECTURE] = math.exp(sum(map(math.log, seen.values())) / len(seen))
    return constants.model_copy(update={"matrix_efficiency": seen})


def value_of(constants: CostConstants, name: str) -> float:
    """One figure by its dotted name."""
    value: Any = constants.model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    return float(value)


def touches(parameter: str, item: Prepared) -> bool:
    """Whether a constant can change the time of a run."""
    first, _, rest = parameter.partition(".")
    if first == "matrix_efficiency":
        return rest in item.architectures
    if first == "frameworks":
        return rest.rsplit(".", 1)[0] == kernels_of(item.profile)
    training = item.expressed.instance.training
    if first == "fp8_matrix_efficiency":
        return training.precision == "fp8"
    if first == "exponential_efficiency":
        return training.flash_attention
    return True
