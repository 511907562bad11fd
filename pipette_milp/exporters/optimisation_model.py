"""Targets ``lp``, ``mps`` and ``cpsat``: the optimisation model of a plan's configuration, for other solvers.

The model decides layer split and placement with the degrees of the plan. It holds the path cuts of the
plan's own longest paths, so it claims exactly the simulated time for the plan and at most that for every
better one: its optimum is a lower bound of the configuration. More cuts are what the cut loop of `solve`
adds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pipette_milp.cluster import Cluster
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import PlanError, Problem, SolverError
from pipette_milp.exporters.launch import Export, LaunchOptions
from pipette_milp.formulations.problem import JointProblem, ModelPlan, refuse_detail
from pipette_milp.plans import cells_of_plan
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.output import dump_json
from pipette_milp.schema.plan import Plan
from pipette_milp.solvers.cut_loop import Judged, judge, separate

ABOUT = "model.json"


def problem_of(instance: Instance, plan: Plan) -> tuple[JointProblem, Judged]:
    """The joint model of one configuration, and its plan simulated.

    Raises:
        InputError: the model cannot express the configuration.
        PlanError: the placement does not fit the cluster, or the split does not fit the memory.
    """
    tables = CostModel.of(instance).tables(plan.configuration)
    refuse_detail([tables], "the optimisation model")
    nodes = cells_of_plan(Cluster.of(instance), plan)
    start = ModelPlan(
        family=0,
        layers=plan.configuration.layers_per_stage,
        node_of_cell=tuple(tuple(int(node) for node in row) for row in nodes),
    )
    try:
        judged = judge(tables, start)
    except SolverError as error:
        raise PlanError(Problem("plan", str(error))) from None
    problem = JointProblem(
        tables=(tables,),
        scales=(1.0,),
        reference_s=judged.simulated_s,
        cuts=tuple(separate(tables, judged, 0, 0.0)),
        start=start,
    )
    return problem, judged


def export_lp(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """The mixed-integer model in LP format, with readable names."""
    return _milp(instance, plan, "lp")


def export_mps(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """The mixed-integer model in free MPS format, with readable names."""
    return _milp(instance, plan, "mps")


def export_cpsat(instance: Instance, plan: Plan, options: LaunchOptions) -> Export:
    """The CP-SAT model as a text protocol buffer."""
    from pipette_milp.formulations import cpsat

    problem, judged = problem_of(instance, plan)
    built = cpsat.build(problem)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.txt"
        if not built.model.export_to_file(str(path)):
            raise SolverError("OR-Tools could not write the model")
        text = path.read_text()
    return _export("model.txt", text, built.tick_s, problem, judged)


def _milp(instance: Instance, plan: Plan, ending: str) -> Export:
    from pipette_milp.formulations import milp

    problem, judged = problem_of(instance, plan)
    built = milp.build(problem)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model.{ending}"
        built.model.write(str(path), io_options={"symbolic_solver_labels": True})
        text = path.read_text()
    return _export(path.name, text, built.unit_s, problem, judged)


def _export(name: str, text: str, unit_s: float, problem: JointProblem, judged: Judged) -> Export:
    about: dict[str, Any] = {
        "model": name,
        "seconds_per_unit_of_objective": unit_s,
        "plan_simulated_s": judged.simulated_s,
        "plan_objective": judged.simulated_s / unit_s,
        "path_cuts": len(problem.cuts),
        "meaning": "the optimum is a lower bound of the configuration, over all layer splits and placements",
    }
    notes = (
        f"one unit of the objective is {unit_s:.6g} s; the plan itself has {judged.simulated_s / unit_s:.6g}",
        f"holds the {len(problem.cuts)} path cuts of the plan: the optimum is a lower bound, not always a "
        f"plan's time",
    )
    return Export({name: text, ABOUT: dump_json(about)}, None, notes)
