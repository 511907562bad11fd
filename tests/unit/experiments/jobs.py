"""Runs that take a known time and do nothing, for tests of the engine."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from pipette_milp.errors import InputError


@dataclass(frozen=True)
class Nap:
    """Sleeps, and answers the square of its number."""

    number: int
    sleep_s: float = 0.0
    fault: str = ""

    @property
    def key(self) -> str:
        return f"nap {self.number}"

    def facts(self) -> dict[str, Any]:
        return {"number": self.number}

    def run(self) -> dict[str, Any]:
        time.sleep(self.sleep_s)
        if self.fault == "input":
            raise InputError("too many plans")
        if self.fault == "crash":
            raise ZeroDivisionError("one by nothing")
        if self.fault == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if self.fault == "interrupted":
            return {"status": "interrupted"}
        return {"square": self.number**2, "process": os.getpid()}


def main() -> None:
    """``python -m tests.unit.experiments.jobs LOG NUMBER SLEEP PROCESSES``: so many naps into a log."""
    from pipette_milp.experiments.engine import Workers, run_missing
    from pipette_milp.experiments.log import RunLog

    path, number, sleep_s, processes = sys.argv[1:]
    with RunLog(path) as log:
        run_missing(
            [Nap(n, float(sleep_s)) for n in range(int(number))],
            log,
            Workers(int(processes)),
            lambda record, finished, total: print(finished, flush=True),
        )


if __name__ == "__main__":
    main()
