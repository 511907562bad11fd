"""The commands as a launcher starts them, and a ring that really sums, over this machine's loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Placement, Plan
from tests.instance_cases import configuration, instance_data

pytestmark = pytest.mark.usefixtures("torch_installed")


def launched(
    words: list[str], folder: Path, world_size: int, nodes: list[str]
) -> list[subprocess.Popen[str]]:
    """One process per rank with Open MPI's variables."""
    processes = []
    for rank in range(world_size):
        variables = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(world_size),
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "PIPETTE_NODE_NAME": nodes[rank],
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PIPETTE_NO_NUMBA": "1",
        }
        options = ["--rendezvous", f"file://{folder}/store", "--device", "cpu"]
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "pipette_milp", *words, *options],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def outcomes(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    found = []
    for process in processes:
        out, err = process.communicate(timeout=180)
        found.append((process.returncode, out, err))
    return found


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    value = instance_data({"cluster/nodes/0/count": 2, "cluster/nodes/0/gpus": 1})
    (tmp_path / "instance.json").write_text(json.dumps(value))
    plan = Plan(configuration=configuration((3, 3)), placement=Placement(gpu_of_rank=(1, 0)))
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    return {"instance": str(tmp_path / "instance.json"), "plan": str(tmp_path / "plan.json")}


def test_replay_as_a_launcher_starts_it(tmp_path: Path, files: dict[str, Any]) -> None:
    words = ["replay", files["instance"], files["plan"], "--json", "--iterations", "2"]
    trace = tmp_path / "trace.json"
    first, second = outcomes(launched([*words, "--trace", str(trace)], tmp_path, 2, ["node-000", "node-001"]))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert second[1] == ""
    report = json.loads(first[1])
    assert report["instance_sha256"] == load_instance(files["instance"]).sha256()
    assert report["transport"] == "gloo"
    assert len(report["iterations_s"]) == 2
    # never faster than its tasks, whatever the machine does beside
    assert report["measured_s"] > max(row["simulated"]["compute_s"] for row in report["stages"])
    assert {link["from"] for link in report["links"]} == {"node-000", "node-001"}
    names = {event.get("args", {}).get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"simulated: stage 1", "measured: stage 1"} <= names


@pytest.mark.slow
def test_measure_network_as_a_launcher_starts_it(tmp_path: Path, files: dict[str, Any]) -> None:
    merged = tmp_path / "merged.json"
    words = ["measure", "network", files["instance"], "-o", str(tmp_path / "network.json")]
    words += ["--merged", str(merged), "--repeats", "1", "--largest", "1 MiB"]
    first, second = outcomes(launched(words, tmp_path, 2, ["node-001", "node-000"]))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    document = json.loads((tmp_path / "network.json").read_text())
    assert document["nodes"] == ["node-001", "node-000"]
    found = load_instance(str(merged)).cluster.network.inter_node
    assert found is not None
    assert found.source == "measured"
    written = json.loads(merged.read_text())["cluster"]["network"]["inter_node"]["bandwidth"]["values"]
    measured = document["network"]["inter_node"]["bandwidth"]["values"]
    assert written[0][1] == measured[1][0]  # in the instance's order of nodes


RING = """
import os, sys
import torch, torch.distributed
from pipette_milp.measure.launch_environment import LaunchEnvironment
from pipette_milp.measure.program import RingWork
from pipette_milp.measure.ring_order import ring_channels
from pipette_milp.measure.rings import RingCollective
from pipette_milp.measure.session import open_session
from pipette_milp.measure.transport import Transport

def rank(number):
    environment = LaunchEnvironment(number, 4, 0, f"n{number // 2}", "file://" + sys.argv[1], "test")
    with open_session(environment, 60.0, device="cpu") as session:
        channels = ring_channels([0, 0, 1, 1], [0, 1, 2, 3])
        assert len(channels) == 2
        transport = Transport(session)
        for passes in (("reduce-scatter", "all-gather"), ("all-gather",)):
            ring = RingCollective(transport, RingWork(channels, 4 * 2 * 4 * 2 * 5, passes), 100)
            transport.connect(ring.edges, ["all"])
            for channel in ring.channels:
                channel.buffer += number + 1
            ring.run()
            for channel in ring.channels:
                if len(passes) == 2:
                    assert torch.all(channel.buffer == 1 + 2 + 3 + 4), channel.buffer
                else:  # chunk c comes from the member before it in the ring
                    ranks = [r for c in channels if c.ranks[channel.position] == number for r in c.ranks]
                    owners = [ranks[(chunk - 1) % 4] + 1 for chunk in range(4)]
                    assert channel.buffer[:, 0].tolist() == [o for o in owners for _ in range(2)]

children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rank(number)
            status = 0
        finally:
            os._exit(status)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_a_ring_by_hand_sums_and_gathers(tmp_path: Path) -> None:
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RING, str(tmp_path / "store")],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
