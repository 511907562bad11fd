"""Commands that shape an emulated network, and what its links then attain."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.measure.emulation import shaping
from pipette_milp.measure.emulation.shaping import EmulatedNetwork

MBIT = 1e6 / 8


@pytest.fixture
def network() -> EmulatedNetwork:
    return EmulatedNetwork.of(np.array([[0, 80, 20], [40, 0, 30], [100, 50, 0]]) * MBIT)


def test_node_totals_follow_the_rule_of_instances(network: EmulatedNetwork) -> None:
    assert np.allclose(network.egress_bytes_per_s, np.array([80, 40, 100]) * MBIT)
    assert np.allclose(network.ingress_bytes_per_s, np.array([100, 80, 30]) * MBIT)


def test_goodput_is_limited_by_pair_and_nodes() -> None:
    tight = EmulatedNetwork(np.full((2, 2), 80 * MBIT), np.array([80, 40]) * MBIT, np.array([60, 80]) * MBIT)
    share = 1448 / 1514
    assert tight.goodput_bytes_per_s[0, 1] == pytest.approx(share * 80 * MBIT)
    assert tight.goodput_bytes_per_s[1, 0] == pytest.approx(share * 40 * MBIT)


def test_classes_of_a_node(network: EmulatedNetwork) -> None:
    commands = shaping.node_shaping(network, 0, 2)
    classes = {}
    for command in commands:
        match = re.match(
            r"class add dev eth0 parent (\S+) classid (\S+) htb rate (\d+)bit(?: ceil (\d+)bit)?", command
        )
        if match:
            classes[match[2]] = (match[1], int(match[3]), int(match[4] or 0))
    assert classes["1:1"] == ("1:", 80_000_000, 80_000_000)
    for other, ceiling in ((1, 80_000_000), (2, 20_000_000)):
        pair = f"1:{16 + other:x}"
        assert classes[pair][0] == "1:1"
        assert classes[pair][2] == ceiling
        leaves = [name for name, (parent, _, _) in classes.items() if parent == pair]
        assert len(leaves) == 2
        # whatever a class may always send, all of them together leave the node's class in charge
        assert all(classes[leaf][2] == ceiling for leaf in leaves)
    guaranteed = sum(rate for name, (parent, rate, _) in classes.items() if parent not in ("1:", "1:1"))
    assert guaranteed <= 80_000_000
    filters = [command for command in commands if "match ip dst 10.77.0.3/32" in command]
    assert ["dsfield 0x4" in filters[0], "dsfield 0x8" in filters[1]] == [True, True]


def test_what_a_node_receives_is_shaped_by_sender(network: EmulatedNetwork) -> None:
    commands = shaping.switch_shaping(network, 1)
    assert any("dev port2" in c and "classid 1:1 htb rate 30000000bit" in c for c in commands)
    assert any("dev port2" in c and "match ip src 10.77.0.1/32" in c for c in commands)
    assert not any("dev port2" in c and "match ip src 10.77.0.3/32" in c for c in commands)


def test_addresses_stay_inside_and_differ(network: EmulatedNetwork) -> None:
    links = [command for node in range(3) for command in shaping.node_links(network, node)]
    assert sum("address add" in command for command in links) == 3
    assert len({shaping.address(node) for node in range(200)}) == 200
    assert len({shaping.hardware_address(node) for node in range(200)}) == 200


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (np.ones((1, 1)) * MBIT, "1 nodes: expected 2"),
        (np.ones((2, 3)) * MBIT, "shape"),
        (np.array([[0, 100.0], [np.nan, 0]]) * MBIT, "finite rates"),
        (np.array([[0, 0.5], [1, 0]]) * MBIT, "finite rates of at least"),
    ],
)
def test_impossible_networks(pair: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        EmulatedNetwork(pair, np.full(len(pair), 10 * MBIT), np.full(len(pair), 10 * MBIT))
