"""`make experiments`, on tiny instances in seconds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.experiments.__main__ import main
from pipette_milp.experiments.log import read_records
from pipette_milp.experiments.race import RaceJob, best_at, contest, reached_s
from pipette_milp.schema.instance import load_instance
from tests.conftest import INSTANCES

FOUR = INSTANCES / "tiny-4x2-a100-flat.json"
SMALL = INSTANCES / "tiny-3x1-a100-flat.json"


def test_smoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path), str(SMALL), "--smoke"]
    assert main(words) == 0
    written = capsys.readouterr().out.split()
    assert {Path(path).relative_to(tmp_path).as_posix() for path in written} == {
        "proof.md", "solvers/comparison.md", "baselines.md", "annealing.md",
    }  # fmt: skip
    for path in written:
        assert "tiny-3x1-a100-flat" in Path(path).read_text()
    for part in ("proof", "solvers", "baselines", "annealing"):
        records = read_records(tmp_path / part / "runs.jsonl")
        assert records
        assert {record["status"] for record in records} == {"done"}
    logs = {path: path.read_bytes() for path in tmp_path.rglob("runs.jsonl")}
    assert main(words) == 0
    assert {path: path.read_bytes() for path in logs} == logs, "finished runs are not done again"


def test_only_the_part_asked_for(tmp_path: Path) -> None:
    assert main([str(tmp_path), str(SMALL), "--smoke", "--part", "solvers"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["solvers"]


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


def test_a_race_gives_both_the_same_configuration_and_objective() -> None:
    costs = CostModel.of(load_instance(FOUR))
    configuration = contest(costs, lambda c: c.tensor == 2 and c.pipeline > 1)
    assert configuration is not None
    assert configuration.tensor == 2
    job = RaceJob(costs.instance, configuration, seed=1, time_limit_s=0.2)
    record = job.run()
    for who in ("annealing", "ours"):
        times, values = zip(*record[who], strict=True)
        assert list(times) == sorted(times)
        assert list(values) == sorted(values, reverse=True)
    assert best_at(record["ours"], math.inf) <= best_at(record["annealing"], math.inf) * (1 + 1e-9)
    assert job.key != RaceJob(costs.instance, configuration, seed=2, time_limit_s=0.2).key


def test_reading_a_trace() -> None:
    trace = [[0.5, 3.0], [2.0, 2.0]]
    assert best_at(trace, 0.4) == math.inf
    assert best_at(trace, 0.5) == 3.0
    assert best_at(trace, 9.0) == 2.0
    assert reached_s(trace, 2.5) == 2.0
    assert reached_s(trace, 1.0) == math.inf


def test_no_race_without_such_a_configuration() -> None:
    costs = CostModel.of(load_instance(SMALL))
    assert contest(costs, lambda c: c.tensor == 8) is None


def test_a_race_between_unlike_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = CostModel.of(load_instance(SMALL))
    configuration = contest(costs, lambda c: c.pipeline == 3)
    assert configuration is not None
    tables = costs.tables(configuration)
    object.__setattr__(tables, "detail", object())
    monkeypatch.setattr(CostModel, "tables", lambda self, configuration: tables)
    with pytest.raises(InputError, match="alike"):
        RaceJob(costs.instance, configuration, seed=0).run()
