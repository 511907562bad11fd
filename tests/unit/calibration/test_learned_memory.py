"""The perceptron of the paper as a memory estimator, beside the analytic one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_milp.calibration import learned_memory
from pipette_milp.calibration.accuracy import Judged, judge
from pipette_milp.calibration.express import express
from pipette_milp.calibration.learned_memory import assigned_folds, compare_memory, features, samples, trained
from pipette_milp.calibration.runs import parse_runs
from pipette_milp.errors import InputError
from tests.run_tables import table

METRIC = "GB max_memory_allocated"


@pytest.fixture(autouse=True)
def short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned_memory, "MOST_EPOCHS", 40)


def judged(*changes: dict[str, str]) -> list[Judged]:
    return judge(parse_runs(table(*changes)).runs)


def runs(count: int, **more: str) -> list[dict[str, str]]:
    """Runs of different batches whose memory is a plain function of them."""
    return [
        {
            "micro_batch": str(2 ** (i % 3)),
            "global_batch": str(64 * (1 + i // 3)),
            "measured_peak_mem_gb": str(5 + 2 * 2 ** (i % 3)),
            "mem_metric": METRIC,
        }
        | more
        for i in range(count)
    ]


def test_the_features_are_those_of_the_paper() -> None:
    (item,) = judged({})
    assert features(express(item.run)) == (16, 8, 1024, 16, 2, 2, 4, 4, 2, 64, 16)


def test_repeats_of_a_run_share_a_fold() -> None:
    inputs = np.repeat(np.arange(50.0)[:, None], 3, axis=0)
    fold = assigned_folds(inputs, 5, seed=0)
    assert all(len(set(fold[i : i + 3])) == 1 for i in range(0, 150, 3))
    assert np.bincount(fold).tolist() == [30] * 5


def test_a_perceptron_learns_what_is_there_and_repeats_itself() -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    inputs = rng.uniform(1, 8, (200, 11))
    bytes_kept = 1e9 * (5 + inputs[:, 8])
    first, second = (trained(inputs, bytes_kept, seed=3)(inputs) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.abs(first / bytes_kept - 1).mean() < 0.1


def test_both_estimators_are_counted_on_the_same_runs() -> None:
    pytest.importorskip("sklearn")
    out = {"oom": "True", "status": "oom", "measured_iter_time_s": "", "micro_batch": "8"}
    items = judged(*runs(24), *runs(8, num_gpus="64"), out)
    known = samples(items)
    assert len(known) == 33
    assert [sample.measured_bytes for sample in known[:2]] == [7e9, 9e9]
    found = compare_memory(items)
    own = found["mine"]
    assert found["all"] == own
    assert (own.n, own.larger_n, own.out_of_memory, own.fitted) == (32, 8, 1, 32)
    assert own.analytic_mape == pytest.approx(np.mean([abs(i.memory_error or 0) for i in items[:32]]))
    assert own.learned_mape is not None
    assert own.larger_learned_mape is not None


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 runs have a memory figure .* needs 20"):
        compare_memory(judged(*runs(2)))


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sklearn", "sklearn.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="learned"):
        trained(np.zeros((3, 11)), np.ones(3), seed=0)


def test_the_command_prints_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    import json

    from pipette_milp.cli import main

    path = tmp_path / "runs.csv"
    path.write_text(table(*runs(24)))
    with pytest.raises(SystemExit) as ended:
        main(["accuracy", str(path), "--learned-memory", "--json", "--quiet"])
    assert not ended.value.code
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert rows[-1]["learned_memory"]["n"] == 24
    with pytest.raises(SystemExit):
        main(["accuracy", str(path), "--learned-memory", "--quiet"])
    assert "Memory, analytic and learned" in capsys.readouterr().out
