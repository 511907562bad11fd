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
    "megatron-rule": "pipette_milp.baselines.solver:megatron_rule",
    "amp": "pipette_milp.baselines.solver:amp",
    "varuna": "pipette_milp.baselines.solver:varuna",
    "pipette": "pipette_milp.baselines.solver:pipette",
    "nemo-grid": "pipette_milp.baselines.solver:nemo_grid",
    "random": "pipette_milp.baselines.solver:random",
}
"""Name to ``module:attribute``, resolved on first use."""
WITH_VARIANTS = {
    "joint-milp": "NAME, another Pyomo solver",
    "annealing": "as-published",
    "amp": "as-published",
    "pipette": "as-published",
}
"""Solvers whose name may go on after a colon, and what may stand there; they take it as second argument."""

__all__ = ["SOLVERS", "WITH_VARIANTS", "solve"]


def __getattr__(name: str) -> object:
    # the command line lists solvers without loading what solving needs
    if name == "solve":
        from pipette_milp.solvers.run import solve

        return solve
    raise AttributeError(name)
