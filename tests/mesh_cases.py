"""Nodes wired as meshes: two well known ones, and small instances of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.schema.instance import Instance
from tests.instance_cases import instance

CUBE_MESH = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}
"""NVLinks of eight V100 in a hybrid cube mesh (NVIDIA DGX-1 with V100, white paper)."""
BRIDGES = {(0, 1): 12, (2, 3): 12}
"""Four A100 joined in pairs."""
LINK = 20.0
"""GB/s of one NVLink."""


def pairs(links: dict[tuple[int, int], int], gpus: int) -> list[list[float | None]]:
    """GB/s by pair as a file has it."""
    values: list[list[float | None]] = [[None] * gpus for _ in range(gpus)]
    for (a, b), number in links.items():
        values[a][b] = values[b][a] = number * LINK
    return values


def link_matrix(links: dict[tuple[int, int], int], gpus: int) -> Array:
    """bytes/s by pair, 0 where there is no link."""
    return np.array([[(value or 0.0) * 1e9 for value in row] for row in pairs(links, gpus)])


def scale_up(links: dict[tuple[int, int], int], gpus: int, bus: str | None = "12 GB/s") -> dict[str, Any]:
    """Section ``scale_up`` of a mesh."""
    mesh: dict[str, Any] = {
        "kind": "mesh",
        "pairs": {"unit": "GB/s", "values": pairs(links, gpus)},
        "latency": "4 us",
    }
    return mesh if bus is None else {**mesh, "per_gpu_bandwidth": bus}


def mesh_instance(
    links: dict[tuple[int, int], int],
    gpus: int,
    nodes: int = 1,
    changes: dict[str, Any] | None = None,
    **sections: dict[str, Any],
) -> Instance:
    """The small instance on nodes wired like this; one GPU type, FLOP/s low enough for links to matter
    little."""
    inter_node = {"inter_node": {"bandwidth": "20 GB/s", "latency": "10 us"}} if nodes > 1 else {}
    places = {
        "cluster/node_types": {"box": {"gpus": ["gpu", gpus], "scale_up": scale_up(links, gpus)}},
        "cluster/nodes": [{"name": "node-{:03d}", "count": nodes, "type": "box"}],
        "cluster/network": inter_node,
    }
    return instance({**places, **(changes or {})}, **sections)
