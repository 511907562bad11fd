"""Plans that leave GPUs or nodes out, and what is said where a count cannot be used whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_milp.cli import main
from pipette_milp.cost.build import CostModel
from pipette_milp.plans import cells_of_plan
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.search_space import (
    SearchSpace,
    blocking_reason,
    enumerate_space,
    legal_configurations,
    memory_refusal,
)
from pipette_milp.solvers import solve
from pipette_milp.verify import verify
from tests.conftest import shared_data
from tests.instance_cases import instance, instance_data
from tests.mesh_cases import BRIDGES, mesh_instance

ALLOW = "search.use_all_gpus = false"


def space_of(found: Instance) -> SearchSpace:
    return enumerate_space(CostModel.of(found))


def reasons(found: Instance) -> list[str]:
    return [refusal.reason for refusal in space_of(found).refusals]


def degrees(found: Instance) -> set[tuple[int, int, int]]:
    configurations = (tables.configuration for tables in space_of(found).families)
    return {(c.pipeline, c.tensor, c.data) for c in configurations}


# ------------------------------------------------------------------ P22: seven nodes
def seven_nodes(**search: Any) -> Instance:
    """One node of eight is lost; 80 layers, 64 heads, 512 sequences."""
    case = json.loads(Path(shared_data("data/field_cases/p22_seven_nodes.json")).read_text("utf-8"))
    return instance(
        {"cluster/nodes/0/count": case["nodes_ok"], "cluster/nodes/0/gpus": case["gpus_per_node"]},
        model={"layers": case["num_layers"], "attention_heads": case["num_attention_heads"], "head_dim": 16},
        training={"global_batch_size": case["global_batch"]},
        search={"tensor": 8, **search},
    )


def test_p22_seven_nodes_used_whole() -> None:
    """Only seven stages go: seven replicas would need another batch, and the message names the nearest."""
    found = seven_nodes(micro_batch=8)
    assert degrees(found) == {(7, 8, 1)}
    said = " / ".join(reasons(found))
    assert "no multiple of the data degree 7; 504 or 560 would be (with micro-batch 8)" in said
    assert "7 tensor groups are no multiple of pipeline degree 2, 3, 4, 5, 6; " + ALLOW in said
    (tables,) = space_of(found).families
    assert sorted(tables.configuration.layers_per_stage) == [11] * 4 + [12] * 3


def test_p22_fewer_nodes() -> None:
    found = seven_nodes(micro_batch=8, use_all_gpus=False)
    wanted = {(7, 8, 1), (3, 8, 2), (6, 8, 1), (1, 8, 4), (2, 8, 2)}
    assert wanted <= degrees(found)
    assert not any(data in (3, 5, 6, 7) for _, _, data in degrees(found))
    assert len(reasons(found)) < 20


def test_a_pipeline_that_leaves_nodes_idle_says_how_to_allow_it() -> None:
    found = seven_nodes(pipeline=4)
    assert not space_of(found).families
    message = blocking_reason(space_of(found))
    assert "7 tensor groups are no multiple of pipeline degree 4" in message
    assert ALLOW in message
    assert degrees(seven_nodes(pipeline=4, micro_batch=8, use_all_gpus=False)) == {(4, 8, 1)}


def test_a_fixed_data_degree_that_leaves_nodes_idle() -> None:
    listed = seven_nodes(data=[2], pipeline=1)
    assert "all 7 tensor groups need data degree 7, which search.data leaves out; " + ALLOW in " ".join(
        reasons(listed)
    )
    fixed = seven_nodes(fix={"data": 2}, pipeline=1)
    said = " / ".join(reasons(fixed))
    assert "1 x 8 x 2 does not use the 56 GPUs there are; " + ALLOW in said


def test_listed_data_degrees_are_refused_one_by_one() -> None:
    said = reasons(seven_nodes(data=[3, 4], pipeline=1, use_all_gpus=False, micro_batch=8))
    assert (
        "global batch 512 is no multiple of the data degree 3; 504 or 528 would be (with micro-batch 8)"
        in said
    )


@pytest.mark.parametrize("memory", ["2.2 GiB", "2.6 GiB", "3.5 GiB"])
def test_memory_is_asked_again_only_where_fewer_replicas_could_fit(memory: str) -> None:
    """What is refused because more replicas do not fit would be refused by its own figures."""
    found = instance(
        {
            "cluster/gpu_types/gpu/memory": memory,
            "cluster/nodes/0/count": 3,
            "training/data_sharding": ["none", "optimizer"],
            "training/recompute": ["none", "full"],
            "training/sequence_parallel": [False, True],
        },
        search={"use_all_gpus": False, "schedules": ["1f1b", "gpipe"]},
    )
    costs = CostModel.of(found)
    every = list(legal_configurations(costs))
    fitting = [c for c in every if memory_refusal(costs, costs.tables(c)) is None]
    space = enumerate_space(costs)
    assert [tables.configuration for tables in space.families] == fitting
    derived = sum("needs no more of it" in refusal.reason for refusal in space.refusals)
    assert 0 < derived < len(every) - len(fitting)


def test_a_smaller_batch_keeps_fewer_micro_batches_and_is_asked_for_itself() -> None:
    """What does not fit with many micro-batches in flight may fit with few, whatever the data degree."""
    skipped = 0
    for tenths in range(10, 45):
        found = instance(
            {
                "cluster/gpu_types/gpu/memory": f"{tenths / 10} GiB",
                "cluster/nodes/0/count": 3,
                "training/global_batch_size": [48, 2],
            },
            search={"use_all_gpus": False, "schedules": ["1f1b", "gpipe"], "micro_batch": [1]},
        )
        costs = CostModel.of(found)
        every = list(legal_configurations(costs))
        fitting = [c for c in every if memory_refusal(costs, costs.tables(c)) is None]
        space = enumerate_space(costs)
        assert [tables.configuration for tables in space.families] == fitting
        skipped += sum("needs no more of it" in refusal.reason for refusal in space.refusals)
    assert skipped > 0


# ------------------------------------------------------------------ leaving out what is slow
def three_nodes(slow_gb_per_s: float, **search: Any) -> Instance:
    """Node 2 is behind slow links; two stages or replicas do without it."""
    rates = [[None, 20.0, slow_gb_per_s], [20.0, None, slow_gb_per_s], [slow_gb_per_s, slow_gb_per_s, None]]
    network = {
        "intra_node": {"bandwidth": "200 GB/s", "latency": "4 us"},
        "inter_node": {
            "bandwidth": {"unit": "GB/s", "values": rates},
            "measures": "node_pair",
            "latency": "10 us",
        },
    }
    return instance(
        {"cluster/network": network, "cluster/nodes/0/count": 3, "cluster/nodes/0/gpus": 1},
        model={"layers": 4},
        training={"global_batch_size": 24},
        search={"micro_batch": 1, "use_all_gpus": False, **search},
    )


def nodes_used(found: Instance, result: SolveResult) -> set[int]:
    assert result.plan is not None
    cells = cells_of_plan(CostModel.of(found).cluster, result.plan)
    return {int(node) for node in np.unique(cells)}


@pytest.mark.parametrize("solver", ["auto", "branch-and-bound", "joint-cpsat", "local-search"])
def test_a_slow_node_is_left_out(solver: str) -> None:
    found = three_nodes(0.05)
    limit = 20 if solver == "local-search" else None
    result = solve(found, solver=solver, gap=0.0, threads=1, iteration_limit=limit)
    assert 2 not in nodes_used(found, result)
    assert verify(found, result).failed == ()
    best = solve(found, solver="exhaustive", gap=0.0, threads=1)
    assert result.simulated_s == pytest.approx(best.simulated_s, rel=1e-6)


def test_an_equal_node_is_used() -> None:
    found = three_nodes(20.0)
    result = solve(found, gap=0.0, threads=1)
    assert len(nodes_used(found, result)) == 3


def test_all_gpus_are_used_unless_said() -> None:
    found = three_nodes(0.05, use_all_gpus=True)
    result = solve(found, gap=0.0, threads=1)
    assert nodes_used(found, result) == {0, 1, 2}


def test_subset_plans_are_never_slower() -> None:
    """The space without idle GPUs is part of the space with them."""
    for slow in (0.05, 0.5, 5.0):
        every, some = (
            solve(three_nodes(slow, use_all_gpus=use), solver="exhaustive", gap=0.0) for use in (True, False)
        )
        assert some.termination == Termination.OPTIMAL
        assert some.simulated_s is not None
        assert every.simulated_s is not None
        assert some.simulated_s <= every.simulated_s


# ------------------------------------------------------------------ GPUs of a mesh
def test_the_spare_gpu_is_the_one_without_a_bridge() -> None:
    changes = {"cluster/exclude": {"gpus": ["node-000:1"]}}
    found = mesh_instance(BRIDGES, 4, 1, changes, search={"use_all_gpus": False, "tensor": 2})
    result = solve(found, gap=0.0, threads=1)
    assert result.plan is not None
    assert set(result.plan.placement.gpu_of_rank) == {2, 3}
    assert verify(found, result).failed == ()


def test_the_summary_names_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = instance_data()
    data["cluster"] = mesh_instance(BRIDGES, 4).model_dump(mode="json")["cluster"]
    data["search"] = {"fix": {"tensor": 2, "pipeline": 2}}
    path = tmp_path / "mesh.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["solve", str(path)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "GPUs of each tensor group" in shown
    assert "0,1" in shown
    assert "2,3" in shown
