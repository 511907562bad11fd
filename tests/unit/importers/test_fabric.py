"""Fabrics and schedulers: groups by level, uplinks in the instance, contradictions, a plan that uses them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from pipette_milp.cluster import Cluster
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.importers import ibnetdiscover, matrix_table, perftest, slurm_topology, slurm_yaml
from pipette_milp.importers.assemble import Assembled, AssembleOptions, Found, assemble
from pipette_milp.importers.hostlist import expand
from pipette_milp.importers.merge import merge_cluster
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.importers.registry import parse
from pipette_milp.schema.instance import parse_instance
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from tests.fabric_cases import dump, rail_hosts, single_card_hosts
from tests.importer_samples import sample

GB = 1e9
OPTIONS = ClusterOptions(
    gpu_type="h100-80gb", gpus_per_node=8, intra_node_bytes_per_s=370 * GB, latency_s=1e-5
)


def fabric(text: str) -> Any:
    return ibnetdiscover.parse(text, "fabric.txt")


def whole(text: str, options: ClusterOptions = OPTIONS) -> Assembled:
    """An instance from a fabric and a model."""
    model = parse(sample("models/llama-3.1-8b.config.json"), "config.json", "hf-config")
    found = [Found("fabric.txt", "ibnetdiscover", fabric(text)), Found("config.json", "hf-config", model)]
    more = AssembleOptions(sequence_length=4096, global_batch_size=512, cluster=options)
    return assemble(found, more)


# ---------------------------------------------------------------- must hold: 40 switches, 500 adapters
def test_a_fabric_of_40_switches_becomes_groups_and_uplinks_that_a_plan_uses() -> None:
    """32 leaves in rails of 8 and 8 spines, 500 adapters: 4 pods with a quarter of the bandwidth upwards."""
    hosts = rail_hosts(4, 8, 16)
    for leaf in hosts[28:]:
        del leaf[-3:]  # the last host lacks cards
    text = dump(hosts, spines=8, uplinks_per_leaf=4)
    started = time.process_time()
    read = fabric(text)
    assert (len(read.switch_names), len(read.adapters)) == (40, 500)
    result = whole(text)
    assert time.process_time() - started < 10
    assert result.complete
    instance = parse_instance(result.document)
    uplinks = instance.cluster.network.uplinks
    assert [len(uplink.nodes) for uplink in uplinks] == [16, 16, 16, 16]
    assert all(uplink.bandwidth == pytest.approx(32 * 50 * GB * 0.92) for uplink in uplinks)
    cluster = Cluster.of(instance)
    assert [cluster.uplinks.members(u) for u in range(4)] == [
        list(range(16 * u, 16 * u + 16)) for u in range(4)
    ]
    assert cluster.egress_bytes_per_s[0] == pytest.approx(8 * 46 * GB)
    slower = _synchronisation_s(instance, scattered=True) / _synchronisation_s(instance, scattered=False)
    assert slower > 1.5, "a ring that leaves its pod at every step waits for the uplinks"


def _synchronisation_s(instance: Any, *, scattered: bool) -> float:
    """Of one stage on all nodes: neighbours in the ring in the same pod, or each in another."""
    space = enumerate_space(CostModel.of(instance))
    tables = next(t for t in space.families if (t.pipeline, t.tensor, t.data) == (1, 8, 64))
    order = np.arange(64).reshape(4, 16).T.ravel() if scattered else np.arange(64)
    cells = order[None, :]
    durations = Evaluator(tables).durations(Candidate(np.array([tables.total_layers]), cells))
    return float(durations.gradient_sync_s[0])


# ---------------------------------------------------------------- groups
def test_one_card_a_host_groups_by_leaf() -> None:
    found = fabric(dump(single_card_hosts(3, 4), spines=2, uplinks_per_leaf=2)).all_groups
    assert [(group.name, len(group.nodes), group.cables) for group in found] == [
        (f"leaf-0{leaf}", 4, 2) for leaf in range(3)
    ]
    assert found[0].bytes_per_s == 100 * GB


def test_three_levels_give_leaves_and_pods() -> None:
    """Two pods of two leaves and a spine each, joined by a core switch."""
    guid = {
        name: f"{number:016x}" for number, name in enumerate(("l0", "l1", "l2", "l3", "s0", "s1", "c"), 1)
    }
    cables = [("l0", "s0"), ("l1", "s0"), ("l2", "s1"), ("l3", "s1"), ("s0", "c"), ("s1", "c")]
    lines = []
    for name in guid:
        lines.append(f'Switch 40 "S-{guid[name]}" # "{name}" base port 0 lid 1 lmc 0')
        if name.startswith("l"):
            lines.append(f'[1] "H-{name[1]}00"[1](a) # "host-{name} mlx5_0" lid 3 4xHDR')
        for port, (a, b) in enumerate(cables, start=10):
            if name in (a, b):
                other = b if name == a else a
                lines.append(f'[{port}] "S-{guid[other]}"[{port}] # "{other}" lid 2 4xHDR')
    found = fabric("\n".join(lines) + "\n").all_groups
    assert [(group.level, group.nodes) for group in found] == [
        (0, ("host-l0",)),
        (0, ("host-l1",)),
        (0, ("host-l2",)),
        (0, ("host-l3",)),
        (1, ("host-l0", "host-l1")),
        (1, ("host-l2", "host-l3")),
    ]


def test_a_manager_on_a_spine_is_no_compute_node() -> None:
    text = dump(single_card_hosts(2, 6), spines=1, uplinks_per_leaf=2)
    text += '[40]\t"H-dd"[1](dd) \t\t# "ufm-01 mlx5_0" lid 99 4xNDR\n'
    read = fabric(text)
    assert read.service_hosts == ("ufm-01",)
    assert len(read.hosts) == 12
    assert any("ufm-01" in warning.message for warning in read.warnings)
    assert len(read.all_groups) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "cannot read"),
        ('[1]\t"H-1"[1](1) \t\t# "a mlx5_0" lid 1 4xHDR\n', "without the switch"),
        ("# nothing\n", "found no switch"),
        (
            'Switch 2 "S-1" # "a"\n[1] "S-2"[1] # "b" lid 1 4xHDR\n'
            'Switch 2 "S-2" # "b"\n[1] "S-1"[1] # "a" lid 1 4xNDR\n',
            "two rates",
        ),
        (
            'Switch 2 "S-1" # "a"\n[1] "S-2"[1] # "b" lid 1 4xHDR\n[1] "S-2"[2] # "b" lid 1 4xHDR\n',
            "two cables",
        ),
    ],
)
def test_damaged_dumps(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fabric(text)


@pytest.mark.parametrize(
    ("rate", "gbit"),
    [("4xSDR", 8), ("4xQDR", 32), ("4xFDR10", 40), ("4xEDR", 100), ("4xXDR", 800), ("2xHDR", 100)],
)
def test_rates(rate: str, gbit: float) -> None:
    read = fabric(dump([["a mlx5_0"], ["b mlx5_0"]], 1, 1, rate=rate))
    assert {adapter.bytes_per_s for adapter in read.adapters} == {gbit / 8 * GB}


# ---------------------------------------------------------------- merge
def test_scheduler_and_cables_that_disagree() -> None:
    read = fabric(dump(single_card_hosts(2, 2), 1, 1))
    conf = (
        "SwitchName=a Nodes=node-000,node-002\nSwitchName=b Nodes=node-001,node-003\n"
        "SwitchName=r Switches=a,b\n"
    )
    merged = merge_cluster([read, slurm_topology.parse(conf, "topology.conf")], OPTIONS)
    told = [warning.message for warning in merged.warnings if "contradiction" in warning.message]
    assert any("node-000 and node-002 together on a" in message for message in told)
    assert len(merged.section["network"]["uplinks"]) == 2
    same = "SwitchName=a Nodes=node-[000-001]\nSwitchName=b Nodes=node-[002-003]\nSwitchName=r Switches=a,b\n"
    merged = merge_cluster([read, slurm_topology.parse(same, "topology.conf")], OPTIONS)
    assert not [warning for warning in merged.warnings if "contradiction" in warning.message]


def test_measured_faster_than_the_cards() -> None:
    read = fabric(dump([["a mlx5_0", "b mlx5_0"]], 1, 1, rate="4xEDR"))
    links = matrix_table.parse("GB/s\ta\tb\na\t-\t25\nb\t25\t-\n", "links.tsv")
    options = ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1, measures="node_pair")
    with pytest.raises(InputError, match=r"was measured at 25\.0 GB/s"):
        merge_cluster([read, links], options)


def test_nodes_that_the_fabric_does_not_have() -> None:
    read = fabric(dump(single_card_hosts(2, 2), 1, 1))
    options = ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1, hosts=("node-000", "node-001", "other"))
    merged = merge_cluster([read], options)
    assert any("does not have other" in warning.message for warning in merged.warnings)


def test_names_with_and_without_a_domain_are_the_same_node() -> None:
    read = fabric(dump(single_card_hosts(2, 2), 1, 1))
    hosts = tuple(f"node-00{i}.cluster.local" for i in range(4))
    merged = merge_cluster([read], ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1, hosts=hosts))
    assert merged.section["network"]["uplinks"][0]["nodes"] == list(hosts[:2])


def test_a_scheduler_alone_needs_to_be_told_the_taper() -> None:
    tree = parse(sample("scheduler/tree.topology.conf"), "topology.conf")
    told = merge_cluster([tree], OPTIONS)
    assert "uplinks" not in told.section["network"]
    assert any("--oversubscription" in warning.message for warning in told.warnings)
    links = matrix_table.parse(_matrix([f"gpu-0{i}" for i in range(1, 7)], 20.0), "links.tsv")
    options = ClusterOptions(
        gpu_type="h100-80gb", gpus_per_node=1, measures="node_pair", oversubscription=2.0
    )
    merged = merge_cluster([tree, links], options)
    assert merged.section["network"]["uplinks"] == [
        {"name": "leaf-a", "nodes": ["gpu-01", "gpu-02", "gpu-03"], "bandwidth": "30 GB/s"},
        {"name": "leaf-b", "nodes": ["gpu-04", "gpu-05", "gpu-06"], "bandwidth": "30 GB/s"},
    ]


def _matrix(names: list[str], value: float) -> str:
    rows = ["GB/s\t" + "\t".join(names)]
    rows += ["\t".join([a, *("-" if a == b else str(value) for b in names)]) for a in names]
    return "\n".join(rows) + "\n"


def test_a_card_is_as_fast_as_perftest_found() -> None:
    read = fabric(dump(single_card_hosts(2, 2), 1, 1, rate="4xHDR"))
    tests = perftest.parse(sample("fabric/write_bw.perftest.txt"), "bw.txt")
    merged = merge_cluster([read, *tests], ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1))
    assert merged.section["node_types"]["node"]["nics"]["bandwidth"] == "24.62 GB/s"


# ---------------------------------------------------------------- Slurm
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[01-03,7]", ["n01", "n02", "n03", "n7"]),
        ("r[1-2]n[0,5]x,y", ["r1n0x", "r1n5x", "r2n0x", "r2n5x", "y"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-3", "n1-3]", "n[3-1]", "n[a-b]", "n[]", "a,,b", "", "n[1-999999]", "n[[1]]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n[1-2\n", "cannot read"),
        ("SwitchName=a Switches=b\n", "not described"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", "hangs on both a and b"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "above itself"),
        ("SwitchName=a\n", "lacks children"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "twice and differently"),
        ("SwitchName=a Nodes=n1 Color=red\n", "color"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n1\n", "mixes tree and block"),
        ("BlockName=a Nodes=n[1-4]\nBlockSizes=2,6\n", "no power-of-two multiple"),
        ("BlockName=a Nodes=n1\nBlockSizes=2\n", "fewer than the block size"),
        ("RingName=a Nodes=n[1-17]\n", "up to 16"),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", "is in both"),
    ],
)
def test_topologies_that_slurm_refuses(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        slurm_topology.parse(text, "topology.conf")


def test_what_scontrol_prints() -> None:
    text = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
        "SwitchName=s2 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]\n"
    )
    tree = slurm_topology.parse(text, "out.txt")
    assert tree.lowest_common("n1", "n3") == "s2"
    nodes = "NodeName=n1 Arch=x86_64\n   Topology=default:s2:s0\nNodeName=n3\n   Topology=default:s2:s1\n"
    assert slurm_topology.parse(nodes, "out.txt").lowest_common("n1", "n3") == "s2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n", "expected a list"),
        ("- topology: t\n  torus3d: {}\n", "torus"),
        ("- topology: t\n", "0 kinds"),
        ("- topology: t\n  tree: {switches: [{switch: a, nodes: 'n[1'}]}\n", "not closed"),
        ("- topology: t\n  tree: {switches: [{nodes: n1}]}\n", "switch: NAME"),
        ("- topology: t\n  tree: {switches: 3}\n", "list of mappings"),
        ("- topology: t\n  topology: u\n  flat: true\n", "more than once"),
        ("- topology: [\n", "not YAML"),
        ("- topology: t\n  block: {block_sizes: [x], blocks: []}\n", "whole numbers"),
    ],
)
def test_damaged_topology_yaml(text: str, message: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(InputError, match=message):
        slurm_yaml.parse(text, "topology.yaml")


def test_the_default_of_several_topologies_counts() -> None:
    pytest.importorskip("yaml")
    several = parse(sample("scheduler/topology.yaml"), "topology.yaml")
    assert [(item.name, item.is_default) for item in several] == [("fabric", True), ("racks", False)]
    merged = merge_cluster(list(several), OPTIONS)
    assert [node["name"] for node in merged.section["nodes"]] == [f"gpu-0{i}" for i in range(1, 7)]
