"""How long a command takes from the shell: ``python -m pipette_milp.cli.cold_start INSTANCE``.

Every run is a process of its own, as a person starts it; the first run of each command, which may still
fill the caches of file system and byte code, is not counted. Ends with exit code 1 when a median is above
its limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

RUNS = 5
HELP_LIMIT_S = 0.7
SOLVE_LIMIT_S = 4.0
"""On an instance of 4 GPUs."""


def seconds_of(words: list[str]) -> list[float]:
    """Wall time of each counted run of one command line.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pipette_milp", *words], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return times[1:]


def main(instance: str) -> None:
    """Prints median and range of each command beside its limit."""
    slow = False
    for words, limit_s in ((["--help"], HELP_LIMIT_S), (["solve", instance], SOLVE_LIMIT_S)):
        times = seconds_of(words)
        median = statistics.median(times)
        slow |= median > limit_s
        print(
            f"pipette-milp {' '.join(words)}: median {median:.2f} s of {RUNS} "
            f"({min(times):.2f} to {max(times):.2f}), limit {limit_s} s"
        )
    sys.exit(1 if slow else 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m pipette_milp.cli.cold_start INSTANCE")
    main(sys.argv[1])
