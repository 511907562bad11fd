"""Baselines as solvers: the first choice that fits is the plan.

A baseline launches its choices one after the other until one does not run out of memory; how many did is a
warning of the result. Nothing is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from pipette_milp.baselines import BASELINES
from pipette_milp.baselines.choices import Resources, judge, ranking
from pipette_milp.errors import InputError
from pipette_milp.schema.plan import Configuration
from pipette_milp.solvers.evaluation import Candidate
from pipette_milp.solvers.state import SearchState


def launch(state: SearchState, name: str) -> None:
    """Offer the first choice of a baseline that fits.

    Raises:
        InputError: no such variant of it.
    """
    if name not in BASELINES:
        stem = name.partition(":")[0]
        variants = [known for known in BASELINES if known.partition(":")[0] == stem]
        raise InputError(f"there is no solver {name!r}; there are {', '.join(variants)}", source="--solver")
    state.proves = False
    families = {family_of(tables.configuration): k for k, tables in enumerate(state.families)}
    failed = 0
    resources = Resources(np.random.default_rng(state.limits.seed), lambda: state.time_left_s <= 0)
    for choice in ranking(name)(state.costs, resources):
        judged = judge(state.costs, choice)
        family = families.get(family_of(choice.configuration))
        if judged.fits and family is not None:
            layers = np.array(choice.configuration.layers_per_stage, dtype=np.int64)
            state.offer(
                family, judged.simulated_s, Candidate(layers, choice.node_of_cell), state.name(family)
            )
            break
        failed += 1
    if failed:
        state.warnings.append(
            f"the first {failed} choice{'s' if failed > 1 else ''} of {name} would run out of memory"
        )


def family_of(configuration: Configuration) -> Hashable:
    """Everything but the layer split."""
    return configuration.model_copy(update={"stages": ()})


def _solver(name: str) -> Callable[..., None]:
    def solve(state: SearchState, variant: str = "") -> None:
        launch(state, f"{name}:{variant}" if variant else name)

    solve.__doc__ = f"Baseline ``{name}``."
    return solve


megatron_rule = _solver("megatron-rule")
amp = _solver("amp")
varuna = _solver("varuna")
pipette = _solver("pipette")
nemo_grid = _solver("nemo-grid")
random = _solver("random")
