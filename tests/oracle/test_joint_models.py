"""Joint MILP and joint CP-SAT against exhaustive search on random tiny cost tables.

Equality is asserted on the simulated time of the returned plans, and every bound that was ever reported, also
in the middle of a solve, must not exceed the optimum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.joint import JointOutcome, JointProgress, solve_joint
from pipette_milp.uplinks import Uplinks
from tests.oracle.tiny_tables import SHAPES, Optimum, exhaustive, random_tables, with_uplinks

SAME = 1e-6
"""Relative difference of simulated times that count as equal."""
INSTANCES = 90
JOINT_INSTANCES = 12
SLOW_INSTANCES = 2000
BACKENDS = ("milp", "cpsat")


def check(families: list[CostTables], scales: list[float], backend: str) -> JointOutcome:
    """Solve and compare with enumeration."""
    optima = [exhaustive(tables) for tables in families]
    times = [np.inf if o is None else o.simulated_s * scale for o, scale in zip(optima, scales, strict=True)]
    best_s = min(times)
    trace: list[JointProgress] = []
    outcome = solve_joint(
        families,
        scales=scales,
        backend=backend,  # type: ignore[arg-type]
        time_limit_s=60.0,
        in_process=True,
        listener=trace.append,
    )
    if best_s == np.inf:
        assert outcome.status == "INFEASIBLE"
        assert outcome.plan is None
        return outcome
    assert outcome.status == "OPTIMAL", outcome.messages
    assert outcome.plan is not None
    assert outcome.simulated_s == pytest.approx(best_s, rel=SAME)
    assert outcome.lower_bound_s <= best_s
    if outcome.claimed_s is not None:
        assert outcome.claimed_s == pytest.approx(outcome.recomputed_s, rel=SAME)
    bounds = [progress.lower_bound_s for progress in trace]
    incumbents = [progress.incumbent_s for progress in trace if progress.incumbent_s is not None]
    assert bounds == sorted(bounds)
    assert incumbents == sorted(incumbents, reverse=True)
    assert max(bounds) <= best_s
    return outcome


def instance(seed: int) -> CostTables:
    tables = random_tables(np.random.default_rng(seed), SHAPES[seed % len(SHAPES)])
    return with_uplinks(tables, seed) if seed % 4 == 3 else tables


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(INSTANCES))
def test_one_family(seed: int, backend: str) -> None:
    check([instance(seed)], [1.0], backend)


def several(seed: int) -> tuple[list[CostTables], list[float]]:
    """Two to four families of different degrees whose optima are made comparable by their scales."""
    rng = np.random.default_rng(10_000 + seed)
    families = [random_tables(rng) for _ in range(int(rng.integers(2, 5)))]
    optima = [exhaustive(tables) for tables in families]
    scales = [1.0 if o is None else float(rng.uniform(0.97, 1.03)) / o.simulated_s for o in optima]
    return families, scales


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(JOINT_INSTANCES))
def test_several_families(seed: int, backend: str) -> None:
    families, scales = several(seed)
    check(families, scales, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("first", range(INSTANCES, SLOW_INSTANCES, 100))
def test_many(first: int, backend: str) -> None:
    for seed in range(first, min(first + 100, SLOW_INSTANCES)):
        check([instance(seed)], [1.0], backend)


def test_the_instances_cover_what_they_should() -> None:
    """Each feature appears among the instances of the normal run."""
    tables = [instance(seed) for seed in range(INSTANCES)]
    optima = [exhaustive(t) for t in tables]
    transfers = {t.configuration.pipeline_transfers for t in tables}
    assert transfers == {"exchange", "async"}
    assert any(t.pipeline == t.data == 1 for t in tables)
    assert any(t.pipeline > 1 and t.data == 1 for t in tables)
    assert any(t.pipeline == 1 and t.data > 1 for t in tables)
    assert any(t.embedding_bytes > 0 and t.data > 1 for t in tables)
    assert any(t.gather.bytes_per_layer > 0 and t.gather_exposed for t in tables)
    assert any(t.sync_buckets > 1 for t in tables)
    assert any(not np.array_equal(t.pair_bytes_per_s, t.pair_bytes_per_s.T) for t in tables)
    assert any(o is None for o in optima), "no instance is infeasible"
    assert sum(_waits_for_an_uplink(t, o) for t, o in zip(tables, optima, strict=True)) >= 3
    assert sum(_memory_binds(t, o) for t, o in zip(tables, optima, strict=True)) >= 3
    assert sum(_uneven(o) for o in optima) >= 5
    assert sum(_shares(t, o) for t, o in zip(tables, optima, strict=True)) >= 5


def _memory_binds(tables: CostTables, optimum: Optimum | None) -> bool:
    """Some split is forbidden by memory alone."""
    low, high = tables.min_layers.sum(), tables.max_layers.max()
    used = tables.memory_layer_bytes[: tables.pipeline] * high + tables.memory_extra_bytes
    return optimum is not None and low < tables.total_layers and bool(used.max() > tables.memory_usable_bytes)


def _waits_for_an_uplink(tables: CostTables, optimum: Optimum | None) -> bool:
    """Without uplinks the best plan would take less time."""
    free = exhaustive(replace(tables, uplinks=Uplinks())) if len(tables.uplinks) else None
    return optimum is not None and free is not None and free.simulated_s < optimum.simulated_s * (1 - SAME)


def _uneven(optimum: Optimum | None) -> bool:
    return optimum is not None and max(optimum.layers) - min(optimum.layers) >= 2


def _shares(tables: CostTables, optimum: Optimum | None) -> bool:
    """At the optimum some hop is longer than it would be alone on its link."""
    if optimum is None or tables.pipeline == 1:
        return False
    nodes = np.array(optimum.placement)
    shared = placement_durations(tables, np.array(optimum.layers), nodes).hop_forward_s
    alone = [
        placement_durations(_one_replica(tables), np.array(optimum.layers), nodes[:, [z]]).hop_forward_s[:, 0]
        for z in range(tables.data)
    ]
    return bool(np.any(shared > np.array(alone).T * (1 + 1e-9)))


def _one_replica(tables: CostTables) -> CostTables:
    return replace(tables, configuration=tables.configuration.model_copy(update={"data": 1}))
