"""Exported files, replayed by each launcher's own rank rule, put every rank on its planned GPU."""

from __future__ import annotations

import numpy as np
import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.exporters.hosts import Level, rank_map
from pipette_milp.exporters.registry import export
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from tests.launch_cases import (
    planned,
    random_plan,
    replay_deepspeed,
    replay_kubernetes,
    replay_mpich,
    replay_openmpi,
    replay_slurm,
    replay_torchrun,
)

PLANS = 200
REPLAY = {
    "slurm": replay_slurm,
    "openmpi": replay_openmpi,
    "mpich": replay_mpich,
    "torchrun": replay_torchrun,
    "kubernetes": replay_kubernetes,
    "deepspeed": replay_deepspeed,
}
MOST = {"torchrun": Level.LOCAL_ORDER, "kubernetes": Level.LOCAL_ORDER, "deepspeed": Level.NODE_ORDER}
"""Strongest level that a launcher can express, where it is not all of them."""


@pytest.mark.parametrize("target", REPLAY)
def test_every_rank_on_its_gpu(target: str) -> None:
    levels = set()
    for seed in range(PLANS):
        problem, plan = random_plan(np.random.default_rng(seed))
        level = rank_map(problem.cluster, plan).level
        levels.add(level)
        if level > MOST.get(target, Level.PER_RANK) and not _ascending(problem, plan, target):
            with pytest.raises(IllegalConfigurationError, match="slurm"):
                export(target, problem, plan)
            continue
        files = export(target, problem, plan).files
        assert REPLAY[target](files) == planned(problem, plan), f"seed {seed}"
    assert levels == set(Level)  # the plans are of all three kinds


def _ascending(problem: Instance, plan: Plan, target: str) -> bool:
    """Whether DeepSpeed's selection of GPUs, which keeps them in ascending order, says the plan after all."""
    ranks = rank_map(problem.cluster, plan)
    ordered = all(list(host.gpus) == sorted(host.gpus) for host in ranks.hosts)
    return target == "deepspeed" and ranks.level is Level.LOCAL_ORDER and ordered


def test_the_level_is_the_weakest() -> None:
    """A weaker launcher model puts some rank elsewhere."""
    for seed in range(PLANS):
        problem, plan = random_plan(np.random.default_rng(seed))
        ranks = rank_map(problem.cluster, plan)
        wanted = planned(problem, plan)
        by_node = [(host.name, local) for host in ranks.hosts for local in range(len(host.ranks))]
        by_device = [(host.name, gpu) for host in ranks.hosts for gpu in host.gpus]
        assert (by_node == wanted) == (ranks.level is Level.NODE_ORDER)
        assert (by_device == wanted) == (ranks.level <= Level.LOCAL_ORDER)
