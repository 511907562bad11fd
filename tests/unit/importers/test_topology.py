from __future__ import annotations

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import topology
from pipette_milp.importers.node_topology import Link
from tests.importer_samples import sample

SWITCH = "topology/a100_nvswitch.topo.txt"


def parse(name: str) -> topology.NodeTopology:
    return topology.parse(sample(name), name)


def test_switch_with_cards() -> None:
    node = parse(SWITCH)
    assert node.gpus == tuple(range(8))
    assert node.nics == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_bond_0")
    assert [node.nvlinks_of(gpu) for gpu in range(8)] == [84] * 8
    assert node.fully_linked(tuple(range(8)))
    assert [node.nearest_nics(gpu) for gpu in range(8)] == [(i // 2,) for i in range(8)]
    assert node.compute_nics() == (0, 1, 2, 3)
    assert node.numa_affinity == ("0",) * 4 + ("1",) * 4
    assert node.cpu_affinity[0] == "0-63"
    assert node.warnings == ()


def test_old_driver_with_device_names_and_soc() -> None:
    node = parse("topology/pairs_old_driver.topo.txt")
    assert node.nics == ("mlx4_0",)
    assert node.cliques() == ((0, 1), (2, 3))
    assert node.slowest_link((0, 1, 2, 3)) == Link("SYS")
    assert node.slowest_link((0, 1)) == Link("NVLINK", 4)
    assert node.nearest_nics(0) == (0,)
    assert node.nearest_nics(2) == ()
    assert node.numa_affinity == (None,) * 4


def test_pasted_with_colours_blanks_and_indentation() -> None:
    node = parse("topology/two_gpus_pasted.topo.txt")
    assert node.gpu_links[0][1] == Link("PHB")
    assert node.cpu_affinity == ("0-15", "0-15")
    assert node.numa_affinity == (None, None)


def test_peer_access_is_not_taken_for_topology() -> None:
    node = parse("topology/two_gpus_no_peer.topo.txt")
    assert node.gpu_links[0][1] == Link("PHB")
    assert node.peer_access == ((None, False), (False, None))


def test_peer_access_alone_is_refused() -> None:
    text = sample("topology/two_gpus_no_peer.topo.txt").split("\n\n")[1]
    with pytest.raises(InputError, match="topo -m"):
        topology.parse(text, "p2p.txt")


def test_missing_rows_of_cards_are_named_and_not_needed() -> None:
    text = sample(SWITCH).split("NIC2\tSYS")[0]
    node = topology.parse(text, "cut.txt")
    assert node.nic_links == parse(SWITCH).nic_links
    assert "NIC2, NIC3, NIC4" in node.warnings[0].message


def test_missing_row_of_a_gpu_is_refused() -> None:
    with pytest.raises(InputError, match=r"cut\.txt:7:1: the rows of GPU6, GPU7 are missing"):
        topology.parse(sample(SWITCH).split("GPU6\tNV12")[0], "cut.txt")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU1\tNV12", "GPU1\tNV4", "GPU0 to GPU1 is NV12, but the row of GPU1 says NV4"),
        ("GPU1\tNV12", "GPU1\tfast", r"f:3:6: GPU1 to GPU0: expected X, NV<number>.*got 'fast'"),
        ("GPU1\tNV12", "GPU1\tX", "X is only for a device and itself"),
        ("GPU1\tNV12", "GPU1\tNV0", "no link"),
        ("\tGPU0\tGPU1\t", "\tGPU0\tGPU0\t", "GPU0 occurs twice"),
        ("\tGPU0\tGPU1\tGPU2", "\tGPU0\tGPU2", "not consecutive"),
        ("\tNIC0\tNIC1", "\tNIC1", "more link cells"),
        ("GPU2\tNV12", "GPU1\tNV12", "occurs twice"),
    ],
)
def test_damage_is_named(old: str, new: str, message: str) -> None:
    text = sample(SWITCH)
    assert old in text
    with pytest.raises(InputError, match=message):
        topology.parse(text.replace(old, new, 1), "f")


def test_two_nodes_in_one_file_are_refused() -> None:
    with pytest.raises(InputError, match="one file per node"):
        topology.parse(sample(SWITCH) * 2, "f")


def test_a_node_of_one_gpu() -> None:
    node = topology.parse("\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nNIC0\tPHB\t X \t\n", "f")
    assert node.gpus == (0,)
    assert node.nearest_nics(0) == (0,)
    assert node.cliques() == ()


def test_affinity_columns_in_another_order_are_left_out() -> None:
    text = "\tGPU0\tNUMA Affinity\tCPU Affinity\nGPU0\t X \t0\t0-7\n"
    node = topology.parse(text, "f")
    assert node.cpu_affinity == (None,)
    assert "another order" in node.warnings[0].message


@pytest.mark.parametrize("cells", ["0\t0-63", "N/A\t0-63"])
def test_affinities_that_changed_places_are_left_out(cells: str) -> None:
    node = topology.parse(f"\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t{cells}\n", "f")
    assert node.numa_affinity == (None,)
    assert "more NUMA nodes than CPUs" in node.warnings[0].message
