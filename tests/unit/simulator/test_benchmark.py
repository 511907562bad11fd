from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipette_milp.simulator import benchmark


def test_runs_and_records(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On plans small enough for a test; no time is asserted."""
    monkeypatch.setattr(benchmark, "PLANS", ((2, 2, 4), (2, 3, 4)))
    monkeypatch.setattr(benchmark, "CUT_VECTORS", 5)
    file = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["benchmark", "--repeats", "2", "-o", str(file)])
    benchmark.main()
    rows = json.loads(file.read_text())
    assert {row["gpus"] for row in rows} == {16, 32, 48}
    assert {row["transfers"] for row in rows} == {"exchange", "async"}
    assert all(row["warm_ms"] > 0 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
