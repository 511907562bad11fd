"""Interrupts that come twice, or while the answer is put together."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.result import Termination
from pipette_milp.solvers import interrupts, run, solve
from pipette_milp.solvers.interrupts import one_interrupt
from pipette_milp.solvers.state import Progress
from tests.conftest import INSTANCES

TINY = INSTANCES / "tiny-3x1-a100-flat.json"


@pytest.fixture(autouse=True)
def _termination_raises() -> Any:
    """As the command line has it."""

    def raises(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, raises)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_raises_and_the_second_waits(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with one_interrupt():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_nothing_is_left_to_interrupt() -> None:
    with one_interrupt() as counted:
        counted.done()
        signal.raise_signal(signal.SIGINT)


def test_what_hangs_can_be_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_interrupt() as counted:
        counted.done()
        monkeypatch.setattr(interrupts, "PATIENCE_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with one_interrupt():
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, before)


def test_another_thread_leaves_handlers_alone() -> None:
    met: list[Any] = []

    def inside() -> None:
        with one_interrupt():
            met.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert met == [before]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_signal_while_the_answer_is_put_together(monkeypatch: pytest.MonkeyPatch, stopped: bool) -> None:
    """As `timeout` sends it: at the end of the limit, or twice."""
    assess = run.assess

    def interrupted(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return assess(*arguments)

    def stop(progress: Progress) -> None:
        if stopped and progress.incumbent_s is not None:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(run, "assess", interrupted)
    result = solve(load_instance(TINY), threads=1, listener=stop)
    assert result.plan is not None
    assert (result.termination == Termination.INTERRUPTED) == stopped
