"""Bandwidths by groups of nodes: what is read, what it means, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cluster import Cluster
from pipette_milp.errors import InputError
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.link_groups import LinkGroups
from tests.instance_cases import instance_data

NODES = [f"node-{n:03d}" for n in range(4)]
PLACE = "cluster.network.inter_node.bandwidth"
MATRIX = {"unit": "GB/s", "values": [[None, 3], [4, None]]}


def grouped(changes: dict[str, Any] | None = None, **fields: Any) -> Instance:
    """Four nodes, the second alone in its group."""
    links = {"groups": [[NODES[0], NODES[2], NODES[3]], [NODES[1]]], "within": "20 GB/s", "between": "5 GB/s"}
    links |= fields
    links = {key: value for key, value in links.items() if value is not ...}
    inter_node = {"bandwidth": links, "latency": "10 us"}
    return load_instance(
        instance_data(
            {"cluster/nodes/0/count": 4, "cluster/network/inter_node": inter_node, **(changes or {})}
        )
    )


def test_links_inside_and_between_groups() -> None:
    pair = Cluster.of(grouped()).pair_bytes_per_s
    assert pair[0, 2] == pair[3, 0] == 20e9
    assert pair[0, 1] == pair[1, 3] == 5e9
    assert np.all(np.isinf(np.diag(pair)))


def test_rows_of_the_matrix_between_groups_send() -> None:
    pair = Cluster.of(grouped(between=MATRIX)).pair_bytes_per_s
    assert pair[3, 1] == 3e9
    assert pair[1, 3] == 4e9
    assert pair[2, 3] == 20e9


def test_excluded_nodes_leave_the_others_where_they_are() -> None:
    found = Cluster.of(grouped({"cluster/exclude": {"nodes": [NODES[0]]}}, between=MATRIX))
    assert found.node_names == tuple(NODES[1:])
    assert found.pair_bytes_per_s[0, 1] == 4e9
    assert found.pair_bytes_per_s[1, 2] == 20e9


def test_a_flow_is_one_of_several() -> None:
    data = grouped().model_dump(mode="json")
    data["cluster"]["network"]["inter_node"] |= {"measures": "flow", "simultaneous_flows": 4}
    found = Cluster.of(load_instance(data))
    assert found.pair_bytes_per_s[0, 1] == 20e9
    assert found.port_bytes_per_s == 20e9


def test_nothing_is_missing_and_it_round_trips() -> None:
    for between in ("5 GB/s", MATRIX):
        found = grouped(between=between)
        assert found.missing_pairs() == []
        assert found.with_missing(1e9) == found
        again = load_instance(found.model_dump(mode="json"))
        assert again == found
        assert again.sha256() == found.sha256()


def test_equal_to_the_matrix_it_stands_for() -> None:
    found = grouped(between=MATRIX)
    inter_node = found.cluster.network.inter_node
    assert inter_node is not None
    assert isinstance(inter_node.bandwidth, LinkGroups)
    pair = Cluster.of(found).pair_bytes_per_s
    values = [[None if a == b else float(pair[a, b]) for b in range(4)] for a in range(4)]
    data = found.model_dump(mode="json")
    data["cluster"]["network"]["inter_node"] |= {
        "bandwidth": {"unit": "B/s", "values": values},
        "measures": "node_pair",
    }
    assert np.array_equal(Cluster.of(load_instance(data)).pair_bytes_per_s, pair)


@pytest.mark.parametrize(
    ("fields", "place", "message"),
    [
        ({"groups": ...}, "groups", "is required"),
        ({"within": ...}, "within", "is required"),
        ({"between": ...}, "between", "is required"),
        ({"inside": 1}, "inside", "unknown key"),
        ({"groups": []}, "groups", "at least one group"),
        ({"groups": [NODES, []]}, "groups[1]", "at least one node name"),
        ({"groups": [NODES[:2], NODES[1:]]}, "groups", "'node-001' occurs 2 times"),
        ({"groups": [NODES[:3], ["node-3"]]}, "groups[1][0]", "there is no node 'node-3'"),
        ({"groups": [NODES[:3]]}, "groups", "'node-003' is in none, 1 in all"),
        ({"groups": NODES}, "groups[0]", "valid tuple"),
        ({"groups": [[1]]}, "groups[0][0]", "valid string"),
        ({"within": 0}, "within", "more than 0"),
        ({"within": "20 gb/s"}, "within", "in doubt"),
        ({"within": MATRIX}, "within", "expected"),
        ({"between": -1}, "between", "not negative"),
        ({"between": 0}, "between", "more than 0"),
        ({"between": [[1, 2], [3, 4]]}, "between", "needs its unit"),
        ({"between": {"values": [[None, 1], [1, None]]}}, "between.unit", "is required"),
        ({"between": {"unit": "GB/s", "values": [[None]]}}, "between.values", "expected one per group, 2"),
        (
            {"between": {"unit": "GB/s", "values": [[None, 1], [None, None]]}},
            "between.values[1][0]",
            "every figure is needed",
        ),
    ],
)
def test_refused_with_the_place(fields: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        grouped(**fields)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert message in found.get(f"{PLACE}.{place}", ""), found
