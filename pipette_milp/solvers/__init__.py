"""Solvers: an instance goes in, a `SolveResult` comes out.

Every solver is a function of a `pipette_milp.solvers.state.SearchState`, which it fills with plans and bounds
until the state's limits are reached; `solve` prepares the state and turns it into a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipette_milp.solvers.run import solve

SOLVERS = {
    "auto": "pipette_milp.solvers.auto:auto",
    "joint-milp": "pipette_milp.solvers.joint_models:joint_milp",
    "joint-cpsat": "pipette_milp.solvers.joint_models:joint_cpsat",
    "branch-and-bound": "pipette_milp.solvers.branch_and_bound:branch_and_bound",
    "exhaustive": "pipette_milp.solvers.exhaustive:exhaustive",
    "greedy": "pipette_milp.solvers.heuristics:greedy",
    "local-search": "pipette_milp.solvers.heuristics:local_search",
    "annealing": "pipette_milp.solvers.heuristics:annealing",
}
"""Name to ``module:attribute``, resolved on first use."""

__all__ = ["SOLVERS", "solve"]


def __getattr__(name: str) -> object:
    # the command line lists solvers without loading what solving needs
    if name == "solve":
        from pipette_milp.solvers.run import solve

        return solve
    raise AttributeError(name)
