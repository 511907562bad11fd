"""Build a few constraint families on one back end, fix variables, minimise one: the same calls for both."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pipette_milp.formulations import cpsat, milp
from pipette_milp.formulations.problem import JointProblem, ModelPlan

BACKENDS = ("milp", "cpsat")
TOLERANCE_S = 1e-6
"""Of durations around 0.1 s: ticks and feasibility tolerances are far below."""


class MilpHarness:
    """Variables by the names of the Pyomo block."""

    def __init__(self, problem: JointProblem, only: Collection[str]) -> None:
        self.built = milp.build(problem, only)

    def variable(self, name: str, key: Any = None, family: int = 0) -> Any:
        component = getattr(self.built.parts[family].block, name)
        return component if key is None else component[key]

    def fix(self, name: str, key: Any, value: int, family: int = 0) -> None:
        self.variable(name, key, family).fix(value)

    def minimise(self, name: str | None = None, key: Any = None, family: int = 0) -> float | None:
        """Least value of a variable in seconds (of the objective without a name); None if infeasible."""
        import pyomo.environ as pyo
        from pyomo.contrib.appsi.solvers.highs import Highs

        model = self.built.model
        if name is not None:
            model.objective.set_value(self.variable(name, key, family))
        solver = Highs()
        solver.config.load_solution = False
        result = solver.solve(model)
        if result.best_feasible_objective is None:
            return None
        assert pyo.value(result.best_feasible_objective) is not None
        return float(result.best_feasible_objective) * self.built.unit_s


class CpSatHarness:
    """The same with the attributes of the CP-SAT family."""

    def __init__(self, problem: JointProblem, only: Collection[str]) -> None:
        self.built = cpsat.build(problem, only)

    def variable(self, name: str, key: Any = None, family: int = 0) -> Any:
        component = getattr(self.built.parts[family], "time" if name == "time_s" else name)
        return component if key is None else component[key]

    def fix(self, name: str, key: Any, value: int, family: int = 0) -> None:
        self.built.model.add(self.variable(name, key, family) == value)

    def minimise(self, name: str | None = None, key: Any = None, family: int = 0) -> float | None:
        from ortools.sat.python import cp_model

        if name is not None:
            self.built.model.minimize(self.variable(name, key, family))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.catch_sigint_signal = False
        if solver.solve(self.built.model) == cp_model.INFEASIBLE:
            return None
        return solver.objective_value * self.built.tick_s


Harness = MilpHarness | CpSatHarness


def harness(backend: str, problem: JointProblem, only: Collection[str]) -> Harness:
    return MilpHarness(problem, only) if backend == "milp" else CpSatHarness(problem, only)


def fix_plan(model: Harness, plan: ModelPlan) -> None:
    """Use, layers and placement of a plan, in whatever rows the model has."""
    part = model.built.parts[plan.family]
    model.fix("use", None, 1, plan.family)
    for j, count in enumerate(plan.layers):
        model.fix("layers", j, count, plan.family)
    for s, z in part.cells:
        for n in part.family.hosts:
            model.fix("on", (s, z, n), int(plan.node_of_cell[s][z] == n), plan.family)
