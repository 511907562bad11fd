"""Progress of a solve on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol

PLAIN_INTERVAL_S = 1.0
"""Plain lines come at most this often, unless the incumbent improves."""


class Event(Protocol):
    """What a solver tells its listener."""

    @property
    def time_s(self) -> float: ...
    @property
    def incumbent_s(self) -> float | None: ...
    @property
    def bound_s(self) -> float | None: ...
    @property
    def message(self) -> str: ...


def describe(event: Event) -> str:
    """One line: time, incumbent, bound, gap, message."""
    parts = [f"{event.time_s:7.1f} s"]
    parts.append(f"incumbent {event.incumbent_s:9.4f} s" if event.incumbent_s is not None else "no plan yet")
    if event.bound_s is not None:
        parts.append(f"bound {event.bound_s:9.4f} s")
        if event.incumbent_s:
            parts.append(f"gap {max(0.0, 1 - event.bound_s / event.incumbent_s):7.3%}")
    if event.message:
        parts.append(event.message)
    return "  ".join(parts)


class Progress:
    """A listener to be handed to a solver; shows nothing when not enabled."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._live: Any = None
        self._last_time_s = -PLAIN_INTERVAL_S
        self._last_shown: tuple[float | None, float | None] = (None, None)

    def __enter__(self) -> Progress:
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        if not self._enabled:
            return
        if self._live is not None:
            self._live.update(self._table(event))
            return
        shown = (event.incumbent_s, event.bound_s)
        better = event.incumbent_s != self._last_shown[0]
        due = event.time_s - self._last_time_s >= PLAIN_INTERVAL_S
        if better or (due and (shown != self._last_shown or event.message)):
            print(describe(event), file=sys.stderr, flush=True)
            self._last_time_s, self._last_shown = event.time_s, shown

    @staticmethod
    def _table(event: Event) -> Any:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2))
        for title in ("time", "incumbent", "bound", "gap", ""):
            table.add_column(title, justify="left" if not title else "right")
        gap = ""
        if event.incumbent_s and event.bound_s is not None:
            gap = f"{max(0.0, 1 - event.bound_s / event.incumbent_s):.3%}"
        table.add_row(
            f"{event.time_s:.1f} s",
            "-" if event.incumbent_s is None else f"{event.incumbent_s:.4f} s",
            "-" if event.bound_s is None else f"{event.bound_s:.4f} s",
            gap,
            event.message,
        )
        return table
