"""``python -m pipette_milp.experiments DIRECTORY INSTANCE...``: the tables of the README."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pipette_milp.errors import PipetteError
from pipette_milp.experiments.log import Record
from pipette_milp.experiments.readme import FULL, PARTS, SMOKE, Effort, reproduce, smaller
from pipette_milp.schema.instance import load_instance


def main(words: list[str] | None = None) -> int:
    """Exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipette_milp.experiments", description=__doc__)
    parser.add_argument("directory", type=Path, help="logs and tables")
    parser.add_argument("instances", nargs="+", help="instance files")
    parser.add_argument("--part", action="append", choices=PARTS, help="only these tables")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, to see that it works")
    parser.add_argument("--full", action="store_true", help="a minute for every annealing run")
    parser.add_argument("--seeds", type=int, help="fewer seeds than usual")
    arguments = parser.parse_args(words)
    effort = SMOKE if arguments.smoke else FULL if arguments.full else Effort()
    if arguments.seeds is not None:
        effort = smaller(effort, arguments.seeds)
    started = time.monotonic()

    def told(record: Record, finished: int, total: int) -> None:
        elapsed = time.monotonic() - started
        print(f"{elapsed:6.0f} s  [{finished}/{total}] {record['key'][:100]}", file=sys.stderr, flush=True)

    try:
        instances = [load_instance(path) for path in arguments.instances]
        written = reproduce(
            instances, arguments.directory, effort, parts=arguments.part or PARTS, listener=told
        )
    except PipetteError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    for path in written:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
