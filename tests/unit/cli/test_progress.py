from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pipette_milp.cli.progress import PLAIN_INTERVAL_S, Progress, describe


def event(
    time_s: float, incumbent_s: float | None = None, bound_s: float | None = None, message: str = ""
) -> Any:
    return SimpleNamespace(time_s=time_s, incumbent_s=incumbent_s, bound_s=bound_s, message=message)


def test_a_line_says_what_is_known() -> None:
    assert describe(event(1.0)) == "    1.0 s  no plan yet"
    assert describe(event(2.0, 4.0, 3.0, "greedy")).split() == (
        ["2.0", "s", "incumbent", "4.0000", "s", "bound", "3.0000", "s", "gap", "25.000%", "greedy"]
    )


def test_plain_lines_come_on_improvement_or_after_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress(event(0.0, 4.0))
        progress(event(0.1, 4.0, 1.0))  # only the bound, too soon
        progress(event(0.2, 3.9, 1.0))
        progress(event(0.3 + PLAIN_INTERVAL_S, 3.9, 2.0))
        progress(event(0.4 + 2 * PLAIN_INTERVAL_S, 3.9, 2.0))  # nothing new
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split()[0] for line in captured.err.splitlines()] == ["0.0", "0.2", "1.3"]


def test_disabled_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(enabled=False) as progress:
        progress(event(0.0, 4.0))
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress(event(1.0, 4.0, 3.0, "branching"))
    assert "4.0000 s" in terminal.getvalue()
    assert "branching" in terminal.getvalue()
