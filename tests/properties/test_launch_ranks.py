"""Exported files, replayed by each launcher's own rank rule, put every rank on its planned GPU."""

from __future__ import annotations

import numpy as np
import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.exporters.hosts import Level, rank_map
from pipette_milp.exporters.registry import export
from tests.launch_cases import planned, random_plan, replay_openmpi, replay_slurm, replay_torchrun

PLANS = 200
REPLAY = {"slurm": replay_slurm, "openmpi": replay_openmpi, "torchrun": replay_torchrun}


@pytest.mark.parametrize("target", REPLAY)
def test_every_rank_on_its_gpu(target: str) -> None:
    levels = set()
    for seed in range(PLANS):
        problem, plan = random_plan(np.random.default_rng(seed))
        level = rank_map(problem.cluster, plan).level
        levels.add(level)
        if target == "torchrun" and level is Level.PER_RANK:
            with pytest.raises(IllegalConfigurationError, match="slurm or openmpi"):
                export(target, problem, plan)
            continue
        files = export(target, problem, plan).files
        assert REPLAY[target](files) == planned(problem, plan), f"seed {seed}"
    assert levels == set(Level)  # the plans are of all three kinds


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
