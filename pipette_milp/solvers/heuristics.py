"""Solvers that find plans and prove nothing: ``greedy``, ``local-search`` and ``annealing`` over all
families."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from pipette_milp.errors import InputError
from pipette_milp.solvers.annealing import anneal
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.greedy import starting_plan as construct
from pipette_milp.solvers.local_search import local_search as improve
from pipette_milp.solvers.state import SearchState

Improver = Callable[..., tuple[float, Candidate]]

FAMILIES_IMPROVED = 12
"""Families with the best greedy plans that are improved, best first and round after round."""
FEWEST_FAMILIES = 3
"""So many share the time in the end."""
SLICE_ITERATIONS = 2_000
"""Moves of the first search on each family; they double from round to round. So many count as one
iteration."""
LONGEST_SLICE = 64_000
FRUITLESS_ROUNDS = 2
"""Rounds of the longest searches without a better plan, after which the solver gives up."""
AS_PUBLISHED = "as-published"


def greedy(state: SearchState) -> None:
    """A block layout for every family, cheapest bound first."""
    state.proves = False
    for done, family in enumerate(np.argsort(state.lower, kind="stable")):
        if _stop(state, done):
            return
        evaluator = Evaluator(state.families[int(family)])
        candidate = construct(evaluator)
        if candidate is not None:
            value = evaluator.simulated_s(candidate)
            state.offer(int(family), value, candidate, state.name(int(family)))


def local_search(state: SearchState) -> None:
    """Greedy, then local search on the best families in turn until a limit."""
    _improve(state, improve)


def annealing(state: SearchState, variant: str = "") -> None:
    """Greedy, then simulated annealing on the best families in turn until a limit.

    Args:
        variant: ``as-published`` for the walk of Pipette's code.

    Raises:
        InputError: another variant.
    """
    if variant not in ("", AS_PUBLISHED):
        raise InputError(
            f"there is no solver 'annealing:{variant}'; there are annealing and annealing:{AS_PUBLISHED}",
            source="--solver",
        )
    _improve(state, partial(anneal, faithful=variant == AS_PUBLISHED))


def _improve(state: SearchState, improver: Improver) -> None:
    """Rounds over the families with the best plans: ever longer searches on ever fewer of them."""
    greedy(state)
    rng = np.random.default_rng(state.limits.seed)
    families = [int(k) for k in np.argsort(state.best_s, kind="stable")[:FAMILIES_IMPROVED]]
    families = [k for k in families if state.best[k] is not None]
    slices, fruitless, length = 0, 0, SLICE_ITERATIONS
    while families and fruitless < FRUITLESS_ROUNDS:
        before = state.best_s[families].min()
        for family in families:
            if _stop(state, len(state.families) + slices):
                return
            value, candidate = improver(
                Evaluator(state.families[family]),
                state.best[family],
                rng,
                iterations=length,
                stop=lambda: state.time_left_s <= 0,
            )
            state.offer(family, value, candidate, state.name(family))
            slices += length // SLICE_ITERATIONS
        better = state.best_s[families].min() < before * (1 - 1e-9)
        fruitless = 0 if better or length < LONGEST_SLICE else fruitless + 1
        length = min(2 * length, LONGEST_SLICE)
        fewer = max(len(families) // 2, min(FEWEST_FAMILIES, len(families)))
        families = sorted(families, key=lambda k: (state.best_s[k], k))[:fewer]


def _stop(state: SearchState, iterations: int) -> bool:
    limit = state.limits.iterations
    return state.time_left_s <= 0 or (limit is not None and iterations >= limit)
