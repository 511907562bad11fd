"""Solve the Pyomo model: HiGHS with progress, or any other MILP solver that Pyomo finds.

HiGHS is loaded through Pyomo's appsi interface and then run through its own handle, because only that
gives callbacks: improving plans and bounds while it works.

A start of which only the plan's variables are known is completed by HiGHS in a model with those fixed, and
the callbacks report that model's dual bound as if it were ours (HiGHS 1.16: bounds above the optimum in the
first event). With a start, bounds are therefore taken from the end of the run only.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import Any

from pipette_milp.errors import SolverError
from pipette_milp.formulations import milp
from pipette_milp.formulations.problem import JointProblem
from pipette_milp.solvers.solver_call import Listener, Progress, SolveOptions, SolveReport, SolveStatus

HIGHS_NAMES = (None, "appsi_highs")
FEASIBILITY_TOLERANCE = 1e-9
"""Of rows and of whole numbers, absolute, in model units (the objective is about 1000)."""


def solve_milp(problem: JointProblem, options: SolveOptions, listener: Listener) -> SolveReport:
    """Solve with the named solver.

    Raises
    ------
    SolverError
        No such solver here, or an answer that is no plan.
    """
    began = time.monotonic()
    built = milp.build(problem)
    options = replace(options, time_limit_s=max(0.0, options.time_limit_s - (time.monotonic() - began)))
    if options.solver_name in HIGHS_NAMES:
        return _highs(built, options, listener)
    return _pyomo(built, str(options.solver_name), options)


def _highs(built: milp.MilpModel, options: SolveOptions, listener: Listener) -> SolveReport:
    import highspy
    from pyomo.contrib.appsi.solvers.highs import Highs

    interface = Highs()
    interface.set_instance(built.model)
    highspy.Highs.resetGlobalScheduler(True)  # another interface may have started it with other threads
    highs = interface._solver_model
    columns: dict[int, int] = interface._pyomo_var_to_solver_var_map
    settings = {
        "output_flag": True,  # the logging callback needs it
        "log_to_console": False,
        "time_limit": float(options.time_limit_s),
        "mip_rel_gap": float(options.gap),
        "mip_abs_gap": 0.0 if options.gap == 0 else 1e-6,
        "threads": options.threads,
        "random_seed": options.seed,
        "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
        "mip_feasibility_tolerance": FEASIBILITY_TOLERANCE,
    }
    for name, value in settings.items():
        if highs.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise SolverError(f"HiGHS refuses option {name} = {value}")
    started = [variable for variable in built.plan_variables() if variable.value is not None]
    if started:
        highs.setSolution(len(started), [columns[id(v)] for v in started], [v.value for v in started])

    variables = built.plan_variables()

    def values_of(solution: Any) -> dict[int, float]:
        return {id(variable): float(solution[columns[id(variable)]]) for variable in variables}

    def bound_of(event: Any) -> float | None:
        return None if started else _bound(event.data_out.mip_dual_bound, built)

    def on_solution(event: Any) -> None:
        with contextlib.suppress(SolverError):  # judged when it is the final answer
            plan = built.plan(values_of(event.data_out.mip_solution))
            listener(Progress(plan, bound_of(event)))

    def on_log(event: Any) -> None:
        bound = bound_of(event)
        if bound is not None:
            listener(Progress(bound_s=bound))

    highs.cbMipImprovingSolution += on_solution
    highs.cbMipLogging += on_log
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return SolveReport("infeasible")
    bound = _bound(info.mip_dual_bound, built)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        known = status in (highspy.HighsModelStatus.kTimeLimit, highspy.HighsModelStatus.kInterrupt)
        message = "" if known else f"HiGHS ended with status {highs.modelStatusToString(status)}"
        return SolveReport("unknown" if known else "error", bound_s=bound, message=message)
    values = values_of(highs.getSolution().col_value)
    optimal = status == highspy.HighsModelStatus.kOptimal
    claimed_s = float(info.objective_function_value) * built.unit_s
    return _report(built, values, claimed_s, bound, optimal=optimal)


def _pyomo(built: milp.MilpModel, name: str, options: SolveOptions) -> SolveReport:
    """A solver without progress; what it cannot be told (threads, seed) is left at its defaults."""
    import pyomo.environ as pyo
    from pyomo.opt import TerminationCondition as Condition

    solver = pyo.SolverFactory(name)
    if not solver.available(exception_flag=False):
        raise SolverError(f"Pyomo finds no solver {name!r} on this machine")
    results = solver.solve(built.model, load_solutions=False, timelimit=options.time_limit_s)
    condition = results.solver.termination_condition
    if condition in (Condition.infeasible, Condition.infeasibleOrUnbounded):
        return SolveReport("infeasible")
    bound = _bound(results.problem.lower_bound, built)
    if not _has_solution(results):
        return SolveReport("unknown", bound_s=bound, message=f"{name} ended with {condition}")
    built.model.solutions.load_from(results) if len(results.solution) else solver.load_vars()
    values = {
        id(variable): float(variable.value or 0.0) for variable in built.model.component_data_objects(pyo.Var)
    }
    claimed_s = float(pyo.value(built.model.objective)) * built.unit_s
    return _report(built, values, claimed_s, bound, optimal=condition == Condition.optimal)


def _has_solution(results: Any) -> bool:
    upper = results.problem.upper_bound
    return len(results.solution) > 0 or (upper is not None and math.isfinite(float(upper)))


def _bound(value: Any, built: milp.MilpModel) -> float | None:
    if value is None or not math.isfinite(float(value)):
        return None
    return float(value) * built.unit_s


def _report(
    built: milp.MilpModel, values: dict[int, float], claimed_s: float, bound: float | None, *, optimal: bool
) -> SolveReport:
    status: SolveStatus = "optimal" if optimal else "feasible"
    return SolveReport(status, built.plan(values), claimed_s, bound)
