"""One Ctrl-C ends a search; those that follow do not take its answer away.

``timeout`` and batch systems send their signal twice, once to the process and once to its group, and a user
presses Ctrl-C again when nothing seems to happen. The first one raises; the second would come while workers
are ended or the answer is put together and written, which takes a second or two with thousands of nodes.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

PATIENCE_S = 10.0
"""How long after the first one a further interrupt is heard again: then something hangs."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class OneInterrupt:
    """Counts the interrupts of a search."""

    def __init__(self) -> None:
        self._done_at: float | None = None

    def done(self) -> None:
        """The search is over: what comes now has nothing to stop."""
        if self._done_at is None:
            self._done_at = time.monotonic()

    def heard(self) -> bool:
        """Whether an interrupt that comes now is to be acted on."""
        if self._done_at is not None and time.monotonic() - self._done_at < PATIENCE_S:
            return False
        self._done_at = time.monotonic()
        return True


@contextlib.contextmanager
def one_interrupt() -> Iterator[OneInterrupt]:
    """Hands the first of the interrupts that come inside to the handlers of now, later ones to nobody.

    Signals without a handler in Python keep what the system does with them. Outside the main thread nothing
    changes.
    """
    counted = OneInterrupt()
    replaced = {}
    try:
        for number in SIGNALS:
            before = signal.getsignal(number)
            if not callable(before):
                continue

            def handle(received: int, frame: FrameType | None, before: signal._HANDLER = before) -> None:
                if counted.heard() and callable(before):
                    before(received, frame)

            try:
                signal.signal(number, handle)
            except ValueError:  # not the main thread
                break
            replaced[number] = before
        yield counted
    finally:
        for number, before in replaced.items():
            signal.signal(number, before)
