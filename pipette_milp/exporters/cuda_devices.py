"""Target ``cuda-devices``: the order of GPUs inside each node, as CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from pipette_milp.errors import IllegalConfigurationError, Problem
from pipette_milp.exporters.hosts import Level
from pipette_milp.exporters.launch import Export, LaunchOptions, level_note, prepare, visible_devices
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

DEVICES = "cuda_visible_devices.tsv"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """One line a node, in node order: host, first rank, number of ranks, CUDA_VISIBLE_DEVICES.

    Raises:
        IllegalConfigurationError: the plan needs a host for every rank, which this cannot say.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    if ranks.level is Level.PER_RANK:
        raise IllegalConfigurationError(
            Problem(
                "placement",
                "needs a host for every rank, which an order of GPUs cannot say: use slurm or openmpi",
            )
        )
    lines = ["host\tfirst_rank\tranks\tCUDA_VISIBLE_DEVICES"]
    lines += [
        f"{host.name}\t{host.ranks[0]}\t{len(host.ranks)}\t{visible_devices(host)}" for host in ranks.hosts
    ]
    notes = (
        level_note(ranks, "a launcher"),
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that the numbers are nvidia-smi's",
    )
    return Export({**launch.files, DEVICES: "\n".join([*lines, ""])}, ranks.level, notes)
