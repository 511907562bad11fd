"""Emulated clusters of a few nodes: links found, plans replayed, failures told, nothing left behind.

Needs root on Linux and PyTorch, else skipped with the reason. Limits are those of a busy machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.measure.emulation.cluster import EmulatedCluster
from pipette_milp.measure.emulation.namespaces import EmulationError
from pipette_milp.measure.emulation.shaping import EmulatedNetwork
from pipette_milp.measure.study.clusters import study_instance
from pipette_milp.plans import placement_of_cells
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan, split_stages

pytestmark = pytest.mark.usefixtures("can_emulate")

MBIT = 1e6 / 8
RATES = np.array([[0, 120, 50], [80, 0, 100], [60, 110, 0]]) * MBIT
NAMES = ["node-000", "node-001", "node-002"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmulatedCluster]:
    with EmulatedCluster(EmulatedNetwork.of(RATES), timeout_s=20.0) as running:
        yield running


ATTEMPTS = 4
LINKS = ~np.eye(3, dtype=bool)


@pytest.fixture(scope="module")
def measured(cluster: EmulatedCluster) -> dict[str, Any]:
    """The measurement with the best figure of each link: another program on this machine makes links look
    slower, never faster."""
    best = np.zeros((3, 3))
    document: dict[str, Any] = {}
    for _ in range(ATTEMPTS):
        document = cluster.run({"job": "measure network", "options": {"target_s": 0.1}}, timeout_s=120.0)
        assert document["failed"] == []
        best = np.fmax(best, np.array(document["network"]["inter_node"]["bandwidth"]["values"], dtype=float))
        if (best[LINKS] > 0.94 * cluster.network.goodput_bytes_per_s[LINKS]).all():
            break
    values = [[None if a == b else best[a, b] for b in range(3)] for a in range(3)]
    document["network"]["inter_node"]["bandwidth"]["values"] = values
    return document


@pytest.fixture(scope="module")
def job(measured: dict[str, Any]) -> Instance:
    network = {**measured["network"], "intra_node": {"bandwidth": 1e9, "latency": 1e-5}}
    return study_instance("test", network, NAMES, 1)


def plan_of(job: Instance, cells: list[list[int]], layers: tuple[int, ...], transfers: str) -> Plan:
    placed = np.array(cells)
    configuration = Configuration(
        pipeline=len(cells),
        tensor=1,
        data=len(cells[0]),
        micro_batch=1,
        num_micro_batches=12 // len(cells[0]),
        pipeline_transfers=transfers,
        stages=split_stages(layers),
    )
    costs = CostModel.of(job)
    return Plan(
        configuration=configuration, placement=placement_of_cells(costs.cluster, configuration, placed)
    )


def written(folder: Path, job: Instance, plan: Plan) -> dict[str, Any]:
    """A replay job on files."""
    (folder / "instance.json").write_text(json.dumps(job.model_dump(mode="json")))
    (folder / "plan.json").write_text(plan.model_dump_json())
    return {
        "job": "replay",
        "instance": str(folder / "instance.json"),
        "plan": str(folder / "plan.json"),
        "options": {"iterations": 1, "warm_up": 0},
    }


def test_measured_rates_are_the_shaped_ones(cluster: EmulatedCluster, measured: dict[str, Any]) -> None:
    values = np.array(measured["network"]["inter_node"]["bandwidth"]["values"], dtype=float)
    error = values[LINKS] / cluster.network.goodput_bytes_per_s[LINKS] - 1.0
    assert np.abs(error).max() < 0.08
    for node, name in enumerate(NAMES):
        total = measured["node_totals"][name]
        assert total["sends"] < 1.15 * cluster.network.egress_bytes_per_s[node]
        assert total["receives"] < 1.15 * cluster.network.ingress_bytes_per_s[node]
    json.dumps(measured)


@pytest.mark.parametrize(
    ("cells", "layers", "transfers"),
    [
        ([[2], [0], [1]], (3, 3, 2), "exchange"),
        ([[1], [2], [0]], (3, 3, 2), "async"),
        ([[0, 2, 1]], (8,), "exchange"),
    ],
)
def test_replays_take_what_was_simulated(
    cluster: EmulatedCluster,
    job: Instance,
    tmp_path: Path,
    cells: list[list[int]],
    layers: tuple[int, ...],
    transfers: str,
) -> None:
    report = cluster.run(written(tmp_path, job, plan_of(job, cells, layers, transfers)), timeout_s=120.0)
    assert abs(report["error"]) < 0.15
    assert report["instance_sha256"] == job.sha256()
    if len(cells) > 1:
        assert {link["from"] for link in report["links"]} <= set(NAMES)
        assert sum(link["seen"] for link in report["links"]) > 0
        slowest = max(report["links"], key=lambda link: link["simulated_s"])
        assert slowest["measured_s"] == pytest.approx(slowest["simulated_s"], rel=0.5)
    else:
        assert report["stages"][0]["measured"]["gradient_sync_s"] == pytest.approx(
            report["stages"][0]["simulated"]["gradient_sync_s"], rel=0.3
        )


def ranks_of(cluster: EmulatedCluster) -> list[int]:
    """Process ids of the ranks, in rank order."""
    process = cluster._process
    assert process is not None
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def gone(processes: list[int], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not any(_running(process) for process in processes):
            return True
        time.sleep(0.05)
    return False


def _running(process: int) -> bool:
    try:
        return " Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def kill(rank: int) -> None:
    os.kill(rank, signal.SIGKILL)


def stop(rank: int) -> None:
    """The rank and its link stand still, connections stay open."""
    os.kill(rank, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("harm", "limit_s"), [(kill, 15.0), pytest.param(stop, 25.0, marks=pytest.mark.slow)]
)
def test_a_rank_that_dies_or_stalls_is_told_by_all_and_all_end(
    job: Instance, tmp_path: Path, harm: Callable[[int], None], limit_s: float
) -> None:
    with EmulatedCluster(EmulatedNetwork.of(RATES), timeout_s=4.0) as doomed:
        ranks = ranks_of(doomed)
        assert len(ranks) == 3
        doomed._send(written(tmp_path, job, plan_of(job, [[2], [0], [1]], (3, 3, 2), "exchange")))
        time.sleep(1.5)
        harm(ranks[1])
        begin = time.monotonic()
        with pytest.raises(EmulationError) as caught:
            doomed._answer(60.0, "replay")
        assert time.monotonic() - begin < limit_s
    lines = str(caught.value).splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["rank", str(n), "on", f"node-00{n}:"] for n in range(3)]
    others = lines[0] + lines[2]
    assert "rank 1" in others or "node-001" in others or "closed" in others or "moved for 4 s" in others
    assert all("still silent" not in lines[n] for n in (0, 2))
    assert gone(ranks)


def test_nothing_is_left_when_the_driver_is_killed(tmp_path: Path) -> None:
    before = namespaces()
    script = (
        "import numpy as np, time\n"
        "from pipette_milp.measure.emulation.cluster import EmulatedCluster\n"
        "from pipette_milp.measure.emulation.shaping import EmulatedNetwork\n"
        "with EmulatedCluster(EmulatedNetwork.of(np.full((2, 2), 1e7))) as cluster:\n"
        "    print(cluster._process.pid, cluster._folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        host, folder = driver.stdout.readline().split()
        children = Path(f"/proc/{host}/task/{host}/children").read_text().split()
        assert len(children) == 2
        assert len(namespaces()) > len(before)
    finally:
        driver.kill()
        driver.wait()
    assert gone([int(host), *map(int, children)])
    assert not Path(folder).exists()
    assert namespaces() <= before


def namespaces() -> set[str]:
    """Network namespaces that some process is in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns" / "net"))
            except OSError:
                continue
    return found


def test_a_plan_for_other_ranks_is_refused_by_all(job: Instance, tmp_path: Path) -> None:
    with EmulatedCluster(EmulatedNetwork.of(np.full((2, 2), 1e7)), timeout_s=10.0) as small:
        plan = plan_of(job, [[2], [0], [1]], (3, 3, 2), "exchange")
        with pytest.raises(EmulationError) as caught:
            small.run(written(tmp_path, job, plan))
    assert str(caught.value).count("the plan has 3 ranks, the launcher started 2: start 3") == 2
