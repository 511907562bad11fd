"""``auto``: what suits the size."""

from __future__ import annotations

from pipette_milp.solvers.branch_and_bound import branch_and_bound
from pipette_milp.solvers.exhaustive import candidate_count, exhaustive
from pipette_milp.solvers.state import SearchState

FEW_CANDIDATES = 3_000
"""Plans up to which evaluating all of them takes less than starting a solver (about a second)."""


def auto(state: SearchState) -> None:
    """Enumeration where it is quick, else branch and bound."""
    if sum(candidate_count(tables) for tables in state.families) <= FEW_CANDIDATES:
        exhaustive(state)
    else:
        branch_and_bound(state)
