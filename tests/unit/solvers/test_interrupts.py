"""Ctrl-C, the end of a batch job and time limits: the best plan comes out in time, nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipette_milp.baselines import BASELINES
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.solvers import SOLVERS, solve
from pipette_milp.solvers.state import Progress
from pipette_milp.verify import verify
from tests.conftest import INSTANCES, REPOSITORY

LARGE = INSTANCES / "gpt-8.1b-16x8-a100-flat.json"
TINY = INSTANCES / "tiny-3x1-a100-flat.json"
WITHOUT_BOUND = ("greedy", "local-search", "annealing", *BASELINES)
SIGNAL_AFTER_S = 6.0
ANSWER_WITHIN_S = 2.0
START_S = 2.0
"""Start of Python with its libraries, on a busy machine; the limit counts from there."""


@pytest.mark.parametrize("solver", SOLVERS)
def test_interrupt_keeps_plan_and_bound(solver: str) -> None:
    instance = load_instance(TINY)
    seen: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        seen.append(progress)
        if progress.incumbent_s is not None:
            raise KeyboardInterrupt

    result = solve(instance, solver=solver, gap=0.0, threads=1, time_limit_s=60.0, listener=interrupt)
    assert result.termination == Termination.INTERRUPTED
    assert result.simulated_s is not None
    assert result.simulated_s == pytest.approx(seen[-1].incumbent_s)
    assert (result.lower_bound_s is None) == (solver in WITHOUT_BOUND)
    assert verify(instance, SolveResult.from_json(result.to_json())).failed == ()


def start_solve(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipette_milp", "solve", str(LARGE), "--json", "--gap", "0"]
    return subprocess.Popen(
        [*command, "--threads", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    """All processes below one, deepest last."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def processes_at_work(pid: int) -> list[int]:
    """The solver processes below a solve that has run for a while."""
    time.sleep(SIGNAL_AFTER_S)
    end = time.monotonic() + 20.0
    while not (found := children(pid)):
        assert time.monotonic() < end, "no solver process"
        time.sleep(0.2)
    time.sleep(0.5)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


needs_proc = pytest.mark.skipif(
    not os.path.exists(f"/proc/self/task/{os.getpid()}/children"), reason="looks for processes in /proc"
)


@needs_proc
@pytest.mark.parametrize(
    ("solver", "number"),
    [
        ("auto", signal.SIGINT),
        ("auto", signal.SIGTERM),
        pytest.param("joint-milp", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_answered_with_plan_and_bound(solver: str, number: signal.Signals) -> None:
    process = start_solve("--solver", solver)
    with process:
        below = processes_at_work(process.pid)
        process.send_signal(number)
        start = time.monotonic()
        out, err = process.communicate(timeout=30.0)
        took_s = time.monotonic() - start
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["termination"] == "INTERRUPTED"
    assert result["plan"] is not None
    assert 0 < result["lower_bound_s"] <= result["simulated_s"]
    assert [pid for pid in below if alive(pid)] == []
    assert took_s <= ANSWER_WITHIN_S


@needs_proc
@pytest.mark.slow
def test_a_signal_to_the_whole_process_group_as_a_terminal_sends_it() -> None:
    with start_solve() as process:
        below = processes_at_work(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30.0)
    assert process.returncode == 0, err
    assert json.loads(out)["plan"] is not None
    assert [pid for pid in below if alive(pid)] == []


@needs_proc
@pytest.mark.parametrize("solver", ["auto", pytest.param("joint-cpsat", marks=pytest.mark.slow)])
def test_time_limit_from_the_command_line(solver: str) -> None:
    limit_s = 5.0
    start = time.monotonic()
    with start_solve("--solver", solver, "--time-limit", str(limit_s)) as process:
        out, err = process.communicate(timeout=60.0)
    took_s = time.monotonic() - start
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["termination"] == "LIMIT"
    assert result["plan"] is not None
    assert took_s <= 1.05 * limit_s + 2.0 + START_S
