"""Annealing as published against our local search: one configuration, one objective, one clock.

Both walk over placements of the same configuration, start from the same layer split, judge with the same
simulator and the same screening kernels. The annealing moves whole nodes from a random order and keeps the
split, ours starts at the greedy plan and moves layers too. The clock is the processor time of the process:
both use one thread, and a busy machine favours neither.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.experiments.log import Record
from pipette_milp.experiments.solve_runs import load_kernels
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.annealing import anneal
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.greedy import block_layouts, greedy
from pipette_milp.solvers.local_search import local_search
from pipette_milp.solvers.state import describe

TIMES_S = (3.0, 10.0, 60.0)
"""When both are compared."""
TOLERANCE = 1e-3
PATIENCE = 20_000
"""The annealing ends early after so many moves in a row that brought nothing. Its temperature is below 1e-8
by then and 16 nodes have about 3,000 neighbours, so nearly each was tried several times."""
SAME = 1e-6
STEP = 1e-5
"""Relative improvements below this are not kept in the trace."""

Trace = list[list[float]]


@dataclass(frozen=True)
class RaceJob:
    """Both walks with one seed on one configuration."""

    instance: Instance
    configuration: Configuration
    seed: int
    time_limit_s: float = TIMES_S[-1]
    patience: int = PATIENCE

    @property
    def key(self) -> str:
        family = self.configuration.model_dump_json()
        return (
            f"race {self.instance.name}@{self.instance.sha256()[:12]} seed={self.seed} "
            f"time={self.time_limit_s:g} patience={self.patience} {family}"
        )

    def facts(self) -> Record:
        """Instance, configuration and seed."""
        return {
            "instance": self.instance.name,
            "instance_sha256": self.instance.sha256(),
            "configuration": self.configuration.model_dump(mode="json"),
            "seed": self.seed,
            "time_limit_s": self.time_limit_s,
            "patience": self.patience,
        }

    def run(self) -> Record:
        """Traces of both, [processor seconds, best simulated seconds].

        Ours goes on until the first time of `TIMES_S`, and from then on only while it is behind what the
        annealing had in the end: a best plan never gets worse.
        """
        load_kernels()
        tables = CostModel.of(self.instance).tables(self.configuration)
        if tables.detail is not None or tables.gpu_level is not None:
            raise InputError("annealing as published is raced where nodes and layers are alike only")
        evaluator = Evaluator(tables)
        warmed(evaluator)
        rng = np.random.default_rng(self.seed)
        start = greedy(evaluator)
        order = rng.permutation(tables.num_nodes).astype(np.int64)
        random_start = Candidate(start.layers, next(block_layouts(tables, [order])))
        annealing = _Clock(self.time_limit_s)
        anneal(
            evaluator,
            random_start,
            rng,
            iterations=10**9,
            stop=annealing.over,
            patience=self.patience,
            faithful=True,
            listener=annealing.better,
        )
        goal_s = annealing.best_s
        ours = _Clock(self.time_limit_s)

        def ahead() -> bool:
            return ours.over() or (ours.elapsed_s() >= TIMES_S[0] and ours.best_s <= goal_s * (1 + SAME))

        local_search(
            evaluator,
            greedy(evaluator),
            np.random.default_rng(self.seed),
            iterations=10**9,
            stop=ahead,
            listener=ours.better,
        )
        return {
            "family": describe(tables),
            "annealing": annealing.trace,
            "annealing_s": annealing.elapsed_s(),
            "ours": ours.trace,
            "ours_s": ours.elapsed_s(),
        }


class _Clock:
    """Processor time since it was made, and the best plan at any moment."""

    def __init__(self, limit_s: float) -> None:
        self._started = time.process_time()
        self._limit_s = limit_s
        self.best_s = float("inf")
        self.trace: Trace = []

    def elapsed_s(self) -> float:
        return time.process_time() - self._started

    def over(self) -> bool:
        return self.elapsed_s() >= self._limit_s

    def better(self, simulated_s: float) -> None:
        if simulated_s >= self.best_s:
            return
        if not self.trace or simulated_s < self.trace[-1][1] * (1 - STEP):
            self.trace.append([self.elapsed_s(), simulated_s])
        self.best_s = simulated_s


def warmed(evaluator: Evaluator) -> None:
    """Everything is compiled and loaded before the clocks start."""
    rng = np.random.default_rng(0)
    start = greedy(evaluator)
    local_search(evaluator, start, rng, iterations=64)
    anneal(evaluator, start, rng, iterations=4, faithful=True)


def best_at(trace: Trace, time_s: float) -> float:
    """Best simulated seconds up to a moment; that of the last entry from there on. inf before the first."""
    best = float("inf")
    for moment_s, value in trace:
        if moment_s <= time_s:
            best = value
    return best


def reached_s(trace: Trace, simulated_s: float) -> float:
    """When a trace first was at or below a value; inf if never."""
    return next((moment_s for moment_s, value in trace if value <= simulated_s), float("inf"))


def contest(costs: CostModel, wanted: Callable[[Configuration], bool]) -> Configuration | None:
    """The configuration whose greedy plan is fastest among those wanted; None if there is none."""
    best: tuple[float, Configuration] | None = None
    for tables in enumerate_space(costs).families:
        if not wanted(tables.configuration) or tables.detail is not None or tables.gpu_level is not None:
            continue
        evaluator = Evaluator(tables)
        time_s = evaluator.simulated_s(greedy(evaluator)) / tables.configuration.global_batch_size
        if best is None or time_s < best[0]:
            best = time_s, tables.configuration
    return None if best is None else best[1]
