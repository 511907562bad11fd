"""One call of a MILP or CP-SAT solver: what goes in, what comes out.

`subprocess_solve` makes the call in a child process, tests make it in their own. Whatever a solver
says is data here, also that it failed: nothing raises past `solve`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pipette_milp.formulations.problem import JointProblem, ModelPlan

Backend = Literal["milp", "cpsat"]
SolveStatus = Literal["optimal", "infeasible", "feasible", "unknown", "error"]
"""optimal: proven within the asked gap; infeasible: no plan within the cutoff; feasible: a plan, not proven;
unknown: neither plan nor proof within the limit; error: the solver failed, see the message."""


@dataclass(frozen=True)
class SolveOptions:
    """How a solver is run. ``gap`` is relative; 0 asks for a proof up to the solver's tolerances."""

    backend: Backend = "milp"
    solver_name: str | None = None
    """A Pyomo solver for the MILP; None is HiGHS with progress."""
    time_limit_s: float = 60.0
    gap: float = 0.0
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """A better plan, a better bound or both, as the solver found it."""

    plan: ModelPlan | None = None
    bound_s: float | None = None


@dataclass(frozen=True)
class SolveReport:
    """The end of a call."""

    status: SolveStatus
    plan: ModelPlan | None = None
    claimed_s: float | None = None
    """Model objective of ``plan``."""
    bound_s: float | None = None
    """The solver's dual bound on plans within the cutoff, as it is: no safety margin."""
    message: str = ""


Listener = Callable[[Progress], None]


def solve(problem: JointProblem, options: SolveOptions, listener: Listener) -> SolveReport:
    """Build and solve in this process. Solver failures become a report with status "error"."""
    try:
        with _stdout_to_stderr():
            if options.backend == "cpsat":
                from pipette_milp.solvers.run_cpsat import solve_cpsat

                return solve_cpsat(problem, options, listener)
            from pipette_milp.solvers.run_milp import solve_milp

            return solve_milp(problem, options, listener)
    except Exception as error:  # a solver's failure must not end the search
        return SolveReport("error", message=f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """highspy prints a banner on the process's stdout, whatever its options say; stdout is for answers."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
