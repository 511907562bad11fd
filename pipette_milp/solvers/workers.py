"""Worker processes: solver calls do not poll for limits or signals, so they run where they can be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from pipette_milp.cost.tables import CostTables

GRACE_S = 30.0
"""How long after its own time limit a job may still answer before its process is killed: HiGHS looks at the
clock rarely in some phases. The run's own limit is kept all the same: the pool ends its processes without
asking."""


@dataclass(frozen=True)
class Job:
    """``function(families[family], **arguments)`` in a worker; must be a module-level function."""

    function: Callable[..., Any]
    family: int
    arguments: dict[str, Any]
    time_limit_s: float
    tag: str = ""


@dataclass(frozen=True)
class Done:
    """A job's answer; ``error`` is set instead of ``value`` if it failed, died or was killed for being
    late."""

    job: Job
    value: Any
    error: str | None
    wall_s: float


class _Worker:
    def __init__(self, context: Any, families: list[CostTables]) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.connection, families), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Job | None = None
        self.since = 0.0

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Pool:
    """A few processes that share the families; a context manager that leaves none behind."""

    def __init__(self, families: list[CostTables], size: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        self._context = multiprocessing.get_context("fork" if "fork" in methods else "spawn")
        self._families = families
        self._workers = [_Worker(self._context, families) for _ in range(size)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.kill()

    @property
    def idle(self) -> int:
        """Workers without a job."""
        return sum(worker.job is None for worker in self._workers)

    @property
    def running(self) -> list[Job]:
        """Jobs that have not answered yet."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def submit(self, job: Job) -> None:
        """Start a job; there must be an idle worker."""
        index = next(index for index, worker in enumerate(self._workers) if worker.job is None)
        if not self._workers[index].process.is_alive():  # killed while idle, for memory for example
            self._replace(index)
        worker = self._workers[index]
        worker.job, worker.since = job, time.monotonic()
        # if it dies just now, reading its answer says so
        with contextlib.suppress(BrokenPipeError):
            worker.connection.send(job)

    def poll(self, timeout_s: float) -> list[Done]:
        """Answers that have come in, after waiting for the first one at most ``timeout_s``."""
        busy = {worker.connection: worker for worker in self._workers if worker.job is not None}
        done = []
        for connection in wait(list(busy), timeout_s) if busy else []:
            done.append(self._receive(busy[connection]))
        for index, worker in enumerate(self._workers):
            job = worker.job
            if job is not None and time.monotonic() - worker.since > job.time_limit_s + GRACE_S:
                done.append(
                    Done(job, None, "killed: it did not keep its time limit", time.monotonic() - worker.since)
                )
                self._replace(index)
        return done

    def _replace(self, index: int) -> None:
        self._workers[index].kill()
        self._workers[index] = _Worker(self._context, self._families)

    def _receive(self, worker: _Worker) -> Done:
        job, wall = worker.job, time.monotonic() - worker.since
        if job is None:
            raise RuntimeError("an answer without a job")
        try:
            value, error = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._replace(self._workers.index(worker))
            return Done(job, None, f"the process died with exit code {worker.process.exitcode}", wall)
        worker.job = None
        return Done(job, value, error, wall)


def _serve(connection: Connection, others: Connection, families: list[CostTables]) -> None:
    # with the parent's end open here too, reading would not end when the parent is killed
    others.close()
    # the parent answers Ctrl-C and ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            job = connection.recv()
            try:
                answer: tuple[Any, str | None] = (job.function(families[job.family], **job.arguments), None)
            except Exception as error:
                answer = None, f"{type(error).__name__}: {error}"
            connection.send(answer)
