from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.errors import InputError
from pipette_milp.experiments.engine import LOCAL_CLUSTER, Workers, run_missing
from pipette_milp.experiments.log import RunLog, read_records
from tests.conftest import REPOSITORY

from .jobs import Nap

HERE = "tests.unit.experiments.jobs"


def results(path: Path) -> set[tuple[str, int]]:
    """What the runs of a log answered."""
    return {(record["key"], record["square"]) for record in read_records(path)}


def run_here(path: Path, jobs: Sequence[Nap], workers: Workers | None = None) -> list[tuple[int, int]]:
    """Do them; (finished, total) after each run."""
    told: list[tuple[int, int]] = []
    with RunLog(path) as log:
        run_missing(jobs, log, workers, lambda record, finished, total: told.append((finished, total)))
    return told


def test_only_missing_runs_are_done(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs = [Nap(number) for number in range(5)]
    assert run_here(path, jobs[:2]) == [(1, 2), (2, 2)]
    before = path.read_bytes()
    assert run_here(path, jobs) == [(3, 5), (4, 5), (5, 5)]
    assert path.read_bytes().startswith(before)
    assert results(path) == {(f"nap {n}", n * n) for n in range(5)}
    assert run_here(path, jobs) == []


def test_a_record_says_where_and_how_long(tmp_path: Path) -> None:
    run_here(tmp_path / "runs.jsonl", [Nap(3, 0.05)])
    (record,) = read_records(tmp_path / "runs.jsonl")
    assert record["status"] == "done"
    assert record["number"] == 3
    assert record["wall_s"] >= 0.05
    assert 0 <= record["cpu_s"] <= record["wall_s"] + 0.05
    environment = record["environment"]
    assert environment["python"] == sys.version.split()[0]
    assert environment["versions"]["numpy"]
    assert environment["cores"] == os.cpu_count()


def test_refused_and_failed_runs_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    jobs = [Nap(0, fault="input"), Nap(1, fault="crash"), Nap(2)]
    run_here(path, jobs)
    records = read_records(path)
    assert [record["status"] for record in records] == ["refused", "failed", "done"]
    assert records[0]["error"] == "too many plans"
    assert records[1]["error"] == "ZeroDivisionError: one by nothing"
    assert run_here(path, jobs) == []


@pytest.mark.parametrize("fault", ["interrupt", "interrupted"])
def test_an_interrupted_run_is_not_finished(tmp_path: Path, fault: str) -> None:
    """Whether the interrupt comes out of the run, or the run answers early because of it."""
    path = tmp_path / "runs.jsonl"
    with pytest.raises(KeyboardInterrupt):
        run_here(path, [Nap(0), Nap(1, fault=fault), Nap(2)])
    assert results(path) == {("nap 0", 0)}
    run_here(path, [Nap(0), Nap(1), Nap(2)])
    assert results(path) == {("nap 0", 0), ("nap 1", 1), ("nap 2", 4)}


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="asked for twice"):
        run_here(tmp_path / "runs.jsonl", [Nap(1), Nap(1)])


def start(path: Path, number: int, sleep_s: float, processes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", HERE, str(path), str(number), str(sleep_s), str(processes)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_kill_at_ten_random_moments_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """What was told finished before a kill is in the log after it, and is not done again."""
    path, rng, number = tmp_path / "runs.jsonl", random.Random(8), 60
    processes_of: dict[str, int] = {}
    kills = 0
    while kills < 10:
        process = start(path, number, 0.015, 1)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.random() * 0.06)
        process.kill()
        told = process.stdout.read().split()
        process.wait()
        assert process.returncode == -9, "ended before it was killed: make the list of runs longer"
        kills += 1
        whole = [line for line in path.read_bytes().split(b"\n") if line]
        if not path.read_bytes().endswith(b"\n"):
            whole.pop()
        assert len(whole) >= (int(told[-1]) if told else 1)
        for record in read_records(path):
            assert processes_of.setdefault(record["key"], record["process"]) == record["process"]
    process = start(path, number, 0.0, 1)
    process.communicate()
    assert process.returncode == 0
    assert results(path) == {(f"nap {n}", n * n) for n in range(number)}
    for record in read_records(path):
        assert processes_of.get(record["key"], record["process"]) == record["process"]


def test_runs_in_local_processes(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    path = tmp_path / "runs.jsonl"
    told = run_here(path, [Nap(number) for number in range(6)], Workers(2))
    assert told == [(n, 6) for n in range(1, 7)]
    assert results(path) == {(f"nap {n}", n * n) for n in range(6)}
    assert os.getpid() not in {record["process"] for record in read_records(path)}


def alive(process: int) -> bool:
    """Not ended, and not only waiting to be buried."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """Else a killed comparison would compute on beside the one that resumes it."""
    pytest.importorskip("joblib")
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are looked up in /proc")
    path = tmp_path / "runs.jsonl"
    process = start(path, 40, 0.3, 2)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    workers = {record["process"] for record in read_records(path)}
    assert all(alive(worker) for worker in workers)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5.0
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(worker) for worker in workers)


def test_without_joblib_several_processes_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(InputError, match=r"pipette_milp\[compare\]"):
        run_here(tmp_path / "runs.jsonl", [Nap(1)], Workers(2))
    assert len(run_here(tmp_path / "runs.jsonl", [Nap(1)], Workers(1))) == 1


def test_without_dask_a_cluster_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pipette_milp\[dask\]"):
        run_here(tmp_path / "runs.jsonl", [Nap(1)], Workers(2, LOCAL_CLUSTER))


def test_runs_on_a_local_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    pytest.importorskip("distributed", reason="extra dask is not installed")
    path = tmp_path / "runs.jsonl"
    run_here(path, [Nap(number) for number in range(6)], Workers(2, LOCAL_CLUSTER))
    records: list[dict[str, Any]] = read_records(path)
    assert results(path) == {(f"nap {n}", n * n) for n in range(6)}
    assert os.getpid() not in {record["process"] for record in records}


def test_a_scheduler_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("joblib")
    distributed = pytest.importorskip("distributed", reason="extra dask is not installed")

    def refuse(address: str, timeout: str) -> None:
        raise OSError(f"timed out trying to connect to {address}")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        run_here(tmp_path / "runs.jsonl", [Nap(1)], Workers(2, "tcp://127.0.0.1:1"))
