"""What all commands share: errors into messages and exit codes, and who may write to standard output.

The answer goes to standard output, progress and warnings to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pipette_milp.errors import ExitCode, InputError, PipetteError

Command = TypeVar("Command", bound=Callable[..., Any])

debug = False
"""Set by ``--debug``: errors keep their traceback."""
constants: str | None = None
"""Set by ``--constants``: file with the constants of the cost model, for every command that estimates."""


def command(function: Command) -> Command:
    """Turns what a command raises into one message on standard error and a fixed exit code."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            with _termination_is_an_interrupt():
                function(*arguments, **options)
                sys.stdout.flush()
        except PipetteError as error:
            if debug:
                raise
            tell(f"error: {error}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            tell("interrupted, nothing to show")
            sys.exit(ExitCode.INTERRUPTED)
        except BrokenPipeError:
            # The reader is gone (`| head`). Python would complain once more while it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(ExitCode.INTERNAL)
        except Exception as error:
            if debug:
                raise
            tell(f"internal error: {type(error).__name__}: {error}")
            tell("This is a fault of pipette-milp; the same command with --debug shows the traceback.")
            sys.exit(ExitCode.INTERNAL)

    return run  # type: ignore[return-value]


@contextlib.contextmanager
def _termination_is_an_interrupt() -> Iterator[None]:
    """SIGTERM, which batch systems send at the end of a job, saves the incumbent like Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread: the caller's handlers stay
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tell(message: str) -> None:
    """One message on standard error."""
    print(message, file=sys.stderr, flush=True)


def warn(messages: list[str] | tuple[str, ...]) -> None:
    """Warnings on standard error."""
    for message in messages:
        tell(f"warning: {message}")


def check_writable(path: str | None) -> None:
    """Refuses a place that cannot be written to before the work starts.

    Raises:
        InputError: no such directory, or no permission.
    """
    if path is None or path == "-":
        return
    target = Path(path)
    if target.is_dir():
        raise InputError("is a directory, expected a file name", source=path)
    if not target.parent.is_dir():
        raise InputError("cannot be written: no such directory", source=path)
    if not os.access(target.parent, os.W_OK):
        raise InputError("cannot be written: permission denied", source=path)


@contextlib.contextmanager
def answer_only(*, quiet: bool = False) -> Iterator[None]:
    """Sends what libraries print on standard output (HiGHS prints a banner) to standard error or, if
    ``quiet``, nowhere.

    Works on the file descriptor too, because not all writers are Python.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        try:
            os.dup2(nowhere.fileno() if quiet else 2, 1)
            with contextlib.redirect_stdout(nowhere if quiet else sys.stderr):
                yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)


class Counted:
    """A line on standard error every few seconds, from two seconds on.

    Args:
        text: of the line, with ``{done}`` and ``{total}``.
    """

    def __init__(self, text: str) -> None:
        self.text, self.next_s = text, time.monotonic() + 2.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self.next_s:
            self.next_s = now + 5.0
            tell(self.text.format(done=done, total=total))
