"""From the cluster section to capacities, GPU ids and directed links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cluster import Cluster
from pipette_milp.errors import InputError
from tests.instance_cases import instance

MATRIX = {"unit": "GB/s", "values": [[None, 10.0, 4.0], [20.0, None, 5.0], [8.0, 6.0, None]]}
THREE = {"cluster/nodes/0/count": 3}


def cluster(changes: dict[str, Any] | None = None, inter_node: dict[str, Any] | None = None) -> Cluster:
    places = dict(changes or {})
    if inter_node is not None:
        places |= {"cluster/network/inter_node": {"latency": "10 us", **inter_node}}
    return Cluster.of(instance(places))


def test_one_figure_holds_for_all_pairs() -> None:
    found = cluster(THREE)
    assert np.all(found.pair_bytes_per_s[~np.eye(3, dtype=bool)] == 20e9)
    assert np.all(np.isinf(np.diag(found.pair_bytes_per_s)))
    assert found.egress_bytes_per_s.tolist() == [20e9] * 3
    assert found.port_bytes_per_s == np.inf
    assert found.link_spread == 0.0
    assert not found.measured


def test_rows_send_and_columns_receive() -> None:
    """Without node_bandwidth and cards: the largest of a row to send, of a column to receive."""
    found = cluster(THREE, {"bandwidth": MATRIX, "measures": "node_pair", "source": "measured"})
    assert found.pair_bytes_per_s[0, 1] == 10e9
    assert found.pair_bytes_per_s[1, 0] == 20e9
    assert found.egress_bytes_per_s.tolist() == [10e9, 20e9, 8e9]
    assert found.ingress_bytes_per_s.tolist() == [20e9, 10e9, 5e9]
    assert found.port_bytes_per_s == np.inf
    assert found.measured
    values = np.array([10, 4, 20, 5, 8, 6])
    assert found.link_spread == pytest.approx(values.std() / values.mean())


def test_a_flow_is_one_of_several() -> None:
    """Node pair = k * value; one GPU is no faster than the fastest flow seen."""
    found = cluster(THREE, {"bandwidth": MATRIX, "measures": "flow", "simultaneous_flows": 4})
    assert found.pair_bytes_per_s[0, 1] == 40e9
    assert found.egress_bytes_per_s.tolist() == [40e9, 80e9, 32e9]
    assert found.port_bytes_per_s == 20e9


def test_cards_and_stated_ceilings_come_first() -> None:
    flow = {"bandwidth": MATRIX, "measures": "flow", "simultaneous_flows": 4}
    node_type = {"gpus": ["gpu", 2], "nics": {"count": 2, "bandwidth": "25 GB/s"}}
    typed = {
        "cluster/node_types/hgx": node_type,
        "cluster/nodes/0": {"name": "node-{:03d}", "count": 3, "type": "hgx"},
    }
    found = cluster(typed, flow)
    assert found.egress_bytes_per_s.tolist() == [50e9] * 3
    assert found.port_bytes_per_s == 25e9
    stated = {"cluster/network/node_bandwidth": "30 GB/s", "cluster/network/per_gpu_bandwidth": "12 GB/s"}
    found = cluster({**typed, **stated}, flow)
    assert found.egress_bytes_per_s.tolist() == found.ingress_bytes_per_s.tolist() == [30e9] * 3
    assert found.port_bytes_per_s == 12e9


def test_excluded_gpus_keep_the_ids_of_the_others() -> None:
    """Ids count all declared GPUs; a node without usable GPUs is gone, with its row and column."""
    excluded = {**THREE, "cluster/exclude": {"nodes": ["node-001"], "gpus": ["node-002:0"]}}
    found = cluster(excluded, {"bandwidth": MATRIX, "measures": "node_pair"})
    assert found.node_names == ("node-000", "node-002")
    assert found.gpu_ids == ((0, 1), (5,))
    assert (found.num_nodes, found.num_gpus) == (2, 3)
    assert found.pair_bytes_per_s[0, 1] == 4e9
    assert found.pair_bytes_per_s[1, 0] == 8e9
    assert found.egress_bytes_per_s.tolist() == [4e9, 8e9]


def test_an_unmeasured_pair_is_refused_unless_its_node_is_excluded() -> None:
    values = [[None, 10.0, None], [20.0, None, 5.0], [8.0, 6.0, None]]
    matrix = {"bandwidth": {"unit": "GB/s", "values": values}, "measures": "node_pair"}
    with pytest.raises(InputError, match="link from node-000 to node-002 was not measured"):
        cluster(THREE, matrix)
    assert cluster({**THREE, "cluster/exclude": {"nodes": ["node-002"]}}, matrix).num_nodes == 2


def test_one_node_needs_no_network() -> None:
    found = cluster({"cluster/nodes/0/count": 1, "cluster/network/inter_node": None})
    assert (found.num_nodes, found.num_gpus) == (1, 2)
    assert found.egress_bytes_per_s.tolist() == [np.inf]
