"""Errors counted per subset, the fit's least squares, and calibration from own runs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pipette_milp.calibration.accuracy import Judged, accuracy_table, judge, sweep_spearman
from pipette_milp.calibration.calibrate import calibrate
from pipette_milp.calibration.evaluate import Estimate, estimate_run, iteration_s
from pipette_milp.calibration.express import express
from pipette_milp.calibration.fit import thinned
from pipette_milp.calibration.least_squares import Parameter, fit, weighted_median
from pipette_milp.calibration.parameters import touches, value_of, with_values
from pipette_milp.calibration.prepared import prepare
from pipette_milp.calibration.runs import Run, parse_runs
from pipette_milp.cli import main
from pipette_milp.errors import InputError
from pipette_milp.schema.constants import default_constants
from tests.run_tables import table

GIB = 2.0**30


def judged(time_s: float, *, fits: bool = True, **fields: str) -> Judged:
    estimate = Estimate(time_s, (4 * GIB, 8 * GIB), (5 * GIB, 9 * GIB), 10 * GIB if fits else 8 * GIB)
    given = {"measured_iter_time_s": "1.0", "split_hint": "a", **fields}
    return Judged(Run(2, {name: text for name, text in given.items() if text}), estimate)


def test_errors_are_estimate_over_measured() -> None:
    rows = accuracy_table(
        [judged(1.1), judged(0.8), Judged(Run(3, {"split_hint": "a"}), None, "line 3, heads: is required")]
    )
    assert [row.subset for row in rows] == ["a", "all"]
    row = rows[0]
    assert (row.n, row.refused, row.refusals) == (3, 1, {"heads: is required": 1})
    assert row.time_mape == pytest.approx(0.15)
    assert row.time_bias == pytest.approx(-0.05)
    assert row.memory_mape is None


def test_the_memory_figure_follows_the_metric() -> None:
    estimate = Estimate(1.0, (4 * GIB, 8 * GIB), (5e9, 9e9), 0.0)
    assert estimate.memory("GiB, torch max_memory_allocated, max over ranks") == 8
    assert estimate.memory("GiB, max_memory_allocated, rank 0 (first stage)") == 4
    assert estimate.memory("GB, nvidia-smi, first/last node") == pytest.approx(9)
    assert estimate.memory("GB, whole GB, nvidia-smi style") == pytest.approx(5)


def test_out_of_memory_is_judged_where_the_source_says_it() -> None:
    rows = accuracy_table(
        [
            judged(1.0, fits=False, status="oom"),
            judged(1.0, fits=True, oom="True"),
            judged(1.0, fits=True),
            judged(1.0, fits=False),
            judged(1.0, status="failed", measured_iter_time_s=""),
        ]
    )
    assert rows[0].oom == {
        "true_positive": 1,
        "false_positive": 1,
        "true_negative": 1,
        "false_negative": 1,
    }


def test_rank_correlation_is_taken_within_sweeps() -> None:
    def sweep(model: str, times: list[float]) -> list[Judged]:
        return [judged(t, model_name=model, measured_iter_time_s=str(i + 1.0)) for i, t in enumerate(times)]

    assert sweep_spearman(sweep("m", [1, 2, 3, 4, 5])) == pytest.approx(1.0)
    assert sweep_spearman(sweep("m", [5, 4, 3, 2, 1])) == pytest.approx(-1.0)
    assert sweep_spearman(sweep("m", [1, 2, 3, 4])) is None  # too few
    both = sweep("m", [1, 2, 3, 4, 5]) + sweep("n", [6, 5, 4, 3, 2, 1])
    assert sweep_spearman(both) == pytest.approx((5 * 1 - 6) / 11)


def test_excluded_rows_are_left_out_and_finer_rows_follow_their_subset() -> None:
    runs = parse_runs(
        table({"split_hint": "exclude-x"}, {"split_hint": "nanotron-h100", "measured_mfu": "0.3"}, {})
    ).runs
    names = [row.subset for row in accuracy_table(judge(runs))]
    assert names == ["nanotron-h100", "nanotron-h100:mfu>=0.10", "mine", "all"]


@pytest.mark.parametrize("schedule", ["1F1B", "interleaved-1F1B"])
def test_long_iterations_are_extended_exactly(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The period found with few micro-batches gives the time of many."""
    fields = {"global_batch": "512", "micro_batch": "1", "pp": "4", "schedule": schedule}
    item = express(parse_runs(table({**fields, "vpp": "2" if schedule != "1F1B" else "1"})).runs[0])
    (prepared,) = prepare([item.run])
    costs = prepared.costs(default_constants())
    short = iteration_s(costs, item)
    monkeypatch.setattr("pipette_milp.calibration.evaluate.PERIODS", 10**6)
    assert short == pytest.approx(iteration_s(costs, item), rel=1e-12)


def test_least_squares_finds_figures_and_shrugs_at_outliers() -> None:
    x = np.linspace(1, 10, 40)
    y = np.log(3.0 * x**2)
    y[::10] += 2.0

    def residuals(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return y[rows] - np.log(values[0] * x[rows] ** values[1])

    every = np.arange(x.size)
    parameters = [Parameter("a", 1.0, 0.1, 10.0, 5.0), Parameter("b", 1.0, 0.1, 10.0, 5.0)]
    found = fit(parameters, residuals, np.ones(x.size), [every, every], iterations=30)
    assert found.values == pytest.approx([3.0, 2.0], rel=0.05)
    assert weighted_median(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 5.0])) == 2.0


def test_constants_are_replaced_by_dotted_names() -> None:
    changed = with_values(
        default_constants(), ["matrix_efficiency.ampere", "frameworks.nemo.launch_s"], [0.5, 1e-5]
    )
    assert value_of(changed, "matrix_efficiency.ampere") == 0.5
    assert changed.frameworks["nemo"].launch_s == 1e-5
    (item,) = prepare(parse_runs(table({})).runs)
    assert touches("matrix_efficiency.ampere", item)
    assert not touches("matrix_efficiency.hopper", item)
    assert not touches("frameworks.nemo.launch_s", item)


def test_large_subsets_are_thinned_evenly() -> None:
    runs = [Run(i, {"split_hint": "big"}) for i in range(100)] + [Run(200, {"split_hint": "small"})]
    chosen = thinned(runs, 25)
    assert [run.line for run in chosen] == [*range(0, 100, 4), 200]


def test_one_run_calibrates_time_and_memory(tmp_path: Path) -> None:
    metric = "GiB torch max_memory_allocated max over ranks"
    item = express(parse_runs(table({})).runs[0])
    estimate = estimate_run(item)
    heavier = estimate.memory(metric) * 1.1
    fields = {
        "measured_iter_time_s": f"{1.25 * estimate.time_s}",
        "measured_peak_mem_gb": f"{heavier}",
        "mem_metric": metric,
    }
    own = parse_runs(table(fields))
    found = calibrate(own)
    assert found.time is not None
    assert found.memory is not None
    assert found.time.before == pytest.approx(0.2, rel=0.01)
    assert found.time.after < 0.01
    assert found.memory.after < 0.01
    assert found.time.cross_validated is None
    again = estimate_run(item, found.constants)
    assert again.time_s == pytest.approx(1.25 * estimate.time_s, rel=0.01)
    assert again.memory(metric) == pytest.approx(heavier, rel=0.01)


def test_the_command_writes_constants_that_every_command_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, constants = tmp_path / "runs.csv", tmp_path / "constants.json"
    estimate = estimate_run(express(parse_runs(table({})).runs[0]))
    slower = {"measured_iter_time_s": f"{1.5 * estimate.time_s}"}
    runs.write_text(
        table(slower, {**slower, "run_id": "mine_2"}, {**slower, "run_id": "mine_3", "status": "oom"})
    )
    main_exits(["calibrate", str(runs), "-o", str(constants), "--quiet"])
    assert "time_scale" in capsys.readouterr().out
    main_exits(["accuracy", str(runs), "--json", "--quiet", "--constants", str(constants)])
    rows = json.loads(capsys.readouterr().out)
    assert [row["subset"] for row in rows] == ["mine", "all"]
    assert rows[0]["time_mape"] < 0.02
    main_exits(["accuracy", str(runs), "--quiet", "--rows", str(tmp_path / "rows.csv")])
    assert (tmp_path / "rows.csv").read_text().startswith("run_id,subset,measured_s")


def main_exits(words: list[str], code: int = 0) -> None:
    """Runs the command line and checks its exit code."""
    with pytest.raises(SystemExit) as exit_info:
        main(words)
    assert (exit_info.value.code or 0) == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["accuracy", "missing.csv"], "no such file"),
        (["calibrate", "missing.csv", "-o", "-"], "no such file"),
        (["accuracy", "missing.csv", "--constants"], "needs a file name"),
        (["accuracy", "missing.csv", "--constants=none.json"], "no such file"),
    ],
)
def test_bad_input_exits_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    main_exits(words, 2)
    assert message in capsys.readouterr().err


def test_constants_outside_their_plausible_range_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = default_constants().model_dump(mode="json")
    data["memory_efficiency"] = 1.5
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(data))
    main_exits(["accuracy", "missing.csv", "--constants", str(path)], 2)
    assert "memory_efficiency" in capsys.readouterr().err


def test_nothing_to_calibrate_is_refused() -> None:
    with pytest.raises(InputError, match="no run has a measured time"):
        calibrate(parse_runs(table({"measured_iter_time_s": ""})))
    assert math.isfinite(default_constants().residuals.time_sigma)
