from __future__ import annotations

import pytest

from pipette_milp.errors import InputError, PlanError
from pipette_milp.exporters.hosts import Level, rank_map
from tests.launch_cases import instance, plan


@pytest.mark.parametrize(
    ("gpus", "level"),
    [
        ([4, 5, 6, 7, 0, 1, 2, 3], Level.NODE_ORDER),
        ([0, 1, 2, 4, 5, 6], Level.NODE_ORDER),  # the first three GPUs of two nodes
        ([4, 5, 7, 6, 0, 1, 2, 3], Level.LOCAL_ORDER),
        ([1, 2, 3, 4, 5, 6], Level.LOCAL_ORDER),
        ([0, 4, 1, 5, 2, 6, 3, 7], Level.PER_RANK),
    ],
)
def test_levels(gpus: list[int], level: Level) -> None:
    wanted = plan(gpus, (24,), tensor=1, data=len(gpus))
    found = rank_map(instance(nodes=2).cluster, wanted)
    assert found.level is level
    assert found.world_size == len(gpus)
    assert found.by_rank == tuple((f"node{gpu // 4}", gpu % 4) for gpu in gpus)


def test_ids_count_excluded_gpus_too() -> None:
    cluster = instance(nodes=2, excluded=["node0:1"]).cluster
    found = rank_map(cluster, plan([0, 2, 3, 4], (24,), tensor=1, data=4))
    assert found.hosts[0].gpus == (0, 2, 3)
    with pytest.raises(PlanError, match=r"gpu_of_rank\[1\]: GPU 1 is excluded"):
        rank_map(cluster, plan([0, 1, 3, 4], (24,), tensor=1, data=4))


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([0, 1, 2], "has 3 entries, the configuration has 4 ranks"),
        ([0, 1, 2, 2], "GPU 2 is used by rank 2 already"),
        ([0, 1, 2, 8], "GPU 8 does not exist"),
    ],
)
def test_placements_that_do_not_fit(gpus: list[int], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rank_map(instance(nodes=2).cluster, plan(gpus, (24,), tensor=1, data=4))


@pytest.mark.parametrize("name", ["a b", "$(rm x)", "a;b", "-a", "a|b", "é"])
def test_names_that_a_shell_would_read_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="no host name"):
        rank_map(instance(names=[name]).cluster, plan([0, 1], (24,), tensor=1, data=2))


def test_order_as_text() -> None:
    wanted = plan([0, 1, 2, 3], (24,), tensor=1, data=4)
    ranks = rank_map(instance(names=["node7", "node66", "node8", "node70"], gpus=1).cluster, wanted)
    assert ranks.order_as_text == ("node66", "node7", "node70", "node8")
    padded = rank_map(instance(names=["n07", "n08", "n66", "n70"], gpus=1).cluster, wanted)
    assert padded.order_as_text is None
