"""Anyone can recompute the simulated time from the result file alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipette_milp.simulator import event_graph, execution_order, simulate, simulated_s
from tests.oracle.recompute import recompute
from tests.simulator_cases import SCHEDULE_MODES, as_json, random_durations, random_use


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_from_durations_and_order(schedule: str, mode: str) -> None:
    rng = np.random.default_rng(77)
    for _ in range(100):
        graph = event_graph(schedule, *random_use(schedule, rng), mode)
        durations = random_durations(graph, 2, rng)
        text = json.dumps({"durations": as_json(durations), "order": execution_order(graph)})
        document = json.loads(text)
        total = simulated_s(graph, durations)
        assert recompute(document["durations"], document["order"]) == pytest.approx(total, rel=1e-12)
        assert simulate(graph, durations).simulated_s == total


def test_as_a_program(tmp_path: Path) -> None:
    graph = event_graph("1f1b", 3, 1, 5, "exchange")
    durations = random_durations(graph, 2, np.random.default_rng(5))
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"durations": as_json(durations), "order": execution_order(graph)}))
    script = Path(__file__).with_name("recompute.py")
    run = subprocess.run([sys.executable, str(script), str(file)], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(simulated_s(graph, durations), rel=1e-12)
