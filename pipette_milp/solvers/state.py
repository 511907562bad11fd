"""What a search knows: families, their bounds, their best plans, and how both went over time.

Times of families with different global batches are compared per sequence: everything here is *scaled* to the
first batch of the instance; `SearchState.scale` of a family turns its own seconds into scaled ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.search_space import SearchSpace
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.layer_branches import floor_bound_s
from pipette_milp.solvers.regroup import with_gpus


@dataclass(frozen=True)
class Progress:
    """What a listener hears."""

    time_s: float
    incumbent_s: float | None
    bound_s: float | None
    message: str = ""


CLOSED_FORM = "closed form"
"""What a bound rests on: best links and the work of the stages,"""
ENUMERATION = "enumeration"
"""or all plans of a family simulated."""
CHECKED = (CLOSED_FORM, ENUMERATION)
"""What is not a solver's word."""
WORTH_ARRANGING = 0.05
"""How far behind the incumbent a plan may be, by the estimate of its best GPUs, for these to be searched."""

Listener = Callable[[Progress], None]


@dataclass(frozen=True)
class Limits:
    """When to stop, and what a run may use."""

    time_s: float
    gap: float
    iterations: int | None = None
    threads: int = 1
    seed: int = 0


@dataclass
class SearchState:
    """Mutable record of one run. The incumbent never rises, the bound never falls."""

    costs: CostModel
    space: SearchSpace
    limits: Limits
    listener: Listener | None = None
    started: float = field(default_factory=time.monotonic)
    proves: bool = True
    """False for heuristics: no bound is reported."""
    warnings: list[str] = field(default_factory=list)
    claimed_s: float | None = None
    recomputed_s: float | None = None
    failed: bool = False
    """No solver did its work."""

    def __post_init__(self) -> None:
        batches = self.costs.instance.training.global_batch_size
        self.reference_batch = batches[0]
        self.scale = np.array(
            [self.reference_batch / tables.configuration.global_batch_size for tables in self.families]
        )
        self.lower = np.array([floor_bound_s(tables) for tables in self.families]) * self.scale
        self.bound_by = [CLOSED_FORM] * len(self.families)
        """What the bound of each family rests on."""
        self.best_s = np.full(len(self.families), math.inf)
        self.best: list[Candidate | None] = [None] * len(self.families)
        self.incumbent: int | None = None
        self.trace: list[Progress] = []
        self._bound = 0.0

    @property
    def families(self) -> list[CostTables]:
        return self.space.families

    @property
    def incumbent_s(self) -> float:
        """Scaled; inf without a plan."""
        return math.inf if self.incumbent is None else float(self.best_s[self.incumbent])

    @property
    def bound_s(self) -> float:
        """Scaled lower bound over the whole space, never above the incumbent."""
        least = float(self.lower.min()) if len(self.lower) else math.inf
        self._bound = max(self._bound, min(least, self.incumbent_s))
        return self._bound

    @property
    def gap(self) -> float:
        """inf without a plan."""
        if self.incumbent is None:
            return math.inf
        return max(0.0, (self.incumbent_s - self.bound_s) / self.incumbent_s)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def time_left_s(self) -> float:
        return self.limits.time_s - self.elapsed_s

    def offer(self, family: int, simulated_s: float, candidate: Candidate, message: str = "") -> bool:
        """Take a plan; True if it is the best of all so far. ``simulated_s`` is the family's own, not
        scaled.

        A plan that says nodes where GPUs are told apart gets its GPUs here, and the time it then takes.
        """
        tables, scale = self.families[family], float(self.scale[family])
        if tables.gpu_level is not None and candidate.gpus_of_cell is None:
            evaluator = Evaluator(tables)
            at_nodes = candidate
            simulated_s, candidate = with_gpus(evaluator, at_nodes, simulations=0)
            if simulated_s * scale < self.incumbent_s * (1 + WORTH_ARRANGING):
                simulated_s, candidate = with_gpus(evaluator, at_nodes)
        value = simulated_s * scale
        if value >= self.best_s[family]:
            return False
        self.best_s[family], self.best[family] = value, candidate
        if value >= self.incumbent_s and self.incumbent != family:
            return False
        self.incumbent = family
        self.tell(message)
        return True

    def raise_bound(self, family: int, bound_s: float, *, by: str) -> None:
        """A bound of one family, scaled, and what it rests on."""
        if bound_s <= self.lower[family]:
            return
        before = self.bound_s
        self.lower[family] = bound_s
        self.bound_by[family] = by
        if self.bound_s > before * (1 + 1e-9):
            self.tell()

    def tell(self, message: str = "") -> None:
        """Record and report where the search stands."""
        event = Progress(
            self.elapsed_s,
            None if self.incumbent is None else self.incumbent_s,
            self.bound_s if self.proves else None,
            message,
        )
        self.trace.append(event)
        if self.listener is not None:
            self.listener(event)

    def name(self, family: int) -> str:
        """Short name of a family for messages."""
        return describe(self.families[family])


def describe(tables: CostTables) -> str:
    """pipeline x tensor x data, micro-batch and options of a family."""
    c = tables.configuration
    text = f"p{c.pipeline} t{c.tensor} d{c.data} b{c.micro_batch}"
    if c.virtual_stages > 1:
        text += f" v{c.virtual_stages}"
    options = [c.schedule] if c.schedule != "1f1b" else []
    options += ["sp"] if c.sequence_parallel else []
    options += [f"{c.data_sharding} sharded"] if c.data_sharding != "none" else []
    options += [f"{c.recompute} recompute"] if c.recompute != "none" else []
    return " ".join([text, *options])
