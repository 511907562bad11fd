"""What joins the GPUs of a node: a switch, or links between pairs."""

from __future__ import annotations

from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.schema.instance import load_instance
from tests.instance_cases import instance, instance_data
from tests.mesh_cases import BRIDGES, CUBE_MESH, LINK, mesh_instance, scale_up

TYPE = "cluster/node_types"
NODES = "cluster/nodes"
NETWORK = "cluster/network"


def with_scale_up(section: dict[str, Any], gpus: int = 4) -> dict[str, Any]:
    return {
        TYPE: {"box": {"gpus": ["gpu", gpus], "scale_up": section}},
        NODES: [{"name": "n0", "type": "box"}],
        NETWORK: {},
    }


def test_a_mesh_is_read_pair_by_pair() -> None:
    found = mesh_instance(BRIDGES, 4).cluster
    mesh = found.scale_up_of(found.nodes[0])
    assert mesh.kind == "mesh"
    assert isinstance(mesh.pairs, tuple)
    assert mesh.pairs[0][1] == 12 * LINK * 1e9
    assert mesh.pairs[0][2] is None
    assert mesh.per_gpu_bandwidth == 12e9
    assert len(mesh.unlinked_pairs()) == 8


def test_one_figure_holds_for_all_pairs() -> None:
    section = {"kind": "mesh", "pairs": "48 GB/s", "latency": "4 us"}
    found = instance(with_scale_up(section)).cluster
    assert found.scale_up_of(found.nodes[0]).pairs == 48e9


def test_what_is_written_is_read_again() -> None:
    found = mesh_instance(CUBE_MESH, 8)
    assert load_instance(found.model_dump(mode="json")).sha256() == found.sha256()


def test_a_switch_is_named_as_before() -> None:
    """The content of files without a mesh did not change, so neither did their names."""
    assert instance().model_dump(mode="json")["cluster"]["network"]["intra_node"] == {
        "bandwidth": 200e9,
        "latency": 4e-6,
    }


BAD = [
    ({"kind": "mesh", "latency": "4 us"}, "pairs", "is required with a mesh"),
    ({"kind": "switch", "latency": "4 us"}, "per_gpu_bandwidth", "is required with a switch"),
    (
        {"kind": "switch", "per_gpu_bandwidth": "1 GB/s", "pairs": "1 GB/s", "latency": "4 us"},
        "pairs",
        'say kind "mesh"|expected kind "mesh"',
    ),
    (scale_up(BRIDGES, 4, bus=None), "pairs.values[0][2]", "is null, as 8 are.*per_gpu_bandwidth"),
    (
        {"kind": "mesh", "pairs": "48 GB/s", "per_gpu_bandwidth": "12 GB/s", "latency": "4 us"},
        "per_gpu_bandwidth",
        "there is none: leave it out",
    ),
    (scale_up({(0, 1): 1}, 2, bus=None), "pairs.values", "has 2 rows, expected one per GPU of the node, 4"),
    ({"kind": "mesh", "pairs": [[1, 2], [3, 4]], "latency": "4 us"}, "pairs", "needs its unit"),
    (
        {"kind": "mesh", "pairs": {"unit": "GB/s", "values": [[None, 0]]}, "latency": 0},
        "pairs",
        "square|above 0",
    ),
    ({"kind": "ring", "per_gpu_bandwidth": "1 GB/s", "latency": "4 us"}, "kind", "switch"),
]


@pytest.mark.parametrize(("section", "place", "message"), BAD)
def test_what_cannot_be_is_refused(section: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_instance(instance_data(with_scale_up(section)))
    places = [problem.path for problem in caught.value.problems]
    assert any(f"cluster.node_types.box.scale_up.{place}" in found for found in places), places


def test_larger_meshes_are_not_supported_yet() -> None:
    section = {"kind": "mesh", "pairs": "48 GB/s", "latency": "4 us"}
    with pytest.raises(InputError, match="not supported yet: a mesh of more than 8 GPUs"):
        instance(with_scale_up(section, gpus=9))
