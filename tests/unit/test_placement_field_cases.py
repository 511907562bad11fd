"""Public reports in which the placement decides: what a correct tool answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.gpu_level import wirings_of
from pipette_milp.cost.wiring import Wiring
from pipette_milp.importers import registry
from pipette_milp.importers.merge import merge_cluster
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.plans import cells_of_plan, node_crossings
from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.solvers import solve
from tests.conftest import shared_data
from tests.instance_cases import instance, instance_data


def imported(name: str, gpu_type: str, **sections: dict[str, Any]) -> Instance:
    """One node of a topology file with the small model."""
    path = Path(shared_data(f"data/field_cases/{name}.topo.txt"))
    fact = registry.parse(path.read_bytes().decode(), path.name)
    found = merge_cluster([fact], ClusterOptions(gpu_type=gpu_type, hosts=("n0",)))
    assert found.missing == (), found.missing
    data = instance_data(**sections)
    data["cluster"] = {**found.section}
    return load_instance(data)


def wiring(found: Instance, tensor: int) -> Wiring:
    (only,) = wirings_of(CostModel.of(found).cluster, tensor, 1)[1]
    return only


FP16 = {"precision": "fp16"}


@pytest.mark.parametrize("name", ["t01_8xV100_1nic", "t03_8xV100_cloud_vm"])
def test_t01_t03_the_cube_mesh_is_read_link_by_link(name: str) -> None:
    """The two quads are the only groups of four with rings over NVLink alone at full speed; through all eight
    there are rings too, although not every pair has a link."""
    found = imported(name, "v100-32gb", training=FP16)
    assert wiring(found, 8).collective_bytes_per_s(range(8)) == 120e9
    quads = wiring(found, 4)
    assert quads.collective_bytes_per_s((0, 1, 2, 3)) == quads.collective_bytes_per_s((4, 5, 6, 7)) == 80e9
    assert quads.collective_bytes_per_s((0, 1, 2, 4)) < 80e9
    cross = (0, 6) if name.startswith("t03") else (0, 4)
    assert quads.flow_bytes_per_s(*cross) == 40e9
    other = (0, 4) if name.startswith("t03") else (0, 6)
    assert quads.flow_bytes_per_s(*other) == 12e9


@pytest.mark.parametrize("name", ["t01_8xV100_1nic", "t03_8xV100_cloud_vm"])
def test_t01_t03_groups_of_four_are_the_quads(name: str) -> None:
    found = imported(name, "v100-32gb", training=FP16, search={"fix": {"tensor": 4, "pipeline": 2}})
    result = solve(found, threads=1, gap=0.001)
    assert result.plan is not None
    groups = np.array(result.plan.placement.gpu_of_rank).reshape(-1, 4)
    assert sorted(sorted(group) for group in groups.tolist()) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_t11_pairs_hold_tensor_groups() -> None:
    found = imported("t11_4xA100_nvlink_pairs", "a100-80gb", search={"fix": {"tensor": 2, "pipeline": 2}})
    result = solve(found, threads=1, gap=0.0)
    assert result.plan is not None
    assert result.gap == pytest.approx(0.0, abs=1e-9)
    groups = np.array(result.plan.placement.gpu_of_rank).reshape(-1, 2)
    assert sorted(sorted(group) for group in groups.tolist()) == [[0, 1], [2, 3]]


def test_p20_crossings_are_counted_and_avoided() -> None:
    case = json.loads(Path(shared_data("data/field_cases/p20_alpa_placement.json")).read_text("utf-8"))
    stages, gpus = case["pp"], case["gpus_per_node"]
    given = np.zeros((stages, 1), dtype=np.int64)
    for node, hosted in case["stages_on_node"].items():
        given[hosted, 0] = int(node)
    assert node_crossings(given) == 5
    assert node_crossings(np.arange(stages)[:, None] // gpus) == 3
    found = instance(
        {
            "model/layers": stages,
            "model/tied_embeddings": False,  # tied ones make the first and the last stage neighbours too
            "cluster/nodes/0/count": case["nodes"],
            "cluster/nodes/0/gpus": gpus,
        },
        search={"fix": {"pipeline": stages, "tensor": 1, "micro_batch": 1}},
    )
    result = solve(found, solver="local-search", iteration_limit=40, threads=1)
    assert result.plan is not None
    assert node_crossings(cells_of_plan(CostModel.of(found).cluster, result.plan)) == 3
