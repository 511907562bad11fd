"""Ways to arrange the cells of a node on its GPUs, and plans that get their GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.exporters.optimisation_model import problem_of
from pipette_milp.schema.instance import Instance
from pipette_milp.solvers import solve
from pipette_milp.solvers.arrangements import (
    Structure,
    arrangement_count,
    arrangements,
    cells_of_nodes,
    gpu_choices,
    structure_of,
)
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.regroup import gpu_search, with_gpus
from pipette_milp.verify import verify
from tests.instance_cases import configuration, costs
from tests.mesh_cases import BRIDGES, CUBE_MESH, mesh_instance


def tables_of(found: Instance, layers: tuple[int, ...], **fields: int) -> CostTables:
    return CostModel.of(found).tables(configuration(layers, **fields))


CUBE = mesh_instance(CUBE_MESH, 8)


def test_how_the_cells_of_a_node_relate() -> None:
    tables = tables_of(CUBE, (2, 2, 2), data=2, num_micro_batches=8)
    cells = cells_of_nodes(np.array([[0, 0], [0, 1], [0, 0]]), 2)
    assert cells[0] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    assert structure_of(tables, cells[0]) == Structure(
        cells=5, hops=((0, 2), (2, 3)), exchanges=((0, 3), (1, 4)), rings=((0, 1), (3, 4))
    )
    assert structure_of(tables, cells[1]) == Structure(1, (), (), ())


def test_a_dominating_arrangement_stands_alone() -> None:
    """A chain of eight GPUs has a path over double links from end to end."""
    tables = tables_of(CUBE, (1, 1, 1, 1, 1, 1), tensor=1)
    chain = Structure(8, tuple((i, i + 1) for i in range(7)), (), ())
    found = arrangements(tables, 0, chain)
    assert len(found.gpus) == 1
    assert np.all(found.hop_bytes_per_s == 40e9)


def test_fast_groups_and_fast_hops_compete() -> None:
    """Two quads: each inside a clique and a slower hop, or across and a faster one."""
    tables = tables_of(CUBE, (3, 3), tensor=4)
    found = arrangements(tables, 0, Structure(2, ((0, 1),), (), ()))
    assert [sorted(group.tolist()) for group in found.gpus[0]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found.classes[0].tolist() == [0, 0]
    assert found.hop_bytes_per_s[0].tolist() == [[20e9], [20e9]]
    assert all(np.any(classes > 0) for classes in found.classes[1:])
    assert all(np.all(hops > 20e9) for hops in found.hop_bytes_per_s[1:])


def test_every_arrangement_uses_a_gpu_once() -> None:
    tables = tables_of(CUBE, (3, 3), tensor=2, data=1)
    found = arrangements(tables, 0, Structure(3, ((0, 1),), (), ((1, 2),)))
    assert found.gpus.shape[1:] == (3, 2)
    for gpus in found.gpus.reshape(len(found.gpus), -1):
        assert len(set(gpus.tolist())) == 6


def test_how_many_there_are_at_most() -> None:
    assert arrangement_count(tables_of(CUBE, (3, 3), tensor=2)) == 8 * 7 * 6 * 5 / 2
    two = mesh_instance(BRIDGES, 4, nodes=2)
    assert arrangement_count(tables_of(two, (3, 3), tensor=2)) == 12**2
    assert arrangement_count(costs().tables(configuration((3, 3)))) == 1.0


def test_choices_of_all_nodes() -> None:
    tables = tables_of(mesh_instance(BRIDGES, 4, nodes=2), (3, 3), tensor=2)
    own_node = list(gpu_choices(tables, np.array([[0], [1]])))
    assert len(own_node) == 1  # a bridged pair on each
    assert all(set(group) in ({0, 1}, {2, 3}) for group in own_node[0].reshape(2, 2).tolist())


def test_switches_need_no_arranging() -> None:
    tables = costs().tables(configuration((3, 3)))
    with pytest.raises(ValueError, match="joined alike"):
        arrangements(tables, 0, Structure(1, (), (), ()))


@pytest.mark.parametrize(
    ("tensor", "layers", "nodes"),
    [
        (1, (2, 1, 1, 2), [[0], [0], [1], [1]]),
        (1, (2, 1, 1, 2), [[0], [1], [0], [0]]),
        (1, (3, 3), [[0, 0], [0, 1]]),
        (2, (2, 2, 2), [[0], [0], [1]]),
        (2, (3, 3), [[0], [1]]),
    ],
)
def test_gpus_of_a_plan_are_as_good_as_any(
    tensor: int, layers: tuple[int, ...], nodes: list[list[int]]
) -> None:
    """Node 1 has lost a GPU, so one of its three has no bridge."""
    found = mesh_instance(BRIDGES, 4, nodes=2, changes={"cluster/exclude": {"gpus": ["node-001:2"]}})
    data = len(nodes[0])
    tables = tables_of(found, layers, tensor=tensor, data=data, num_micro_batches=16 // data)
    evaluator = Evaluator(tables)
    start = Candidate(np.array(layers), np.array(nodes))
    choices = gpu_choices(tables, start.node_of_cell)
    every = min(evaluator.simulated_s(replace(start, gpus_of_cell=gpus)) for gpus in choices)
    value, plan = with_gpus(evaluator, start)
    assert value == pytest.approx(every, rel=1e-12)
    assert evaluator.simulated_s(plan) == value
    assert evaluator.simulated_s(start) <= value


def test_the_search_over_gpus_keeps_its_start_or_improves_it() -> None:
    tables = tables_of(
        mesh_instance(CUBE_MESH, 8, nodes=2), (2, 2, 1, 1), tensor=2, data=2, num_micro_batches=8
    )
    evaluator = Evaluator(tables)
    nodes = np.repeat([0, 1], 4).reshape(4, 2)
    ranks = np.arange(8).reshape(4, 2)
    consecutive = np.array([[ranks[(2 * s + z) % 4] for z in range(2)] for s in range(4)])
    start = Candidate(np.array([2, 2, 1, 1]), nodes, consecutive)
    before = evaluator.simulated_s(start)
    value, plan = gpu_search(evaluator, start, np.random.default_rng(0), iterations=60)
    assert value < before
    assert evaluator.simulated_s(plan) == value
    assert plan.layers.sum() == 6
    used = plan.node_of_cell[:, :, None] * 8 + plan.gpus_of_cell
    assert len(np.unique(used)) == used.size
    again = gpu_search(evaluator, start, np.random.default_rng(0), iterations=60)
    assert again[0] == value
    assert gpu_search(evaluator, plan, np.random.default_rng(1), iterations=0) == (value, plan)


@pytest.mark.parametrize("solver", ["exhaustive", "greedy", "local-search", "annealing", "branch-and-bound"])
def test_every_solver_reports_the_gpus_it_judged(solver: str) -> None:
    search = {"fix": {"tensor": 2, "pipeline": 2, "micro_batch": 2}}
    found = mesh_instance(BRIDGES, 4, search=search)
    limit = {"local-search": 3, "annealing": 3}.get(solver)
    result = solve(found, solver=solver, iteration_limit=limit, gap=0.0, threads=1)
    assert result.plan is not None
    groups = np.array(result.plan.placement.gpu_of_rank).reshape(-1, 2)
    assert {tuple(sorted(group)) for group in groups.tolist()} <= {(0, 1), (2, 3)}
    assert result.settings["placement_level"].startswith("GPUs")
    assert verify(found, result).failed == ()


@pytest.mark.parametrize("solver", ["joint-milp", "joint-cpsat"])
def test_joint_models_say_what_they_do_not_express(solver: str) -> None:
    with pytest.raises(InputError, match=r"links that differ inside a node.*use --solver auto"):
        solve(mesh_instance(BRIDGES, 4), solver=solver)


def test_there_is_no_model_to_export() -> None:
    found = mesh_instance(BRIDGES, 4)
    result = solve(found, solver="greedy")
    assert result.plan is not None
    with pytest.raises(InputError, match="not supported by the optimisation model: links that differ"):
        problem_of(found, result.plan)
