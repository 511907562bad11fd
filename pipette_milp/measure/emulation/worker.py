"""One rank of an emulated cluster: takes jobs from the host until it is told to end."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from pipette_milp.errors import ExitCode, PipetteError
from pipette_milp.measure.launch_environment import LaunchEnvironment
from pipette_milp.measure.session import Session, open_session


def serve(environment: LaunchEnvironment, timeout_s: float, pipe: socket.socket) -> int:
    """Answer ``{"result": ...}`` when all ranks have met, then one line per job; returns an exit code."""

    def answer(value: dict[str, Any]) -> None:
        pipe.sendall(json.dumps(value).encode() + b"\n")

    def other_failed(message: str, code: int) -> None:
        answer({"error": message})
        os._exit(code)

    try:
        with open_session(environment, timeout_s, device="cpu", on_failure=other_failed) as session:
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


def _run(session: Session, key: str, job: dict[str, Any]) -> Any:
    """One job; what rank 0 returns is the answer."""
    kind = job["job"]
    if kind == "measure network":
        from pipette_milp.measure.network import NetworkOptions, measure_network

        return measure_network(session, NetworkOptions(**job["options"]), key)
    if kind == "replay":
        from pipette_milp.measure.replay import ReplayOptions, replay_files

        return replay_files(session, job["instance"], job["plan"], ReplayOptions(**job["options"]), key)
    raise PipetteError(f"unknown job {kind!r}")
