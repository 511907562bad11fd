"""The process behind `pipette_milp.solvers.subprocess_solve`: reads problems, writes progress and reports.

Run as ``python -m pipette_milp.solvers.solver_child``; ends when its standard input does.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import BinaryIO

from pipette_milp.solvers.solver_call import solve
from pipette_milp.solvers.subprocess_solve import READY, read_frame, write_frame


def main() -> None:
    """Serve until the parent goes, also if it goes in the middle of a solve."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # solvers print on stdout, which is the pipe to the parent
    lock = threading.Lock()

    def send(message: object) -> None:
        with lock:
            write_frame(answers, message)

    requests = _requests(sys.stdin.buffer)
    while True:
        send(READY)
        problem, options = requests.get()
        send(solve(problem, options, send))


def _requests(stream: BinaryIO) -> queue.SimpleQueue:
    """Requests as they come; at the end of the stream the process ends at once."""
    found: queue.SimpleQueue = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                found.put(read_frame(stream))
        except EOFError:
            os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return found


if __name__ == "__main__":
    main()
