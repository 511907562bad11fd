"""Random small instances whose nodes are wired as meshes, with subsets and excluded GPUs among them, and an
evaluation of plans written from the rules, GPU by GPU.

The evaluation knows nothing of classes, arrangements or best cases: it looks up every pair of ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.exhaustive import candidate_count
from tests.oracle.random_instances import instance_data

MOST_PLANS = 20_000
"""Upper limit of a small instance's plans, by `candidate_count`."""
SHAPES = (
    # GPUs of each node
    (2,),
    (3,),
    (4,),
    (4,),
    (2, 2),
    (3, 2),
    (4, 2),
    (4, 4),
    (2, 2, 2),
)


def mesh_instance(seed: int) -> Instance:
    """The first of a seed's instances that enumeration is quick for; it may have no legal plan."""
    rng = np.random.default_rng(seed)
    while True:
        instance = load_instance(mesh_data(rng))
        families = enumerate_space(CostModel.of(instance)).families
        if sum(candidate_count(tables) for tables in families) <= MOST_PLANS:
            return instance


def mesh_data(rng: np.random.Generator) -> dict[str, Any]:
    """One instance as a file holds it; sometimes one of its nodes has a switch."""
    data = instance_data(rng)
    gpus = SHAPES[int(rng.integers(len(SHAPES)))]
    cluster = data["cluster"]
    network = cluster["network"]
    network.pop("intra_node")
    size = len(gpus)
    rates = rng.uniform(0.3, 8.0, (size, size))
    network.pop("inter_node", None)
    if size > 1:
        network["inter_node"] = {
            "bandwidth": {
                "unit": "GB/s",
                "values": [
                    [None if a == b else float(rates[a, b]) for b in range(size)] for a in range(size)
                ],
            },
            "measures": "node_pair",
            "latency": "20 us",
        }
    kinds = {}
    for count in sorted(set(gpus)):
        switch = rng.random() < 0.15
        scale_up = (
            {
                "kind": "switch",
                "per_gpu_bandwidth": f"{float(rng.choice([2.0, 20.0]))} GB/s",
                "latency": "4 us",
            }
            if switch
            else _mesh(rng, count)
        )
        kinds[f"box{count}"] = {"gpus": ["gpu", count], "scale_up": scale_up}
    cluster["node_types"] = kinds
    cluster["nodes"] = [{"name": f"n{i}", "type": f"box{count}"} for i, count in enumerate(gpus)]
    cluster.pop("exclude", None)
    if sum(gpus) > 3 and rng.random() < 0.3:
        node = int(rng.integers(size))
        cluster["exclude"] = {"gpus": [f"n{node}:{int(rng.integers(gpus[node]))}"]}
    data["search"]["use_all_gpus"] = bool(rng.random() < 0.5)
    return data


def _mesh(rng: np.random.Generator, gpus: int) -> dict[str, Any]:
    """Links of one or two speeds, or of any; some pairs have none and share a bus."""
    values: list[list[float | None]] = [[None] * gpus for _ in range(gpus)]
    wild = rng.random() < 0.3
    missing = float(rng.choice([0.0, 0.3, 0.6]))
    bus = False
    for a, b in itertools.combinations(range(gpus), 2):
        if rng.random() < missing:
            bus = True
            continue
        there = float(rng.uniform(0.5, 40.0)) if wild else float(rng.choice([5.0, 20.0, 40.0]))
        back = float(rng.uniform(0.5, 40.0)) if wild else there
        values[a][b], values[b][a] = there, back
    mesh: dict[str, Any] = {
        "kind": "mesh",
        "pairs": {"unit": "GB/s", "values": values},
        "latency": f"{float(rng.uniform(2, 50))} us",
    }
    if bus:
        mesh["per_gpu_bandwidth"] = f"{float(rng.choice([1.0, 12.0]))} GB/s"
    return mesh


# every plan, rank by rank


def all_rank_orders(tables: CostTables) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """node_of_cell [p, d] and gpus_of_cell [p, d, t] of every assignment of GPUs to ranks whose tensor groups
    stay inside a node; tensor ranks are renamed only as a whole."""
    assert tables.gpu_level is not None
    places = [
        (node, gpu) for node in range(tables.num_nodes) for gpu in range(tables.gpu_level.wiring(node).gpus)
    ]
    p, d, t = tables.pipeline, tables.data, tables.tensor
    for chosen in itertools.permutations(places, p * d * t):
        nodes = np.array([node for node, _ in chosen]).reshape(p, d, t)
        if np.all(nodes == nodes[:, :, :1]):
            yield nodes[:, :, 0], np.array([gpu for _, gpu in chosen]).reshape(p, d, t)
