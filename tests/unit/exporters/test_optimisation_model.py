from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipette_milp.errors import PlanError
from pipette_milp.exporters.registry import export
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from tests.launch_cases import instance, plan

RELATIVE = 1e-6


def case() -> tuple[Instance, Plan]:
    """Two stages on two nodes, the split not the best one."""
    problem = instance(nodes=2, gpus=2, layers=6)
    return problem, plan([0, 1, 2, 3], (4, 2), tensor=2, data=1, num_micro_batches=4)


def written(target: str, folder: Path) -> tuple[Path, dict[str, float]]:
    exported = export(target, *case())
    for name, text in exported.files.items():
        (folder / name).write_text(text)
    about = json.loads(exported.files["model.json"])
    return folder / about["model"], about


def solved(path: Path) -> float:
    """Optimum of a file by HiGHS."""
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("threads", 1)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


def test_lp_and_mps_have_the_same_optimum_which_bounds_the_plan(tmp_path: Path) -> None:
    path, about = written("lp", tmp_path)
    optimum = solved(path)
    assert solved(written("mps", tmp_path)[0]) == pytest.approx(optimum, rel=RELATIVE)
    # 3 + 3 layers beat 4 + 2, so the model has something to gain
    assert optimum < about["plan_objective"] * (1 - 1e-3)


def test_cp_sat_reads_its_file_and_agrees(tmp_path: Path) -> None:
    from ortools.sat.python import cp_model

    path, about = written("cpsat", tmp_path)
    model = cp_model.CpModel()
    assert model.proto.parse_text_format(path.read_text())
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False
    assert solver.solve(model) == cp_model.OPTIMAL
    lp_path, lp_about = written("lp", tmp_path)
    seconds = solver.objective_value * about["seconds_per_unit_of_objective"]
    assert seconds == pytest.approx(solved(lp_path) * lp_about["seconds_per_unit_of_objective"], rel=1e-4)


def test_a_plan_that_does_not_fit_is_refused() -> None:
    problem, wanted = case()
    broken = wanted.model_copy(update={"configuration": wanted.configuration.with_layers((5, 2))})
    with pytest.raises(PlanError, match="breaks its sum"):
        export("lp", problem, broken)
