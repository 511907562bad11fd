"""First plans: layer splits by their run of fuller stages, plain layouts of every combination of degrees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipette_milp.cost.tables import CostTables
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.evaluation import Candidate, Evaluator, balanced_split
from pipette_milp.solvers.layer_splits import quickest_split, run_split
from pipette_milp.solvers.scout import plain_layouts, scout
from pipette_milp.solvers.state import Limits, SearchState
from tests.instance_cases import costs
from tests.oracle.tiny_tables import layer_splits, random_tables


def long_pipeline() -> CostTables:
    """Eight stages, twelve layers, twelve micro-batches; no embedding, no head."""
    model = costs(
        {"cluster/nodes/0/count": 8, "cluster/nodes/0/gpus": 1},
        model={"layers": 12},
        training={"global_batch_size": 12},
        search={"pipeline": [8], "tensor": [1], "micro_batch": [1], "schedules": ["1f1b"]},
    )
    zero = np.zeros(8)
    return replace(enumerate_space(model).families[0], forward_extra_s=zero, backward_extra_s=zero)


def test_runs_keep_the_busiest_stage_as_busy() -> None:
    tables = long_pipeline()
    balanced = balanced_split(tables)
    assert balanced is not None
    for first in range(tables.pipeline):
        split = run_split(tables, first)
        assert split is not None
        assert split.sum() == tables.total_layers
        assert split.max() == balanced.max()
        assert Evaluator(tables).fits(split)


def test_the_quickest_split_beats_the_balanced_one() -> None:
    tables = long_pipeline()
    evaluator = Evaluator(tables)
    quickest, balanced = quickest_split(evaluator), balanced_split(tables)
    assert quickest is not None
    assert balanced is not None
    cells = np.arange(8).reshape(8, 1)
    assert evaluator.simulated_s(Candidate(quickest, cells)) < evaluator.simulated_s(
        Candidate(balanced, cells)
    )


def test_quickest_splits_fit_wherever_one_does() -> None:
    for seed in range(40):
        tables = random_tables(np.random.default_rng(seed))
        evaluator = Evaluator(tables)
        split = quickest_split(evaluator)
        if split is None:
            assert balanced_split(tables) is None
        else:
            assert evaluator.fits(split)
            assert tuple(int(v) for v in split) in set(layer_splits(tables))


def test_no_run_without_room() -> None:
    tables = long_pipeline()
    assert run_split(replace(tables, max_layers=np.ones(8, dtype=np.int64)), 0) is None
    assert run_split(replace(tables, min_layers=np.full(8, 2)), 0) is None


def test_plain_layouts_use_every_place_once() -> None:
    for seed in range(30):
        tables = random_tables(np.random.default_rng(seed))
        if int(tables.slots.sum()) < tables.pipeline * tables.data:
            continue
        layouts = list(plain_layouts(tables, tables.min_layers))
        assert layouts
        for cells in layouts:
            assert np.all(np.bincount(cells.ravel(), minlength=tables.num_nodes) <= tables.slots)


def test_a_scout_offers_true_times_and_leaves_bounds_alone() -> None:
    model = costs({"cluster/nodes/0/count": 4})
    state = SearchState(model, enumerate_space(model), Limits(60.0, 0.01))
    before = state.lower.copy()
    scout(state)
    assert state.incumbent is not None
    assert np.array_equal(state.lower, before)
    for family, best in enumerate(state.best):
        if best is not None:
            assert Evaluator(state.families[family]).simulated_s(best) == state.best_s[family]
    degrees = {(f.pipeline, f.tensor) for f, best in zip(state.families, state.best, strict=True) if best}
    assert len(degrees) > 3


def test_a_scout_keeps_the_time_limit() -> None:
    model = costs({"cluster/nodes/0/count": 4})
    state = SearchState(model, enumerate_space(model), Limits(0.0, 0.01))
    scout(state)
    assert state.incumbent is None
