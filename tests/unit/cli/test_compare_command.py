from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipette_milp.experiments.log import read_records
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Plan
from tests.conftest import INSTANCES, REPOSITORY

from .conftest import Run

TINY = INSTANCES / "tiny-3x1-a100-flat.json"
OTHER = INSTANCES / "tiny-2x2-a100-nominal.json"
SHORT = ("--solvers", "greedy,local-search", "--iteration-limit", "12", "--jobs", "1", "--no-pictures")


def outcomes(directory: Path) -> dict[str, object]:
    """What was found, without times: plans and seconds by run."""
    records = read_records(directory / "runs.jsonl")
    return {record["key"]: (record["simulated_s"], record["plan"]) for record in records}


def test_tables_and_records(run: Run, tmp_path: Path) -> None:
    outcome = run("compare", TINY, OTHER, *SHORT, "--seeds", "0-2", "-o", tmp_path)
    assert outcome.code == 0
    assert "[12/12]" in outcome.err
    assert "| local-search | 6 " in outcome.out
    text = (tmp_path / "comparison.md").read_text()
    assert "12 runs" in text
    assert "tiny-3x1-a100-flat" in text
    with open(tmp_path / "runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert {row["solver"] for row in rows} == {"greedy", "local-search"}
    for row in rows:
        assert row["status"] == "done"
        assert float(row["simulated_s"]) > 0
    with open(tmp_path / "by_instance.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == 4


def test_plans_in_the_log_simulate_to_what_it_says(run: Run, tmp_path: Path) -> None:
    from pipette_milp import simulate

    run("compare", TINY, *SHORT, "-o", tmp_path)
    for record in read_records(tmp_path / "runs.jsonl"):
        plan = Plan.model_validate(record["plan"])
        again = simulate(load_instance(TINY), plan)["simulated_s"]
        assert again == pytest.approx(record["simulated_s"], rel=1e-12)
        assert record["instance_sha256"] == load_instance(TINY).sha256()
        assert record["trace"][-1][1] == record["simulated_s"]


def test_the_same_command_again_does_nothing_new(run: Run, tmp_path: Path) -> None:
    run("compare", TINY, *SHORT, "--seeds", "0", "-o", tmp_path)
    before = (tmp_path / "runs.jsonl").read_bytes()
    outcome = run("compare", TINY, *SHORT, "--seeds", "0,1", "-o", tmp_path)
    assert "[3/4]" in outcome.err
    assert "[2/4]" not in outcome.err
    assert (tmp_path / "runs.jsonl").read_bytes().startswith(before)
    outcome = run("compare", TINY, *SHORT, "--seeds", "0", "-o", tmp_path)
    assert "2 runs" in (tmp_path / "comparison.md").read_text(), "tables are about the runs asked for"


def test_json_is_one_document(run: Run, tmp_path: Path) -> None:
    outcome = run("compare", TINY, *SHORT, "--json", "-o", tmp_path)
    records = json.loads(outcome.out)
    assert [record["solver"] for record in records] == ["greedy", "local-search"]
    quiet = run("compare", TINY, *SHORT, "--quiet", "-o", tmp_path)
    assert quiet.out == ""
    assert quiet.err == ""


def test_pictures(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("compare", TINY, "--solvers", "auto,greedy", "--jobs", "1", "-o", tmp_path)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert {"performance_profile.svg", "time_to_target.svg", "time_to_proof.svg"} <= drawn
    assert "wins_and_losses.svg" in drawn
    assert any(name.startswith("gap_over_time_tiny-3x1") for name in drawn)
    assert not list(tmp_path.glob("*.part"))


def test_a_solver_that_refuses_is_noted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipette_milp.solvers.exhaustive.MOST_CANDIDATES", 10)
    words = ("--iteration-limit", "5", "--jobs", "1", "--no-pictures", "-o", tmp_path)
    outcome = run("compare", TINY, "--solvers", "exhaustive", *words)
    assert outcome.code == 2
    assert "refused: exhaustive would evaluate" in outcome.out
    outcome = run("compare", TINY, "--solvers", "exhaustive,greedy", *words)
    assert outcome.code == 0
    assert "refused" in (tmp_path / "comparison.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--solvers", "simplex"), "there is no solver 'simplex'"),
        (("--solvers", ""), "no solvers"),
        (("--solvers", "greedy,greedy"), "the same of the solvers is named twice"),
        (("--seeds", "a"), "expected numbers such as 0,1,2 or 0-9"),
        (("--seeds", "3-1"), "no seeds"),
        (("--seeds", "-1"), "expected numbers such as"),
        (("--seeds", "1,1"), "the same of the seeds is named twice"),
        (("--time-limit", "0"), "--time-limit: expected more than 0"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--gap", "1.5"), "--gap"),
        (("--gap", "nan"), "--gap"),
        (("--assume-missing", "fast"), "--assume-missing"),
    ],
)
def test_bad_input(run: Run, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    outcome = run("compare", TINY, *words, "-o", tmp_path / "new")
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [("--jobs", "0"), ("--threads", "0"), ("--iteration-limit", "0")])
def test_numbers_out_of_range(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert run("compare", TINY, *words, "-o", tmp_path).code == 2


def test_the_same_instance_twice(run: Run, tmp_path: Path) -> None:
    outcome = run("compare", TINY, TINY, *SHORT, "-o", tmp_path / "new")
    assert outcome.code == 2
    assert "the same of the instances is named twice" in outcome.err


def test_an_instance_that_is_missing_and_a_directory_that_is_a_file(run: Run, tmp_path: Path) -> None:
    assert run("compare", tmp_path / "none.json", "-o", tmp_path).code == 2
    (tmp_path / "file").write_text("")
    outcome = run("compare", TINY, *SHORT, "-o", tmp_path / "file")
    assert outcome.code == 2
    assert "cannot be written" in outcome.err


def test_a_damaged_log_names_the_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("not json\n")
    outcome = run("compare", TINY, *SHORT, "-o", tmp_path)
    assert outcome.code == 2
    assert "line 1" in outcome.err
    assert (tmp_path / "runs.jsonl").read_text() == "not json\n"


def command(directory: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "pipette_milp",
        "compare",
        str(TINY),
        str(OTHER),
        *words,
        "-o",
        str(directory),
    ]


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    words = (*SHORT[2:], "--solvers", "local-search", "--seeds", "0-200")
    process = subprocess.Popen(
        command(tmp_path, *words), cwd=REPOSITORY, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "[2/" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in err
    finished = len(read_records(tmp_path / "runs.jsonl"))
    assert 2 <= finished < 402
    assert f"{finished} runs" in (tmp_path / "comparison.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_kill_at_ten_random_moments_equals_an_uninterrupted_comparison(tmp_path: Path, jobs: str) -> None:
    """From the first line of Python on: at start, in a run, between runs."""
    if jobs != "1":
        pytest.importorskip("joblib")
    words = (
        "--solvers", "greedy,local-search,annealing", "--seeds", "0-19", "--iteration-limit", "40",
        "--jobs", jobs, "--no-pictures", "--quiet",
    )  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    start = time.monotonic()
    subprocess.run(command(whole, *words), cwd=REPOSITORY, env=environment, check=True)
    took_s = time.monotonic() - start
    rng, kills = random.Random(4), 0
    log = killed / "runs.jsonl"
    while kills < 10:
        before = log.read_bytes() if log.exists() else b""
        process = subprocess.Popen(command(killed, *words), cwd=REPOSITORY, env=environment)
        time.sleep(rng.uniform(0.05, 0.5 * took_s) if kills % 2 else rng.uniform(1.0, 3.0))
        if process.poll() is not None:  # the machine was quick: everything was done
            assert process.returncode == 0
            break
        process.kill()
        process.wait()
        kills += 1
        kept = before[: before.rfind(b"\n") + 1]
        assert (log.read_bytes() if log.exists() else b"").startswith(kept)
    subprocess.run(command(killed, *words), cwd=REPOSITORY, env=environment, check=True)
    assert outcomes(killed) == outcomes(whole)
    assert kills >= 3
