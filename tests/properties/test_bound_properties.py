"""No plan undercuts a bound of its family: random splits and placements of the shipped tiny instances."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from pipette_milp.certificates import Ground, reached_by_arithmetic, recheck_bounds
from pipette_milp.cost.build import CostModel
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.layer_branches import floor_bound_s
from tests.properties.test_cost_properties import judged, plans, written

ABOVE = 1 + 1e-6
"""A target this much above a plan's time is wrong, and not by rounding."""


@settings(max_examples=100, deadline=None, derandomize=True)
@given(plan=plans())
def test_no_plan_is_below_its_family_s_bounds(plan: tuple[str, Configuration, np.ndarray]) -> None:
    name, configuration, cells = plan
    tables = CostModel.of(load_instance(written(name))).tables(configuration)
    layers = np.array(configuration.layers_per_stage)
    evaluator = Evaluator(tables)
    if not evaluator.fits(layers):
        return
    time_s = evaluator.simulated_s(Candidate(layers, cells))
    assert floor_bound_s(tables) <= time_s
    assert not reached_by_arithmetic(tables, time_s * ABOVE)
    (recheck,) = recheck_bounds([tables], [time_s * ABOVE], enumerated_plans=0)
    assert recheck.ground is Ground.NONE


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_search_and_report_agree_on_the_time(plan: tuple[str, Configuration, np.ndarray]) -> None:
    """`Evaluator` simulates equal replicas once and keeps no account; the assessment does all of it."""
    name, configuration, cells = plan
    tables = CostModel.of(load_instance(written(name))).tables(configuration)
    candidate = Candidate(np.array(configuration.layers_per_stage), cells)
    assert Evaluator(tables).simulated_s(candidate) == judged(written(name), configuration, cells).simulated_s
