"""What branch and bound does first, and where it searches from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import branch_and_bound as bb
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.greedy import starting_plan
from pipette_milp.solvers.state import Limits, SearchState
from pipette_milp.solvers.workers import Done, Job
from tests.instance_cases import costs
from tests.oracle.tiny_tables import random_tables
from tests.oracle.varied_tables import long_hops, slow_node


@dataclass
class NoPool:
    """Jobs are asked for and answered by hand."""

    running: list[Job] = field(default_factory=list)


@pytest.fixture
def run() -> bb._Run:
    model = costs({"cluster/nodes/0/count": 4, "cluster/nodes/0/gpus": 2}, training={"global_batch_size": 16})
    return bb._Run(SearchState(model, enumerate_space(model), Limits(600.0, 0.0)))


def test_what_comes_first_has_a_start_before_any_is_searched(run: bb._Run) -> None:
    depths = []
    for _ in range(400):
        job = run.next_job(NoPool())
        assert job is not None
        if job.tag == "search":
            break
        depths.append(job.arguments["depth"])
        value = job.function(run.state.families[job.family], **job.arguments)
        run.take(Done(job, value, None, 0.1))
    assert job.tag == "search"
    assert set(depths) == {0}
    waiting = run.next_bound(set())
    assert waiting is not None
    assert waiting.arguments["depth"] > 0
    before = run.state.lower <= run.state.lower[waiting.family]
    assert np.all(run.depth[before] > 0)
    assert np.isfinite(run.state.best_s[before & (run.state.lower < run.ceiling_s)]).all()


def test_every_second_search_starts_anew(run: bb._Run) -> None:
    family = int(np.argmin(run.state.lower))
    tables = run.state.families[family]
    start = starting_plan(Evaluator(tables))
    assert start is not None
    run.state.offer(family, Evaluator(tables).simulated_s(start), start, run.state.name(family))
    jobs = [run.next_search(set()) for _ in range(3)]
    assert [job.arguments["anew"] for job in jobs if job is not None] == [False, True, False]


def test_a_search_anew_finds_plans_of_its_own() -> None:
    """From a start that is no good its answer is that of the layouts, never worse than them."""
    rng = np.random.default_rng(1)
    tables = slow_node(long_hops(random_tables(rng, (4, 2, 1, 4, (2, 2, 2, 2))), rng), rng)
    evaluator = Evaluator(tables)
    start = starting_plan(evaluator)
    assert start is not None
    worst = max(
        (replace(start, node_of_cell=rng.permuted(start.node_of_cell)) for _ in range(50)),
        key=evaluator.simulated_s,
    )
    assert evaluator.simulated_s(worst) > evaluator.simulated_s(start)
    _, ((value, candidate),) = bb.search_job(tables, start=worst, anew=True, time_limit_s=0.0, seed=3)
    assert value == pytest.approx(evaluator.simulated_s(candidate))
    assert value <= evaluator.simulated_s(start)


@pytest.mark.parametrize(("elapsed_s", "gaps"), [(1.0, [0.03, 0.005]), (300.0, [0.03, 0.01, 0.005])])
def test_a_gap_in_between_where_time_is_short(
    run: bb._Run, monkeypatch: pytest.MonkeyPatch, elapsed_s: float, gaps: list[float]
) -> None:
    monkeypatch.setattr(SearchState, "elapsed_s", property(lambda _: elapsed_s))
    run = bb._Run(replace(run.state, limits=Limits(600.0, 0.005)))
    tables = run.state.families[0]
    start = starting_plan(Evaluator(tables))
    assert start is not None
    run.state.offer(0, 1.0, start, run.state.name(0))
    asked = []
    for _ in gaps:
        asked.append(run.question_gap)
        run.state.lower[:] = run.ceiling_s
        run.refine()
    assert asked == pytest.approx(gaps, abs=1e-8)
