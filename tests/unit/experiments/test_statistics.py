from __future__ import annotations

import math
from typing import Any

import pytest

from pipette_milp.experiments.statistics import (
    best_known,
    duel,
    excess,
    median,
    profile,
    time_to_excess_s,
    time_to_gap_s,
    wilson_interval,
)
from pipette_milp.experiments.tables import Table, by_instance, by_solver, notes


def record(
    solver: str, value: float | None, seed: int = 0, instance: str = "a", **more: Any
) -> dict[str, Any]:
    return {
        "key": f"{instance} {solver} {seed}",
        "status": "done",
        "instance": instance,
        "instance_sha256": instance * 4,
        "solver": solver,
        "seed": seed,
        "simulated_s": value,
        "gap": None,
        "global_batch_size": None if value is None else 8,
        "trace": [] if value is None else [[1.0, 2 * value, value / 2], [4.0, value, 0.99 * value]],
        "time_limit_s": 10.0,
        "threads": 1,
        "environment": {"processor": "x", "python": "3.12", "revision": "abc", "compiled_kernels": True},
        **more,
    }


def test_the_best_known_plan_counts_per_sequence() -> None:
    """Twice the batch in less than twice the time is the better plan."""
    records = [record("one", 1.0), record("other", 1.9, global_batch_size=16)]
    best = best_known(records)
    assert best == {"aaaa": 1.9 / 16}
    assert excess(records[0], best) == pytest.approx(2 / 1.9 - 1)
    assert excess(records[1], best) == 0.0
    assert excess(record("none", None), best) == math.inf


def test_times_of_a_trace() -> None:
    one = record("one", 1.0)
    best = {"aaaa": 0.995 / 8}
    assert time_to_excess_s(one, best, 1.2) == 1.0
    assert time_to_excess_s(one, best, 0.01) == 4.0
    assert time_to_excess_s(one, best, 0.001) == math.inf
    assert time_to_gap_s(one, 0.8) == 1.0
    assert time_to_gap_s(one, 0.01) == 4.0
    assert time_to_gap_s(one, 0.001) == math.inf
    assert time_to_excess_s(record("none", None), best, 1.0) == math.inf


def test_median_does_not_hide_failures() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([1.0, 2.0]) == 1.5
    assert median([1.0, math.inf]) == math.inf
    assert median([1.0, 2.0, math.inf]) == 2.0
    assert math.isnan(median([]))


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    """Tabled values (Agresti and Coull 1998 quote the same interval)."""
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


def test_wins_ties_and_losses() -> None:
    records = [
        record("one", 1.0), record("other", 1.1),
        record("one", 1.0, 1), record("other", 1.0005, 1),
        record("one", None, 2), record("other", 1.0, 2),
        record("one", None, 3), record("other", None, 3),
        record("one", 1.0, 4),
    ]  # fmt: skip
    result = duel(records, "one", "other")
    assert (result.wins, result.ties, result.losses) == (1, 2, 1)
    back = duel(records, "other", "one")
    assert (back.wins, back.ties, back.losses) == (1, 2, 1)
    assert result.interval == wilson_interval(1, 2)


def test_profile() -> None:
    assert profile([0.0, 0.1, math.inf], [0.0, 0.05, 0.1, 1e9]) == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])
    assert profile([], [1.0]) == [0.0]


def test_tables_show_dashes_where_nothing_is() -> None:
    records = [record("one", 1.0), record("other", None, status="failed", error="out | of luck")]
    table = by_instance(records)
    assert table.rows[1][3] == 0
    assert table.rows[1][4] is None
    assert "| -" in table.markdown()
    assert ",," in table.csv()
    assert by_solver(records).rows[1][2] == 1
    assert notes(records) == ["other on a, seed 0: failed: out | of luck"]
    mixed = [record("one", 1.0), record("one", 1.0, 1, environment={"processor": "y"})]
    assert any("differ in their processor" in note for note in notes(mixed))


def test_a_row_has_a_cell_for_every_heading() -> None:
    table = Table(["a", "b"])
    with pytest.raises(ValueError, match="1 cells for 2"):
        table.add("x")
    table.add("x|y", math.nan)
    assert table.markdown().splitlines()[2].split() == ["|", "x\\|y", "|", "-", "|"]
