"""Solver calls in a child process that can be ended at any moment.

Presolve and root relaxations of MILP and CP-SAT solvers poll neither limits nor signals, and a crash in
one must not end the search. The child streams plans and bounds while it works, so ending it costs nothing
that was found. It is one process for many calls: importing Pyomo or OR-Tools takes about a second.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import IO, Any

from pipette_milp.formulations.problem import JointProblem
from pipette_milp.solvers.solver_call import Listener, Progress, SolveOptions, SolveReport

HEADER = struct.Struct(">Q")
POLL_S = 0.05
"""How often a waiting call looks at deadline and stop request."""
READY = "ready"
"""What the child sends when it has started and after each report: the next request may come."""
GRACE_S = 0.5
"""What a solver gets beyond its time limit to end by itself."""


def write_frame(stream: IO[bytes], message: Any) -> None:
    """One pickled message with its length in front."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """The next message.

    Raises
    ------
    EOFError
        The other side has gone.
    """
    return pickle.loads(_exactly(stream, HEADER.unpack(_exactly(stream, HEADER.size))[0]))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if data is None or len(data) < size:
        raise EOFError
    return data


class SolverProcess:
    """A child process that solves one problem at a time. Use as a context manager."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __enter__(self) -> SolverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int | None:
        """Of the child, None where there is none."""
        return None if self._child is None else self._child.pid

    def solve(
        self,
        problem: JointProblem,
        options: SolveOptions,
        listener: Listener,
        stop: Callable[[], bool] = lambda: False,
    ) -> SolveReport:
        """Solve; never raises for a solver's failure, never runs past the time limit plus ``GRACE_S``.

        A child that is ended early, by ``stop`` or by its deadline, yields "unknown" with the last bound sent
        (its plans went to the listener); a child that dies yields "error".
        """
        deadline = time.monotonic() + options.time_limit_s + GRACE_S
        latest = _Latest(listener)
        try:
            requests = self._start()
            while True:
                message = self._receive(deadline, stop)
                if message is None:
                    self.kill()
                    return latest.report("ended before it was done")
                if message == READY:
                    left_s = max(0.0, deadline - GRACE_S - time.monotonic())
                    write_frame(requests, (problem, replace(options, time_limit_s=left_s)))
                elif isinstance(message, Progress):
                    latest.update(message)
                elif isinstance(message, SolveReport):
                    return message
                else:
                    return self._died(latest)
        except BrokenPipeError:
            return self._died(latest)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End the child now; the next call starts another."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _start(self) -> IO[bytes]:
        """Where requests go, of the child there is or of a new one."""
        if self._child is not None and self._child.poll() is None and self._child.stdin is not None:
            return self._child.stdin
        self.kill()
        self._messages = queue.SimpleQueue()
        # a session of its own: Ctrl-C reaches the parent only, which decides what becomes of the call
        child = subprocess.Popen(
            [sys.executable, "-m", "pipette_milp.solvers.solver_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if child.stdin is None or child.stdout is None:
            raise OSError("a solver process without pipes")
        self._child = child
        threading.Thread(target=_pump, args=(child.stdout, self._messages), daemon=True).start()
        return child.stdin

    def _receive(self, deadline: float, stop: Callable[[], bool]) -> Any:
        """The next message, None at the deadline or on a stop request."""
        while True:
            left = deadline - time.monotonic()
            if stop() or left <= 0:
                return None
            with contextlib.suppress(queue.Empty):
                return self._messages.get(timeout=min(POLL_S, left))

    def _died(self, latest: _Latest) -> SolveReport:
        child = self._child
        code = None if child is None else child.wait()
        self.kill()
        message = f"solver process ended with exit code {code}"
        return SolveReport("error", bound_s=latest.bound_s, message=message)


class _Latest:
    """The last bound a call sent; plans go to the listener, which simulates them."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.bound_s: float | None = None

    def update(self, progress: Progress) -> None:
        if progress.bound_s is not None:
            self.bound_s = progress.bound_s if self.bound_s is None else max(self.bound_s, progress.bound_s)
        self.listener(progress)

    def report(self, message: str) -> SolveReport:
        return SolveReport("unknown", bound_s=self.bound_s, message=message)


def _pump(stream: IO[bytes], messages: queue.SimpleQueue[Any]) -> None:
    """Frames of the child into the queue until it goes; the end is a message too."""
    try:
        while True:
            messages.put(read_frame(stream))
    except Exception as error:  # a child that dies can leave any broken frame behind
        messages.put(error)
