"""Worker processes: jobs that fail, die or are late, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers import workers
from pipette_milp.solvers.workers import Done, Job, Pool
from tests.conftest import REPOSITORY

WAIT_S = 20.0
"""Longest wait for an answer that must come."""
LONG_S = 60.0


# jobs; a family stands for the cost tables, which the pool only passes on


def double(family: int, *, plus: int) -> int:
    return 2 * family + plus


def fail(family: int) -> None:
    raise ValueError(f"family {family} cannot be bounded")


def sleep(family: int, *, seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def leave(family: int) -> None:
    os._exit(7)


def own_process(family: int) -> int:
    return os.getpid()


def job(function: Callable[..., Any], limit_s: float = LONG_S, **arguments: Any) -> Job:
    return Job(function, 0, arguments, limit_s, tag="test")


FAMILIES: list[CostTables] = [10, 20]  # type: ignore[list-item]


def answers(pool: Pool, count: int = 1) -> list[Done]:
    """The next answers."""
    done: list[Done] = []
    end = time.monotonic() + WAIT_S
    while len(done) < count and time.monotonic() < end:
        done += pool.poll(0.2)
    assert len(done) == count
    return done


def ask(pool: Pool, one: Job) -> Done:
    pool.submit(one)
    return answers(pool)[0]


def alive(pid: int) -> bool:
    """A process that runs; one that only waits to be collected does not count."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")


def test_answers_belong_to_their_jobs() -> None:
    with Pool(FAMILIES, 2) as pool:
        assert pool.idle == 2
        jobs = [Job(double, family, {"plus": family}, LONG_S) for family in (0, 1)]
        for one in jobs:
            pool.submit(one)
        assert pool.idle == 0
        assert pool.running == jobs
        done = {answer.job.family: answer for answer in answers(pool, 2)}
        assert [done[family].value for family in (0, 1)] == [20, 41]
        assert [done[family].error for family in (0, 1)] == [None, None]
        assert pool.idle == 2


def test_nothing_to_wait_for() -> None:
    with Pool(FAMILIES, 1) as pool:
        assert pool.poll(0.0) == []


def test_a_job_that_raises_is_reported() -> None:
    with Pool(FAMILIES, 1) as pool:
        done = ask(pool, job(fail))
        assert done.value is None
        assert done.error == "ValueError: family 10 cannot be bounded"
        assert ask(pool, job(double, plus=1)).value == 21


def test_a_process_that_ends_is_reported_and_replaced() -> None:
    with Pool(FAMILIES, 1) as pool:
        done = ask(pool, job(leave))
        assert done.value is None
        assert done.error == "the process died with exit code 7"
        assert ask(pool, job(double, plus=1)).value == 21


@pytest.mark.parametrize("others", [0, 1])
def test_a_process_killed_at_work_is_reported_and_replaced(others: int) -> None:
    with Pool(FAMILIES, 1 + others) as pool:
        first = ask(pool, job(own_process)).value
        pool.submit(job(sleep, seconds=LONG_S))
        os.kill(first, signal.SIGKILL)
        done = answers(pool)[0]
        assert done.error is not None
        assert "died with exit code -9" in done.error
        assert pool.idle == 1 + others
        assert ask(pool, job(double, plus=1)).value == 21


def test_a_process_killed_while_idle_is_replaced() -> None:
    """The system may kill a process for memory at any moment."""
    with Pool(FAMILIES, 1) as pool:
        first = ask(pool, job(own_process)).value
        os.kill(first, signal.SIGKILL)
        time.sleep(0.2)
        assert ask(pool, job(double, plus=1)).value == 21


def test_a_late_job_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_S", 0.2)
    with Pool(FAMILIES, 1) as pool:
        start = time.monotonic()
        done = ask(pool, job(sleep, limit_s=0.3, seconds=LONG_S))
        assert time.monotonic() - start < 5.0
        assert done.error == "killed: it did not keep its time limit"
        assert done.wall_s >= 0.5
        assert ask(pool, job(double, plus=1)).value == 21


def test_a_job_within_its_grace_is_no_late_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE_S", WAIT_S)
    with Pool(FAMILIES, 1) as pool:
        assert ask(pool, job(sleep, limit_s=0.05, seconds=0.3)).value == "slept"


@needs_proc
def test_no_process_is_left() -> None:
    with Pool(FAMILIES, 2) as pool:
        for _ in range(2):
            pool.submit(job(own_process))
        pids = [done.value for done in answers(pool, 2)]
        pool.submit(job(sleep, seconds=LONG_S))
        assert all(alive(pid) for pid in pids)
    assert gone(pids, 1.0)


@needs_proc
def test_no_process_is_left_after_an_error() -> None:
    pids = []

    def interrupted() -> None:
        with Pool(FAMILIES, 1) as pool:
            pids.append(ask(pool, job(own_process)).value)
            pool.submit(job(sleep, seconds=LONG_S))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(pids, 1.0)


@needs_proc
def test_no_process_outlives_a_killed_parent() -> None:
    """Idle workers see that nobody is at the other end any more."""
    code = (
        "import time\n"
        "from tests.unit.solvers.test_workers import FAMILIES, answers, job, own_process\n"
        "from pipette_milp.solvers.workers import Pool\n"
        "with Pool(FAMILIES, 2) as pool:\n"
        "    for _ in range(2):\n"
        "        pool.submit(job(own_process))\n"
        "    print(*[done.value for done in answers(pool, 2)], flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
        parent.wait()
        left = not gone(pids, 5.0)
        for pid in pids:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2
    assert not left
