"""Does the runs of a list that a log does not hold yet, and logs each as soon as it ends.

Only this process writes. Workers that lose it end themselves, so that a comparison that was killed does not
go on computing beside the one that resumes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pipette_milp.errors import InputError
from pipette_milp.experiments.environment import environment
from pipette_milp.experiments.log import KEY, Record, RunLog

STATUS = "status"
DONE, REFUSED, FAILED, INTERRUPTED = "done", "refused", "failed", "interrupted"
"""A refused run cannot be done (its solver does not take the instance), a failed one raised something
unexpected; both are finished. An interrupted one is not, and is never logged."""
WATCH_S = 0.2
"""How often a worker looks whether its parent still lives."""
LOCAL_CLUSTER = "local"


class Job(Protocol):
    """One run. Objects travel to other processes, so they must be picklable."""

    @property
    def key(self) -> str:
        """Names the run by everything that decides its outcome."""
        ...

    def facts(self) -> Record:
        """What is known before the run; part of its record."""
        ...

    def run(self) -> Record:
        """Do it."""
        ...


Listener = Callable[[Record, int, int], None]
"""Called with the record, how many runs are finished, and how many there are."""


@dataclass(frozen=True)
class Workers:
    """Where runs are done.

    ``processes`` 1 without ``dask`` is this process. ``dask`` is the address of a scheduler, or
    `LOCAL_CLUSTER`.
    """

    processes: int = 1
    dask: str | None = None


def run_missing(
    jobs: Sequence[Job],
    log: RunLog,
    workers: Workers | None = None,
    listener: Listener | None = None,
) -> None:
    """Do all jobs that are not in the log.

    Raises:
        InputError: joblib or Dask is asked for and not installed, two jobs have one key, or the scheduler
            does not answer.
        KeyboardInterrupt: as it came; what was finished is in the log.
    """
    if len({job.key for job in jobs}) != len(jobs):
        raise InputError("the same run is asked for twice")
    waiting = [job for job in jobs if job.key not in log]
    finished = len(jobs) - len(waiting)
    for record in _outcomes(waiting, workers or Workers()):
        if record[STATUS] == INTERRUPTED:
            raise KeyboardInterrupt
        log.append(record)
        finished += 1
        if listener is not None:
            listener(record, finished, len(jobs))


def _outcomes(jobs: list[Job], workers: Workers) -> Iterator[Record]:
    if not jobs:
        return
    if workers.processes == 1 and workers.dask is None:
        for job in jobs:
            yield execute(job)
        return
    try:
        import joblib
    except ModuleNotFoundError:
        raise InputError(
            "several processes need joblib: pip install 'pipette_milp[compare]', or --jobs 1"
        ) from None
    with contextlib.ExitStack() as stack:
        if workers.dask is None:
            stack.enter_context(joblib.parallel_config(backend="loky", n_jobs=workers.processes))
        else:
            client = stack.enter_context(_dask_client(workers))
            stack.enter_context(joblib.parallel_config(backend="dask", client=client))
        # a batch of several runs would reach the log only when its last one ends
        parallel = joblib.Parallel(batch_size=1, pre_dispatch="2*n_jobs", return_as="generator_unordered")
        yield from parallel(joblib.delayed(execute_in_worker)(job) for job in jobs)


def _dask_client(workers: Workers) -> Any:
    """A client of the scheduler, which is started here where it is local."""
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise InputError("a Dask cluster needs dask: pip install 'pipette_milp[dask]'") from None
    if workers.dask == LOCAL_CLUSTER:
        cluster = LocalCluster(n_workers=workers.processes, threads_per_worker=1, dashboard_address=None)
        return _ClusterClient(cluster, Client(cluster))
    try:
        return Client(workers.dask, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers: {error}", source=str(workers.dask)) from None


class _ClusterClient(contextlib.AbstractContextManager[Any]):
    """A client that ends the cluster it was made for."""

    def __init__(self, cluster: Any, client: Any) -> None:
        self._cluster, self._client = cluster, client

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *error: object) -> None:
        self._client.close()
        self._cluster.close()


def execute_in_worker(job: Job) -> Record:
    """`execute` in a process of its own."""
    _end_with_parent()
    return execute(job)


def execute(job: Job) -> Record:
    """One run with its key, facts, environment and times; never raises but for an interrupt."""
    record: Record = {KEY: job.key, **job.facts()}
    started, cpu = time.monotonic(), _cpu_s()
    try:
        outcome = {STATUS: DONE, **job.run()}
    except InputError as error:
        outcome = {STATUS: REFUSED, "error": str(error)}
    except Exception as error:
        outcome = {STATUS: FAILED, "error": f"{type(error).__name__}: {error}"}
    record |= outcome
    record["wall_s"] = time.monotonic() - started
    record["cpu_s"] = _cpu_s() - cpu
    record["environment"] = environment()
    return record


def _cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


_watching = threading.Lock()


def _end_with_parent() -> None:
    """Watch the parent from now on, and leave Ctrl-C to it."""
    if not _watching.acquire(blocking=False):
        return  # this process watches already
    with contextlib.suppress(ValueError):  # not the main thread of a Dask worker
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
