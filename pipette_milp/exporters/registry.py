"""Export targets by name."""

from __future__ import annotations

import importlib

from pipette_milp.errors import InputError
from pipette_milp.exporters.launch import Export, LaunchOptions
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

_PACKAGE = "pipette_milp.exporters"

TARGETS: dict[str, str] = {
    "megatron": f"{_PACKAGE}.megatron_target:export",
    "torchrun": f"{_PACKAGE}.torchrun:export",
    "slurm": f"{_PACKAGE}.slurm:export",
    "openmpi": f"{_PACKAGE}.openmpi:export",
    "mpich": f"{_PACKAGE}.mpich:export",
    "deepspeed": f"{_PACKAGE}.deepspeed:export",
    "kubernetes": f"{_PACKAGE}.kubernetes:export",
    "torchtitan": f"{_PACKAGE}.torchtitan:export",
    "nemo": f"{_PACKAGE}.nemo:export",
    "cuda-devices": f"{_PACKAGE}.cuda_devices:export",
    "lp": f"{_PACKAGE}.optimisation_model:export_lp",
    "mps": f"{_PACKAGE}.optimisation_model:export_mps",
    "cpsat": f"{_PACKAGE}.optimisation_model:export_cpsat",
}
"""Name -> ``module:function`` with ``(instance, plan, options) -> Export``."""


def export(target: str, instance: Instance, plan: Plan, options: LaunchOptions | None = None) -> Export:
    """The files of a target.

    Raises:
        InputError: unknown target, or a plan that the target cannot express or the framework refuses.
    """
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}, known are {', '.join(TARGETS)}")
    module, _, name = TARGETS[target].partition(":")
    result: Export = getattr(importlib.import_module(module), name)(
        instance, plan, options or LaunchOptions()
    )
    return result
