"""Target ``megatron``: arguments alone, with the placement they need, for a launcher of one's own."""

from __future__ import annotations

from pipette_milp.exporters.hosts import Level
from pipette_milp.exporters.launch import Export, LaunchOptions, level_note, prepare, visible_devices
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

PLACEMENT = "placement.tsv"


def export(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """Arguments, a table of ranks, and the verifier.

    Raises:
        IllegalConfigurationError: Megatron-LM cannot run the configuration.
    """
    launch = prepare(instance, plan, options)
    ranks = launch.ranks
    table = "rank\thost\tgpu\n" + "".join(
        f"{rank}\t{name}\t{gpu}\n" for rank, (name, gpu) in enumerate(ranks.by_rank)
    )
    notes = [level_note(ranks, "a launcher"), f"ranks, hosts and GPUs are in {PLACEMENT}"]
    if ranks.level is Level.LOCAL_ORDER:
        notes += [f"{host.name}: CUDA_VISIBLE_DEVICES={visible_devices(host)}" for host in ranks.hosts]
    return Export({**launch.files, PLACEMENT: table}, ranks.level, tuple(notes))
