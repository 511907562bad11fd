"""Measurements over time as snapshots, and a measured network in an instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.measure.merging import appended, check_document, median_matrix, snapshots, with_network
from pipette_milp.schema.instance import load_instance
from tests.instance_cases import instance_data


def measurement(values: list[list[float | None]], nodes: list[str], time: str = "t0") -> dict[str, Any]:
    return {
        "kind": "network measurement",
        "time": time,
        "transport": "gloo",
        "nodes": nodes,
        "network": {
            "inter_node": {
                "bandwidth": {"unit": "B/s", "values": values},
                "measures": "node_pair",
                "latency": 1e-5,
                "source": "measured",
            },
            "per_gpu_bandwidth": 5e8,
            "node_bandwidth": None,
            "intra_node": {"bandwidth": 1e10, "latency": 1e-6},
        },
    }


PAIR = ["node-000", "node-001"]


def test_three_runs_become_three_snapshots() -> None:
    runs = [
        measurement([[None, rate], [rate, None]], PAIR, f"t{i}") for i, rate in enumerate((1.0, 3.0, 2.0))
    ]
    both = appended(appended(runs[0], runs[1]), runs[2])
    listed = both["network"]["inter_node"]["bandwidth"]["snapshots"]
    assert [item["time"] for item in listed] == ["t0", "t1", "t2"]
    assert [item["name"] for item in listed] == ["snapshot-0", "snapshot-1", "snapshot-2"]
    assert median_matrix(both) == [[None, 2.0], [2.0, None]]
    assert len(snapshots(runs[0])) == 1


def test_a_link_that_failed_once_keeps_its_other_figures() -> None:
    first = measurement([[None, None], [4.0, None]], PAIR)
    second = measurement([[None, 7.0], [6.0, None]], PAIR)
    assert median_matrix(appended(first, second)) == [[None, 7.0], [5.0, None]]


def test_snapshots_of_other_nodes_are_refused() -> None:
    with pytest.raises(InputError, match="need the same nodes"):
        appended(measurement([[None]], ["a"]), measurement([[None]], ["b"]), "f")


@pytest.mark.parametrize("value", [[], {}, {"kind": "other"}, {"kind": "network measurement", "network": {}}])
def test_other_files_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="f: "):
        check_document(value, "f")


def test_into_an_instance_by_name_and_in_its_order() -> None:
    value = instance_data({"cluster/nodes/0/count": 3})
    document = measurement([[None, 2e9], [3e9, None]], ["node-002.cluster", "node-000.cluster"])
    result, notes = with_network(value, load_instance(value), document)
    loaded = load_instance(result)
    found = loaded.cluster.network.inter_node
    assert found is not None
    assert found.source == "measured"
    assert loaded.missing_pairs() == [
        ("node-000", "node-001"),
        ("node-001", "node-000"),
        ("node-001", "node-002"),
        ("node-002", "node-001"),
    ]
    matrix = result["cluster"]["network"]["inter_node"]["bandwidth"]["values"]
    assert matrix[2][0] == 2e9
    assert matrix[0][2] == 3e9
    assert loaded.cluster.network.per_gpu_bandwidth == 5e8
    assert result["cluster"]["network"]["intra_node"] == {"bandwidth": 1e10, "latency": 1e-6}
    assert notes == ["not measured, null in the matrix: node-001"]
    assert "measured with gloo" in str(result["provenance"])
    assert value == instance_data({"cluster/nodes/0/count": 3})  # the given one is left alone


def test_provenance_by_place_keeps_its_form() -> None:
    value = {**instance_data(), "provenance": {"model": "made up"}}
    result, _ = with_network(value, load_instance(value), measurement([[None, 1e9], [1e9, None]], PAIR))
    assert set(result["provenance"]) == {"model", "cluster.network"}
    json.dumps(result)


def test_hosts_with_other_names_are_taken_in_order_or_refused() -> None:
    value = instance_data()
    document = measurement([[None, 1e9], [2e9, None]], ["x", "y"])
    result, notes = with_network(value, load_instance(value), document)
    assert result["cluster"]["network"]["inter_node"]["bandwidth"]["values"][1][0] == 2e9
    assert any("taken in their order" in note for note in notes)
    with pytest.raises(InputError, match="no node named y"):
        with_network(value, load_instance(value), measurement([[None, 1.0], [1.0, None]], ["node-000", "y"]))


def test_node_types_with_their_own_scale_up_are_said_to_keep_it() -> None:
    value = instance_data()
    value["cluster"]["node_types"] = {
        "n": {"gpus": ["gpu", 2], "scale_up": {"kind": "switch", "per_gpu_bandwidth": 1e11, "latency": 1e-6}}
    }
    value["cluster"]["nodes"] = [{"name": "node-{:03d}", "count": 2, "type": "n"}]
    del value["cluster"]["network"]["intra_node"]
    result, notes = with_network(value, load_instance(value), measurement([[None, 1e9], [1e9, None]], PAIR))
    assert any("keep it" in note for note in notes)
    load_instance(result)
