"""One rank among many: where ranks meet, what they tell each other, and how all of them end when one fails.

Control goes through a key-value store that every rank reaches; data through process groups made on top of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pipette_milp.errors import ExitCode, InputError, PipetteError
from pipette_milp.measure.launch_environment import LaunchEnvironment

WATCH_INTERVAL_S = 0.5
"""How often a rank looks whether another one has failed."""
GRACE_S = 3.0
"""How long a failing rank waits before it ends, so that the others can still read why."""
_FAILURE = "failure"

OnFailure = Callable[[str, int], None]
"""Called with a message and an exit code when another rank has failed; must not return to the work."""


class MeasurementError(PipetteError):
    """A rank, a link or a device failed while something was measured."""


def load_torch() -> Any:
    """The module torch, with torch.distributed.

    Raises:
        InputError: not installed; the message says what to install.
    """
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise InputError(
            "this command runs on the machines themselves and needs PyTorch: "
            "pip install 'pipette_milp[measure]', or the build of PyTorch that the training will use"
        ) from None
    if not torch.distributed.is_available():
        raise InputError("this build of PyTorch has no torch.distributed: install one that has")
    return torch


@dataclass
class Session:
    """What one rank needs to talk to the others. Made by `open_session`."""

    torch: Any
    environment: LaunchEnvironment
    store: Any
    device: Any
    """torch.device of this rank."""
    timeout_s: float
    """Longest wait for anything that another rank has to do."""
    nodes: tuple[str, ...] = ()
    """Node name of every rank."""
    on_connected: Callable[[], None] | None = None
    """Called after connections were made."""
    _kept: dict[str, Any] = field(default_factory=dict)
    """Groups of all ranks by name: connecting all takes a second or more."""

    @property
    def rank(self) -> int:
        """Of this process."""
        return self.environment.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.environment.world_size

    @property
    def transport(self) -> str:
        """Name of what moves the data."""
        return "nccl" if self.device.type == "cuda" else "gloo"

    def process_group(self, name: str, ranks: list[int] | None = None, timeout_s: float | None = None) -> Any:
        """A process group of some ranks; every one of them calls this.

        A group of all ranks (``ranks`` left out) is made once for a name and kept.

        Made straight on the store, not with ``new_group``: that would need all ranks each time, and one
        unreachable pair would take every group down.
        """
        if ranks is None and name in self._kept:
            return self._kept[name]
        group = self._new_group(name, ranks, timeout_s)
        if ranks is None:
            self._kept[name] = group
        return group

    def _new_group(self, name: str, ranks: list[int] | None, timeout_s: float | None) -> Any:
        torch = self.torch
        members = list(range(self.world_size)) if ranks is None else ranks
        store = torch.distributed.PrefixStore(name, self.store)
        timeout = timedelta(seconds=timeout_s or self.timeout_s)
        index = members.index(self.rank)
        if self.transport == "nccl":
            options = torch.distributed.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return torch.distributed.ProcessGroupNCCL(store, index, len(members), options)
        return self._connected(torch.distributed.ProcessGroupGloo(store, index, len(members), timeout))

    def control_group(self, name: str) -> Any:
        """A gloo group of all ranks for small messages, also where data moves by NCCL; made once."""
        if name in self._kept:
            return self._kept[name]
        store = self.torch.distributed.PrefixStore(name, self.store)
        timeout = timedelta(seconds=self.timeout_s)
        group = self.torch.distributed.ProcessGroupGloo(store, self.rank, self.world_size, timeout)
        self._kept[name] = self._connected(group)
        return group

    def _connected(self, group: Any) -> Any:
        if self.on_connected is not None:
            self.on_connected()
        return group

    def finish(self, work: Any) -> None:
        """Until control traffic has arrived.

        Raises:
            MeasurementError: not in time, or the other side is gone.
        """
        try:
            work.wait(timedelta(seconds=self.timeout_s))
        except Exception as error:
            raise MeasurementError(
                f"rank {self.rank}{self.place(self.rank)} waited for the other ranks: {_first_line(error)}"
            ) from None

    def meet(self, control: Any) -> None:
        """Return when all ranks of a control group have come here."""
        self.finish(control.allreduce([self.torch.zeros(1)], self.torch.distributed.AllreduceOptions()))

    def share(self, key: str, value: Any) -> list[Any]:
        """Every rank's JSON value in rank order, at every rank.

        Raises:
            MeasurementError: a rank did not answer in time.
        """
        collected = self.collect(key, value)
        everyone = f"{key}/all"
        if collected is not None:
            self.store.set(everyone, json.dumps(collected))
            return collected
        return list(json.loads(self._get(everyone, f"rank 0 ({key})")))

    def collect(self, key: str, value: Any) -> list[Any] | None:
        """Every rank's JSON value in rank order, at rank 0 only; None elsewhere.

        Raises:
            MeasurementError: a rank did not answer in time.
        """
        self.store.set(f"{key}/{self.rank}", json.dumps(value))
        if self.rank != 0:
            return None
        return [
            json.loads(self._get(f"{key}/{rank}", f"rank {rank}{self.place(rank)} ({key})"))
            for rank in range(self.world_size)
        ]

    def barrier(self, key: str) -> None:
        """Return when every rank has come here; ``key`` is used once.

        Raises:
            MeasurementError: a rank did not come in time.
        """
        if self.store.add(f"{key}/count", 1) == self.world_size:
            self.store.set(f"{key}/open", "1")
        self._get(f"{key}/open", f"all {self.world_size} ranks ({key})")

    def say_failure(self, message: str, code: int) -> None:
        """Tell the other ranks that this one cannot go on; never raises."""
        with contextlib.suppress(Exception):
            self.store.set(_FAILURE, json.dumps({"message": message, "code": code, "rank": self.rank}))

    def synchronize(self) -> None:
        """Wait until the device has done what was queued."""
        if self.device.type == "cuda":
            self.torch.cuda.current_stream(self.device).synchronize()

    def _get(self, key: str, whom: str) -> str:
        try:
            self.store.wait([key], timedelta(seconds=self.timeout_s))
            return str(self.store.get(key).decode())
        except Exception as error:
            raise MeasurementError(
                f"rank {self.rank}{self.place(self.rank)} waited {self.timeout_s:g} s in vain for {whom}: "
                f"{_first_line(error)}"
            ) from None

    def place(self, rank: int) -> str:
        """The words that name a rank's node in messages, empty before the ranks have met."""
        return f" on {self.nodes[rank]}" if rank < len(self.nodes) else ""


@contextlib.contextmanager
def open_session(
    environment: LaunchEnvironment,
    timeout_s: float,
    *,
    device: str | None = None,
    on_failure: OnFailure | None = None,
) -> Iterator[Session]:
    """Meet the other ranks; on the way out of an error, tell them.

    A thread looks every `WATCH_INTERVAL_S` whether another rank has failed, and ends this process with that
    rank's message: a rank that waits inside a transfer cannot look itself.

    Args:
        device: "cpu" or "cuda"; if left out, GPUs where PyTorch sees some.
        on_failure: what the thread calls; left out: message on standard error, then the process ends.

    Raises:
        InputError: no PyTorch, no such device.
        MeasurementError: the ranks did not meet in time.
    """
    torch = load_torch()
    chosen = _device(torch, device, environment.local_rank)
    try:
        store = _store(torch, environment, timeout_s)
    except InputError:
        raise
    except Exception as error:
        raise MeasurementError(
            f"rank {environment.rank}: the {environment.world_size} ranks did not meet at "
            f"{environment.rendezvous} within {timeout_s:g} s: {_first_line(error)}"
        ) from None
    session = Session(torch, environment, store, chosen, timeout_s)
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(session, stop, on_failure or _end), daemon=True)
    watch.start()
    try:
        session.nodes = tuple(session.share("nodes", environment.node_name))
        yield session
        session.barrier("end")
    except BaseException as error:
        code = error.exit_code if isinstance(error, PipetteError) else ExitCode.INTERNAL
        session.say_failure(str(error) or type(error).__name__, int(code))
        if session.rank == 0:
            time.sleep(GRACE_S)  # rank 0 may hold the store
        raise
    finally:
        stop.set()
        watch.join()


def _device(torch: Any, wanted: str | None, local_rank: int) -> Any:
    if wanted not in (None, "cpu", "cuda"):
        raise InputError(f"device {wanted!r}: expected cpu or cuda")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and count == 0:
        raise InputError("PyTorch sees no GPU here: --device cpu uses gloo")
    if wanted == "cpu" or count == 0:
        return torch.device("cpu")
    if count == 1:
        local_rank = 0  # a launcher that shows each rank its own GPU only
    if local_rank >= count:
        raise InputError(f"local rank {local_rank}, but PyTorch sees only {count} GPUs here")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _store(torch: Any, environment: LaunchEnvironment, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    size, rank = environment.world_size, environment.rank
    where = environment.rendezvous
    if where.startswith("file://"):
        store = torch.distributed.FileStore(where.removeprefix("file://"), size)
    elif where == "env://":
        store, _, _ = next(
            iter(torch.distributed.rendezvous("env://", rank=rank, world_size=size, timeout=timeout))
        )
    else:
        host, _, port = where.removeprefix("tcp://").rpartition(":")
        store = torch.distributed.TCPStore(
            host.strip("[]"), int(port), size, is_master=rank == 0, timeout=timeout, wait_for_workers=False
        )
    store.set_timeout(timeout)
    return torch.distributed.PrefixStore("pipette", store)


def _watch(session: Session, stop: threading.Event, on_failure: OnFailure) -> None:
    """The thread of `open_session`."""
    store = session.store.clone()  # a connection of its own: the other one may be waiting
    while not stop.wait(WATCH_INTERVAL_S):
        try:
            if not store.check([_FAILURE]):
                continue
            failure = json.loads(store.get(_FAILURE))
        except Exception as error:
            if not stop.is_set():
                message = f"rank {session.rank} lost the store of rank 0: {_first_line(error)}"
                on_failure(message, int(ExitCode.INTERNAL))
            return
        if failure["rank"] != session.rank and not stop.is_set():
            where = session.place(failure["rank"])
            message = f"rank {failure['rank']}{where} failed: {failure['message']}"
            on_failure(message, failure["code"])
        return


def _end(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(code)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
