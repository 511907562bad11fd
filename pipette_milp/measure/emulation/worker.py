"""One rank of an emulated cluster: takes jobs from the host until it is told to end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from typing import Any

from pipette_milp.errors import ExitCode, PipetteError
from pipette_milp.measure.emulation.shaping import type_of_service
from pipette_milp.measure.launch_environment import LaunchEnvironment
from pipette_milp.measure.session import Session, open_session


def serve(environment: LaunchEnvironment, timeout_s: float, pipe: socket.socket) -> int:
    """Answer ``{"result": ...}`` when all ranks have met, then one line per job; returns an exit code."""

    def answer(value: dict[str, Any]) -> None:
        pipe.sendall(json.dumps(value).encode() + b"\n")

    def other_failed(message: str, code: int) -> None:
        answer({"error": message})
        os._exit(code)

    _wake_in_time(True)
    try:
        with open_session(environment, timeout_s, device="cpu", on_failure=other_failed) as session:
            session.on_connected = functools.partial(_mark, type_of_service(environment.local_rank))
            answer({"result": "ready"})
            with pipe.makefile("r", encoding="utf-8") as jobs:
                for number, line in enumerate(jobs):
                    answer({"result": _run(session, f"job{number}", json.loads(line))})
    except PipetteError as error:
        answer({"error": str(error)})
        return int(error.exit_code)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return int(ExitCode.INTERNAL)
    return 0


def _wake_in_time(wanted: bool) -> None:
    """Let this rank run before everything else on the machine whenever it has something to do.

    It mostly sleeps, and a late wake-up looks like a slow link: without this, on two cores with eight other
    processes at work, a round trip of 0.1 ms took 8 ms.
    """
    policy = os.SCHED_RR if wanted else os.SCHED_OTHER
    with contextlib.suppress(PermissionError):  # not allowed in some containers: then only slower
        os.sched_setscheduler(0, policy, os.sched_param(1 if wanted else 0))


def _mark(service: int) -> None:
    """Mark all connections of this process, so that the emulated network can tell its ranks apart."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
        except OSError:  # closed meanwhile
            continue
        with socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)


def _run(session: Session, key: str, job: dict[str, Any]) -> Any:
    """One job; what rank 0 returns is the answer."""
    kind = job["job"]
    if kind == "measure network":
        from pipette_milp.measure.network import NetworkOptions, measure_network

        return measure_network(session, NetworkOptions(**job["options"]), key)
    if kind == "replay":
        from pipette_milp.measure.replay import ReplayOptions, replay_files

        options = ReplayOptions(**job["options"])
        _wake_in_time(options.compute == "wait")  # matrix work would leave nothing for others
        return replay_files(session, job["instance"], job["plan"], options, key)
    raise PipetteError(f"unknown job {kind!r}")
