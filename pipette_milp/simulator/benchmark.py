"""How fast the simulator is: ``python -m pipette_milp.simulator.benchmark [-o FILE.json]``.

One core (set OMP_NUM_THREADS=1). A task evaluation is one F or B of one micro-batch, stage and replica;
transfers come on top and are not counted. "first" is the first call of the process for that plan and
engine: building the graph, and for numba importing it and loading or compiling the kernel. "warm" is the
median of the calls after it, checks of the durations included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pipette_milp import accelerate
from pipette_milp.simulator.graph import EventGraph, event_graph
from pipette_milp.simulator.longest_path import Engine, finish_times
from pipette_milp.simulator.path_counts import path_counts_batch

TENSOR = 8
PLANS = ((16, 8, 128), (16, 128, 64))
"""(pipeline, data, micro-batches): 1,024 and 16,384 GPUs with :data:`TENSOR` a cell."""
REPEATS = 30
CUT_VECTORS = 1000


@dataclass(frozen=True)
class Measurement:
    """One row of the table."""

    what: str
    gpus: int
    transfers: str
    engine: str
    first_ms: float
    warm_ms: float
    tasks_per_s: float | None


def main() -> None:
    """Measure, print a table, write it as JSON if asked to."""
    parser = argparse.ArgumentParser(description="speed of the simulator")
    parser.add_argument("-o", "--output", type=Path, help="also write the rows as JSON")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    rows = measure(arguments.repeats)
    print(
        f"{'what':<22}{'GPUs':>7}  {'transfers':<10}{'engine':<7}"
        f"{'first ms':>10}{'warm ms':>10}{'M tasks/s':>11}"
    )
    for row in rows:
        rate = "" if row.tasks_per_s is None else f"{row.tasks_per_s / 1e6:.0f}"
        print(
            f"{row.what:<22}{row.gpus:>7}  {row.transfers:<10}{row.engine:<7}"
            f"{row.first_ms:>10.1f}{row.warm_ms:>10.3f}{rate:>11}"
        )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def measure(repeats: int) -> list[Measurement]:
    """All rows: whole plans, one changed replica of each, and the tracing of cuts."""
    engines: list[Engine] = ["numpy", "numba"] if accelerate.AVAILABLE else ["numpy"]
    rng = np.random.default_rng(0)
    rows = []
    for engine in engines:
        for pipeline, data, micro_batches in PLANS:
            for transfers in ("exchange", "async"):
                event_graph.cache_clear()
                row = _evaluate("whole plan", pipeline, data, micro_batches, transfers, engine, repeats, rng)
                rows.append(row)
                rows.append(
                    _evaluate(
                        "one changed replica", pipeline, 1, micro_batches, transfers, engine, repeats, rng
                    )
                )
        rows.append(_trace_cuts(engine, max(3, repeats // 10), rng))
    return rows


def _evaluate(
    what: str,
    pipeline: int,
    data: int,
    micro_batches: int,
    transfers: str,
    engine: Engine,
    repeats: int,
    rng: np.random.Generator,
) -> Measurement:
    def call() -> EventGraph:
        graph = event_graph("1f1b", pipeline, 1, micro_batches, transfers)
        finish_times(graph, *durations, engine=engine)
        return graph

    durations = tuple(rng.random((rows, data)) for rows in (pipeline, pipeline, pipeline - 1, pipeline - 1))
    first_ms, warm_ms = _time(call, repeats)
    tasks = call().num_tasks * data
    return Measurement(
        what, pipeline * data * TENSOR, transfers, engine, first_ms, warm_ms, tasks / warm_ms * 1e3
    )


def _trace_cuts(engine: Engine, repeats: int, rng: np.random.Generator) -> Measurement:
    def call() -> object:
        return path_counts_batch(
            graph, forward_s, backward_s, hop_forward_s, hop_backward_s, 0, engine=engine
        )

    pipeline, _, micro_batches = PLANS[1]
    graph = event_graph("1f1b", pipeline, 1, micro_batches, "exchange")
    forward_s, backward_s = rng.random((2, CUT_VECTORS, pipeline))
    hop_forward_s, hop_backward_s = rng.random((2, CUT_VECTORS, pipeline - 1))
    first_ms, warm_ms = _time(call, repeats)
    return Measurement(f"{CUT_VECTORS} cuts", pipeline * TENSOR, "exchange", engine, first_ms, warm_ms, None)


def _time(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Milliseconds of the first call and the median of the following ones."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times[0], statistics.median(times[1:])


if __name__ == "__main__":
    main()
