"""Solve the CP-SAT model, streaming plans and bounds as they come."""

from __future__ import annotations

import time

from pipette_milp.errors import SolverError
from pipette_milp.formulations import cpsat
from pipette_milp.formulations.problem import JointProblem
from pipette_milp.solvers.solver_call import Listener, Progress, SolveOptions, SolveReport

SMALL_MODEL_VARIABLES = 3000
"""Size up to which a single worker enumerates plans (no linear relaxation, branching on the plan's variables
in order), and above which it relaxes everything; several workers differ in it anyway. Tiny models close in
0.2 s, while with CP-SAT's own choice one in three hundred took over 10 s, branching on ticks. On 16 nodes, 4
stages by 4 replicas, the bound after 20 s was 4.18 s with the full relaxation, 3.92 s without."""


def solve_cpsat(problem: JointProblem, options: SolveOptions, listener: Listener) -> SolveReport:
    """Solve; a negative seed is not accepted by CP-SAT and not asked for here.

    Raises
    ------
    SolverError
        CP-SAT calls the model invalid, or its answer is no plan.
    """
    from ortools.sat.python import cp_model

    began = time.monotonic()
    built = cpsat.build(problem)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    # CP-SAT would take over SIGINT and leave the default action behind: in this process the caller answers it
    parameters.catch_sigint_signal = False
    parameters.max_time_in_seconds = max(0.0, options.time_limit_s - (time.monotonic() - began))
    parameters.num_workers = options.threads
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.gap
    parameters.absolute_gap_limit = 0.0
    if options.threads == 1:
        if len(built.model.proto.variables) > SMALL_MODEL_VARIABLES:
            parameters.linearization_level = 2
        else:
            parameters.linearization_level = 0
            parameters.search_branching = cp_model.FIXED_SEARCH

    class OnPlan(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            bound_s = self.best_objective_bound * built.tick_s
            listener(Progress(built.plan(self.value), bound_s))

    solver.best_bound_callback = lambda bound: listener(Progress(bound_s=bound * built.tick_s))
    status = solver.solve(built.model, OnPlan())
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"CP-SAT calls the model invalid: {built.model.validate()}")
    if status == cp_model.INFEASIBLE:
        return SolveReport("infeasible")
    bound_s = solver.best_objective_bound * built.tick_s
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return SolveReport("unknown", bound_s=bound_s)
    return SolveReport(
        "optimal" if status == cp_model.OPTIMAL else "feasible",
        built.plan(solver.value),
        solver.objective_value * built.tick_s,
        bound_s,
    )
