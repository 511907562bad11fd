"""Solvers ``joint-milp`` and ``joint-cpsat``: one model over all families, in the cut loop."""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipette_milp.formulations.problem import refuse_detail
from pipette_milp.solvers.evaluation import Candidate
from pipette_milp.solvers.joint import JointProgress, solve_joint
from pipette_milp.solvers.state import SearchState


def joint_milp(state: SearchState, solver_name: str | None = None) -> None:
    """Pyomo with HiGHS, or another installed Pyomo solver by name (``joint-milp:NAME``)."""
    _solve(state, "milp", solver_name)


def joint_cpsat(state: SearchState) -> None:
    """OR-Tools CP-SAT."""
    _solve(state, "cpsat", None)


def _solve(state: SearchState, backend: Literal["milp", "cpsat"], solver_name: str | None) -> None:
    if not state.families:
        return
    refuse_detail(state.families, f"joint-{backend}")
    by = "CP-SAT" if backend == "cpsat" else (solver_name or "HiGHS")

    def listen(progress: JointProgress) -> None:
        plan = progress.incumbent
        if plan is not None and progress.incumbent_s is not None:
            candidate = Candidate(np.array(plan.layers), np.array(plan.node_of_cell))
            own_s = progress.incumbent_s / float(state.scale[plan.family])
            state.offer(plan.family, own_s, candidate, state.name(plan.family))
        for family in range(len(state.families)):
            state.raise_bound(family, progress.lower_bound_s, by=by)

    outcome = solve_joint(
        state.families,
        scales=[float(value) for value in state.scale],
        backend=backend,
        solver_name=solver_name,
        bounds_s=[float(value) for value in state.lower],
        time_limit_s=max(0.0, state.time_left_s),
        gap=state.limits.gap,
        iteration_limit=state.limits.iterations,
        threads=state.limits.threads,
        seed=state.limits.seed,
        listener=listen,
    )
    state.warnings.extend(outcome.messages)
    state.failed = outcome.status == "ERROR"
    for family, bound in enumerate(outcome.family_bounds_s):
        state.raise_bound(family, bound, by=by)
    if outcome.plan is not None and outcome.simulated_s is not None:
        plan = outcome.plan
        candidate = Candidate(np.array(plan.layers), np.array(plan.node_of_cell))
        scale = float(state.scale[plan.family])
        state.offer(plan.family, outcome.simulated_s / scale, candidate)
        if outcome.claimed_s is not None and outcome.recomputed_s is not None:
            state.claimed_s, state.recomputed_s = outcome.claimed_s / scale, outcome.recomputed_s / scale
    if outcome.status == "INTERRUPTED":
        raise KeyboardInterrupt  # `solve` keeps what the state holds and says so
