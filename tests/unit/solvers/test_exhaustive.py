from __future__ import annotations

import math

import pytest

from pipette_milp.solvers.exhaustive import candidate_count, layer_splits, placements
from tests.instance_cases import configuration, costs


def test_counts_are_those_of_the_enumeration_where_nothing_is_forbidden() -> None:
    """Two stages and six layers have five splits; two cells go to two nodes with room for two each."""
    tables = costs({"cluster/nodes/0/gpus": 8}).tables(configuration((3, 3), tensor=4))
    assert tables.slots.tolist() == [2, 2]
    splits, places = list(layer_splits(tables)), list(placements(tables))
    assert [split.tolist() for split in splits] == [[1, 5], [2, 4], [3, 3], [4, 2], [5, 1]]
    assert len(splits) * len(places) == candidate_count(tables) == 5 * 2**2


@pytest.mark.parametrize("data", [64, 512])
def test_large_clusters_have_more_plans_than_a_float_holds(data: int) -> None:
    model = costs({"cluster/nodes/0/count": 128, "cluster/nodes/0/gpus": 8})
    count = candidate_count(model.tables(configuration((3, 3), data=data)))
    assert count == (math.inf if data == 512 else 5 * 128.0 ** (2 * data))
