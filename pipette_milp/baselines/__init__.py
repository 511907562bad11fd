"""Published ways to choose a configuration, each with its own rule and cost model, judged by our simulator.

A baseline is a function of a cost model and `pipette_milp.baselines.choices.Resources`. It yields choices,
the one it would launch first at the head. It decides what its paper decides: degrees and micro-batch, for
Pipette the placement too. What no paper decides is the same for all (`house_options`), and what they know as
well: compute times come from the instance's cost model, as profiles would give them.
"""

from __future__ import annotations

BASELINES = {
    "megatron-rule": "pipette_milp.baselines.megatron_rule:rank",
    "amp": "pipette_milp.baselines.amp:rank",
    "amp:as-published": "pipette_milp.baselines.amp:rank_as_published",
    "varuna": "pipette_milp.baselines.varuna:rank",
    "pipette": "pipette_milp.baselines.pipette:rank",
    "pipette:as-published": "pipette_milp.baselines.pipette:rank_as_published",
    "nemo-grid": "pipette_milp.baselines.nemo_grid:rank",
    "random": "pipette_milp.baselines.random_choice:rank",
}
"""Name to ``module:attribute``, resolved on first use. ``as-published`` keeps the faults of the released
code."""

__all__ = ["BASELINES"]
