"""One run of a comparison: a solver on an instance with a seed and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipette_milp.errors import InputError
from pipette_milp.experiments.engine import INTERRUPTED, STATUS
from pipette_milp.experiments.log import Record
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.result import SolveResult, Termination
from pipette_milp.solvers import SOLVERS, WITH_VARIANTS, solve

MOST_TRACE_POINTS = 400
"""Points of the trace that are kept as they are; of a longer one only what moves incumbent or bound by at
least `TRACE_STEP`."""
TRACE_STEP = 1e-5


@dataclass(frozen=True)
class Limits:
    """What every run of a comparison may use, the same for all solvers."""

    time_limit_s: float = 60.0
    gap: float = 0.01
    iteration_limit: int | None = None
    threads: int = 1


@dataclass(frozen=True)
class SolveJob:
    """`solve` with these arguments."""

    instance: Instance
    solver: str
    seed: int
    limits: Limits

    @property
    def key(self) -> str:
        limits = self.limits
        iterations = "" if limits.iteration_limit is None else f" iterations={limits.iteration_limit}"
        return (
            f"solve {self.instance.name}@{self.instance.sha256()[:12]} {self.solver} seed={self.seed} "
            f"time={limits.time_limit_s:g} gap={limits.gap:g}{iterations} threads={limits.threads}"
        )

    def facts(self) -> Record:
        """Instance, solver, seed and limits."""
        return {
            "instance": self.instance.name,
            "instance_sha256": self.instance.sha256(),
            "solver": self.solver,
            "seed": self.seed,
            "time_limit_s": self.limits.time_limit_s,
            "wanted_gap": self.limits.gap,
            "iteration_limit": self.limits.iteration_limit,
            "threads": self.limits.threads,
        }

    def run(self) -> Record:
        """Solve; times are seconds of an iteration of the plan's own global batch."""
        load_kernels()
        result = solve(
            self.instance,
            solver=self.solver,
            time_limit_s=self.limits.time_limit_s,
            gap=self.limits.gap,
            iteration_limit=self.limits.iteration_limit,
            seed=self.seed,
            threads=self.limits.threads,
            keep=1,
        )
        return outcome(result)


def outcome(result: SolveResult) -> Record:
    """What a comparison keeps of a result: enough to draw it and to simulate its plan again."""
    record: Record = {
        "termination": result.termination.value,
        "simulated_s": result.simulated_s,
        "lower_bound_s": result.lower_bound_s,
        "gap": result.gap,
        "default_order_s": result.default_order_s,
        "solve_wall_s": result.wall_time_s,
        "links": result.links,
        "trace": _thinned(result),
        "plan": None,
        "global_batch_size": None,
    }
    if result.plan is not None:
        record["global_batch_size"] = result.plan.configuration.global_batch_size
        record["plan"] = result.plan.model_dump(mode="json")
    if result.termination is Termination.INTERRUPTED:
        record[STATUS] = INTERRUPTED
    return record


def _thinned(result: SolveResult) -> list[list[float | None]]:
    """[time_s, incumbent_s, bound_s] where something changed; all of it where it is short."""
    points = [[point.time_s, point.incumbent_s, point.bound_s] for point in result.trace]
    if len(points) <= MOST_TRACE_POINTS:
        return points
    kept = [points[0]]
    for point in points[1:-1]:
        if any(_moved(before, now) for before, now in zip(kept[-1][1:], point[1:], strict=True)):
            kept.append(point)
    return [*kept, points[-1]]


def _moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > TRACE_STEP * before


def plan_runs(
    instances: Sequence[Instance], solvers: Sequence[str], seeds: Iterable[int], limits: Limits
) -> list[SolveJob]:
    """All runs, instance by instance and seed by seed, so that an early end leaves whole comparisons.

    Raises:
        InputError: an unknown solver, a repeated or empty list, limits out of range.
    """
    seeds = list(seeds)
    problems = []
    for name in solvers:
        stem, _, variant = name.partition(":")
        if stem not in SOLVERS or (variant and stem not in WITH_VARIANTS):
            problems.append(f"there is no solver {name!r}; there are {', '.join(SOLVERS)}")
    hashes = [instance.sha256() for instance in instances]
    for what, values in (("solvers", solvers), ("seeds", seeds), ("instances", hashes)):
        if not values:
            problems.append(f"no {what}")
        elif len(set(values)) < len(values):
            problems.append(f"the same of the {what} is named twice")
    if any(seed < 0 for seed in seeds):
        problems.append("seeds are whole numbers from 0 on")
    if not (limits.time_limit_s > 0 and math.isfinite(limits.time_limit_s)):
        problems.append(f"expected a time limit above 0, got {limits.time_limit_s:g} s")
    if problems:
        raise InputError("; ".join(problems))
    return [
        SolveJob(instance, solver, seed, limits)
        for instance in instances
        for seed in seeds
        for solver in solvers
    ]


@cache
def load_kernels() -> None:
    """Load compiled kernels and solvers before the first clock of this process starts: that takes a second or
    two, once per process, and would be charged to whichever run comes first."""
    import highspy  # noqa: F401
    from ortools.sat.python import cp_model  # noqa: F401

    from pipette_milp.schema.instance import load_instance

    tiny = load_instance(_WARM_UP)
    solve(tiny, solver="local-search", time_limit_s=5.0, iteration_limit=3, threads=1, keep=1)


_WARM_UP: dict[str, Any] = {
    "schema_version": 1,
    "name": "warm-up",
    "model": {
        "name": "small",
        "layers": 4,
        "hidden_size": 256,
        "ffn_hidden_size": 1024,
        "attention_heads": 4,
        "vocab_size": 1024,
        "sequence_length": 128,
        "gated_mlp": False,
        "tied_embeddings": True,
        "position_embedding": "learned",
        "normalization": "layernorm",
        "biases": True,
    },
    "training": {"global_batch_size": 8, "precision": "bf16"},
    "cluster": {
        "gpu_types": {
            "gpu": {
                "memory": "80 GiB",
                "peak_flops": {"bf16": "300 TFLOP/s"},
                "memory_bandwidth": "2 TB/s",
            }
        },
        "node_types": {},
        "nodes": [{"name": "node-{:03d}", "count": 2, "gpu_type": "gpu", "gpus": 1}],
        "network": {
            "intra_node": {"bandwidth": "200 GB/s", "latency": "4 us"},
            "inter_node": {"bandwidth": "20 GB/s", "latency": "10 us"},
        },
    },
    "compute": {"kind": "analytic"},
    "search": {},
}
"""Any instance that makes every kernel run once."""
