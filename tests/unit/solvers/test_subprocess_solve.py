"""Solver calls in a child process: answers, limits, failures."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.formulations.problem import JointProblem
from pipette_milp.solvers.interval_cuts import interval_cuts
from pipette_milp.solvers.solver_call import Progress, SolveOptions
from pipette_milp.solvers.subprocess_solve import GRACE_S, SolverProcess
from tests.oracle.tiny_tables import SHAPES, exhaustive, random_tables
from tests.unit.solvers.hard_tables import hard_tables

BACKENDS = ("milp", "cpsat")
KILLED_WITHIN_S = 1.0


@pytest.fixture
def child() -> Iterator[SolverProcess]:
    with SolverProcess() as process:
        yield process


def easy() -> JointProblem:
    tables = replace(random_tables(np.random.default_rng(3), SHAPES[3]), memory_usable_bytes=1e3)
    return JointProblem((tables,), (1.0,), 0.1, tuple(interval_cuts(tables)))


def hard() -> JointProblem:
    tables = hard_tables()
    return JointProblem((tables,), (1.0,), 1.0, tuple(interval_cuts(tables)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_answers_and_stays_for_the_next_call(child: SolverProcess, backend: str) -> None:
    seen: list[Progress] = []
    first = child.solve(easy(), SolveOptions(backend), seen.append)  # type: ignore[arg-type]
    pid = child.pid
    second = child.solve(easy(), SolveOptions(backend), seen.append)  # type: ignore[arg-type]
    assert first.status == second.status == "optimal"
    assert first.claimed_s == pytest.approx(first.bound_s)
    assert child.pid == pid
    assert any(progress.plan is not None for progress in seen)
    optimum = exhaustive(easy().tables[0])
    assert optimum is not None
    assert first.bound_s is not None
    assert first.bound_s <= optimum.simulated_s * (1 + 1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stop_request_in_the_middle_of_a_solve(child: SolverProcess, backend: str) -> None:
    child.solve(easy(), SolveOptions(backend), lambda _: None)  # type: ignore[arg-type]
    pid = child.pid
    asked = threading.Event()
    timer = threading.Timer(2.0, asked.set)
    timer.start()
    began = time.monotonic()
    report = child.solve(hard(), SolveOptions(backend), lambda _: None, asked.is_set)  # type: ignore[arg-type]
    assert report.status == "unknown"
    assert time.monotonic() - began < 2.0 + KILLED_WITHIN_S
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_limit(child: SolverProcess, backend: str) -> None:
    began = time.monotonic()
    report = child.solve(hard(), SolveOptions(backend, time_limit_s=3.0), lambda _: None)  # type: ignore[arg-type]
    assert report.status in ("feasible", "unknown")
    assert time.monotonic() - began < 3.0 + GRACE_S + KILLED_WITHIN_S


def test_a_child_that_dies_is_reported_and_replaced(child: SolverProcess) -> None:
    child.solve(easy(), SolveOptions(), lambda _: None)
    pid = child.pid
    assert pid is not None
    timer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    timer.start()
    report = child.solve(hard(), SolveOptions(), lambda _: None)
    assert report.status == "error"
    assert "exit code -9" in report.message
    assert child.solve(easy(), SolveOptions(), lambda _: None).status == "optimal"


def test_a_solver_that_is_not_there_is_an_error_report(child: SolverProcess) -> None:
    report = child.solve(easy(), SolveOptions(solver_name="no-such-solver"), lambda _: None)
    assert report.status == "error"
    assert "no-such-solver" in report.message


def test_another_pyomo_solver(child: SolverProcess) -> None:
    """Pyomo's second HiGHS interface stands for any solver that Pyomo finds."""
    report = child.solve(easy(), SolveOptions(solver_name="highs"), lambda _: None)
    reference = child.solve(easy(), SolveOptions(), lambda _: None)
    assert report.status == "optimal", report.message
    assert report.claimed_s == pytest.approx(reference.claimed_s, rel=1e-6)
    assert report.bound_s == pytest.approx(reference.claimed_s, rel=1e-6)


def test_the_listener_s_own_error_ends_the_child(child: SolverProcess) -> None:
    def interrupted(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        child.solve(easy(), SolveOptions(), interrupted)
    assert child.pid is None


def test_nothing_of_the_child_reaches_stdout(child: SolverProcess, capfd: pytest.CaptureFixture[str]) -> None:
    child.solve(easy(), SolveOptions(), lambda _: None)
    assert capfd.readouterr().out == ""
