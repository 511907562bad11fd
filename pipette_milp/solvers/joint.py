"""The joint model over configuration families, solved in the cut loop, with plan and bound at any moment.

Every family has a lower bound of its own: the best of what is known beforehand, of its interval cuts with
every link at its best, and of the dual bounds of the models it took part in. A round takes the families
whose bound is below the cutoff, cheapest bound first and as many as make a model of bearable size, and asks
for a plan that is better than the incumbent by the wanted gap (decision form, bounds section S2). Its dual
bound holds for each of these families, "infeasible" lifts them to the cutoff, a plan is simulated and its
missing rows are added. No family left below the cutoff is the proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import SolverError
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.problem import JointProblem, ModelPlan
from pipette_milp.formulations.reduction import family_bound_s, placeable
from pipette_milp.solvers.cut_loop import CutPool, Judged, first_plan, judge, model_objective_s, separate
from pipette_milp.solvers.interval_cuts import first_cuts, interval_cuts
from pipette_milp.solvers.solver_call import Backend, Progress, SolveOptions, SolveReport, solve
from pipette_milp.solvers.subprocess_solve import SolverProcess

CLOSED = 5e-7
"""Relative distance of incumbent and bound that counts as closed: above what the back ends round, half of
what results are compared with."""
SAFETY = 1e-6
"""Every reported bound is lower than the solver's by this factor, above its tolerances."""
OPTIMAL_GAP = 1e-5
"""Gap up to which a result is called optimal (contract, ``termination``)."""
MAX_ARCS = 60_000
"""Arc variables of one model; a family beyond it keeps its own bound. About what HiGHS gets through its root
relaxation in a minute."""

Status = Literal["OPTIMAL", "GAP_REACHED", "LIMIT", "INFEASIBLE", "NO_PLAN_FOUND", "INTERRUPTED", "ERROR"]


@dataclass(frozen=True)
class JointProgress:
    """State after an improvement: the incumbent never rises, the bound never falls."""

    time_s: float
    incumbent: ModelPlan | None
    incumbent_s: float | None
    """Scaled simulated time."""
    lower_bound_s: float


@dataclass(frozen=True)
class Round:
    """One solver call and what came of it; all times scaled, bounds without safety margin."""

    families: int
    cuts: int
    """Path cuts in the model."""
    status: str
    claimed_s: float | None
    simulated_s: float | None
    bound_s: float | None
    """Dual bound of the model."""
    incumbent_s: float | None
    """After the round."""
    lower_bound_s: float
    """Over all families, after the round."""
    new_cuts: int
    wall_s: float
    message: str = ""


@dataclass(frozen=True)
class JointOutcome:
    """Best plan over all families and the proof that came with it; times scaled.

    ``claimed_s`` and ``recomputed_s`` are None if the incumbent came from outside the model, or from a point
    where a gap or limit stopped the solver with its objective above what the plan needs.
    ``lower_bound_s`` is ``inf`` where no family has a plan below the cutoff the caller gave.
    """

    plan: ModelPlan | None
    simulated_s: float | None
    claimed_s: float | None
    recomputed_s: float | None
    lower_bound_s: float
    family_bounds_s: tuple[float, ...]
    status: Status
    rounds: tuple[Round, ...]
    cuts: int
    messages: tuple[str, ...] = ()

    @property
    def gap(self) -> float | None:
        """``(simulated_s - lower_bound_s) / simulated_s``"""
        if self.simulated_s is None:
            return None
        return max(0.0, (self.simulated_s - self.lower_bound_s) / self.simulated_s)


Listener = Callable[[JointProgress], None]


def solve_joint(
    families: Sequence[CostTables],
    *,
    scales: Sequence[float] | None = None,
    backend: Backend = "milp",
    solver_name: str | None = None,
    incumbent: ModelPlan | None = None,
    cutoff_s: float | None = None,
    bounds_s: Sequence[float] | None = None,
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    iteration_limit: int | None = None,
    threads: int = 1,
    seed: int = 0,
    listener: Listener | None = None,
    stop: Callable[[], bool] = lambda: False,
    in_process: bool = False,
) -> JointOutcome:
    """Minimise ``scales[f]`` times the simulated iteration time over all plans of all families.

    Parameters
    ----------
    families
        Cost tables, one a configuration family.
    scales
        Makes times of families comparable (1 where all have the same global batch).
    backend, solver_name
        "milp" with a Pyomo solver's name (None: HiGHS with progress), or "cpsat".
    incumbent
        A plan to start from.
    cutoff_s
        Only plans below this scaled time are of interest: the incumbent of a search around this one.
    bounds_s
        Scaled lower bound of each family, where known.
    time_limit_s, iteration_limit, gap
        Limits on wall time, on rounds, and the relative gap that is good enough.
    listener
        Called at every improvement.
    stop
        Polled about twenty times a second; True ends the search with what it has.
    in_process
        Call the solver in this process: starts faster, but a call cannot be ended early.

    Raises
    ------
    ValueError
        Lists of different lengths, a negative limit, or an incumbent of a family that is not there.
    """
    if not families:
        raise ValueError("no families to choose from")
    if time_limit_s < 0 or gap < 0 or (iteration_limit is not None and iteration_limit < 0):
        raise ValueError("limits and gap must not be negative")
    scales = [1.0] * len(families) if scales is None else list(scales)
    bounds = [0.0] * len(families) if bounds_s is None else list(bounds_s)
    if not len(scales) == len(bounds) == len(families):
        raise ValueError(f"{len(families)} families, {len(scales)} scales, {len(bounds)} bounds")
    if incumbent is not None and not 0 <= incumbent.family < len(families):
        raise ValueError(f"incumbent of family {incumbent.family}: there are {len(families)}")
    options = SolveOptions(backend, solver_name, time_limit_s, 0.0, threads, seed)
    search = _Search(list(families), scales, bounds, options, gap, cutoff_s, listener, stop)
    return search.run(incumbent, iteration_limit, in_process=in_process)


@dataclass
class _Search:
    """State of one joint search."""

    families: list[CostTables]
    scales: list[float]
    bounds_s: list[float]
    options: SolveOptions
    gap: float
    cutoff_s: float | None
    listener: Listener | None
    stop: Callable[[], bool]
    cuts: CutPool = field(default_factory=CutPool)
    rounds: list[Round] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    best: ModelPlan | None = None
    best_s: float | None = None
    claimed_s: float | None = None
    recomputed_s: float | None = None
    started_families: set[int] = field(default_factory=set)
    """Those that have their interval cuts."""
    proven_s: float = 0.0
    """Largest lower bound so far, with its safety margin."""
    started: float = field(default_factory=time.monotonic)

    def run(
        self, incumbent: ModelPlan | None, iteration_limit: int | None, *, in_process: bool
    ) -> JointOutcome:
        ended: Status | None = None
        try:
            ended = self._prepare(incumbent)
            with SolverProcess() as child:
                while ended is None:
                    ended = self._why_stop(iteration_limit)
                    if ended is None:
                        ended = self._round(None if in_process else child)
        except KeyboardInterrupt:
            ended = "INTERRUPTED"
        return self._outcome(ended)

    # preparation

    def _prepare(self, incumbent: ModelPlan | None) -> Status | None:
        """A bound for every family and a first incumbent."""
        if incumbent is not None:
            self._offer(judge(self.families[incumbent.family], incumbent))
        for index, tables in enumerate(self.families):
            if self.stop():
                return "INTERRUPTED"
            if self._time_left() <= 0:
                return "LIMIT"
            if not placeable(Family(tables)):
                self.bounds_s[index] = math.inf
                continue
            self._add_cuts(index, first_cuts(tables, index))
            first = first_plan(tables, index)
            if first is not None:
                self._offer(judge(tables, first))
        self._report_bound()
        return None

    def _add_cuts(self, family: int, cuts: list[PathCut]) -> None:
        """Start cuts of a family, and what they say about it with every link at its best."""
        self.cuts.add(cuts)
        own_s = self.scales[family] * family_bound_s(Family(self.families[family]), cuts)
        self.bounds_s[family] = max(self.bounds_s[family], own_s)

    def _time_left(self) -> float:
        return self.options.time_limit_s - (time.monotonic() - self.started)

    def _why_stop(self, iteration_limit: int | None) -> Status | None:
        if not self._open():
            return self._closed()
        if self.stop():
            return "INTERRUPTED"
        if self._time_left() <= 0 or (iteration_limit is not None and len(self.rounds) >= iteration_limit):
            return "LIMIT"
        return None

    def _closed(self) -> Status:
        if self.best_s is None:
            return "INFEASIBLE"
        return "GAP_REACHED"

    # rounds

    def _cutoff(self) -> float | None:
        """Only plans below this are asked for."""
        limits = [] if self.cutoff_s is None else [self.cutoff_s]
        if self.best_s is not None:
            limits.append(self.best_s * (1 - max(self.gap, CLOSED)))
        return min(limits, default=None)

    def _open(self) -> list[int]:
        """Families that may still have such a plan, cheapest bound first."""
        cutoff = self._cutoff()
        below = [f for f, b in enumerate(self.bounds_s) if b < (math.inf if cutoff is None else cutoff)]
        return sorted(below, key=lambda family: self.bounds_s[family])

    def _choose(self) -> list[int]:
        """Open families, cheapest bound first, as many as one model bears.

        Families get their interval cuts when they are first chosen; those that the cuts close are
        left out.
        """
        while True:
            chosen: list[int] = []
            total = 0
            for family in self._open():
                arcs = arc_count(self.families[family])
                if total + arcs <= MAX_ARCS:
                    chosen.append(family)
                    total += arcs
            new = [family for family in chosen if family not in self.started_families]
            for family in new:
                if self.stop() or self._time_left() <= 0:
                    return []
                self._add_cuts(family, interval_cuts(self.families[family], family))
                self.started_families.add(family)
            self._report_bound()
            if not new:
                return sorted(chosen)

    def _round(self, child: SolverProcess | None) -> Status | None:
        active = self._choose()
        if not active:
            ended = self._why_stop(None)
            if ended is not None:
                return ended
            self.messages.append(
                f"models of more than {MAX_ARCS} arcs are not built; bounds are the families' own"
            )
            return "LIMIT"
        began = time.monotonic()
        cutoff = self._cutoff()
        cuts = self.cuts.of(active)
        bounds = tuple(self.bounds_s[f] for f in active)
        problem = JointProblem(
            tables=tuple(self.families[f] for f in active),
            scales=tuple(self.scales[f] for f in active),
            reference_s=self.best_s or max(min(bounds), 1e-9),
            cuts=cuts,
            bounds_s=bounds,
            cutoff_s=cutoff,
            start=self._start(active),
        )
        report = self._call(problem, active, child)
        judged, fault = self._judge(report, active, problem)
        lower_s = None if fault else self._lift(report, active, cutoff)
        new_cuts = 0
        if judged is not None and report.claimed_s is not None:
            family = judged.plan.family
            claimed_s = report.claimed_s / self.scales[family]
            new_cuts = self.cuts.add(separate(self.families[family], judged, family, claimed_s))
        self.rounds.append(
            Round(
                families=len(active),
                cuts=len(cuts),
                status=report.status,
                claimed_s=report.claimed_s,
                simulated_s=None if judged is None else self._scaled(judged),
                bound_s=lower_s,
                incumbent_s=self.best_s,
                lower_bound_s=self.proven_s,
                new_cuts=new_cuts,
                wall_s=time.monotonic() - began,
                message=fault or report.message,
            )
        )
        if fault or report.status == "error":
            self.messages.append(fault or report.message)
            return "ERROR"
        if report.status == "optimal" and new_cuts == 0 and self._open():
            self.messages.append(
                "the model's bound and the simulation do not meet, and no cut separates them"
            )
            return "LIMIT"
        return None

    def _start(self, active: list[int]) -> ModelPlan | None:
        """The incumbent as a hint for CP-SAT; for a MILP it is no start, it fails the cutoff."""
        if self.best is None or self.best.family not in active or self.options.backend == "milp":
            return None
        return ModelPlan(active.index(self.best.family), self.best.layers, self.best.node_of_cell)

    def _call(self, problem: JointProblem, active: list[int], child: SolverProcess | None) -> SolveReport:
        options = SolveOptions(
            self.options.backend,
            self.options.solver_name,
            max(self._time_left(), 0.1),
            self.gap / 4,
            self.options.threads,
            self.options.seed,
        )

        def on_progress(progress: Progress) -> None:
            if progress.plan is not None:
                self._try_plan(_renumbered(progress.plan, active))
            if progress.bound_s is not None:
                self._lift_to(progress.bound_s, active, problem.cutoff_s)

        if child is None:
            return solve(problem, options, on_progress)
        return child.solve(problem, options, on_progress, self.stop)

    def _try_plan(self, plan: ModelPlan) -> None:
        """An intermediate plan: used if it is one, dropped if not (the final one is what gets reported)."""
        try:
            self._offer(judge(self.families[plan.family], plan))
        except (SolverError, IndexError):
            return

    def _judge(
        self, report: SolveReport, active: list[int], problem: JointProblem
    ) -> tuple[Judged | None, str | None]:
        """Simulate the final plan and hold the claim against the model's objective without a solver."""
        if report.plan is None or report.claimed_s is None:
            return None, None
        try:
            plan = _renumbered(report.plan, active)
            judged = judge(self.families[plan.family], plan)
        except (SolverError, IndexError) as error:
            return None, f"solver returned no valid plan: {error}"
        recomputed_s = model_objective_s(problem, report.plan.family, judged.durations)
        slack_s = SAFETY * problem.reference_s
        if report.claimed_s < recomputed_s - slack_s:
            return None, f"solver claims {report.claimed_s} s, its model's objective is {recomputed_s} s"
        if report.bound_s is not None and report.bound_s > recomputed_s + slack_s:
            return None, f"solver bound {report.bound_s} s is above its own plan at {recomputed_s} s"
        if report.claimed_s > recomputed_s + slack_s:
            # a solver that stops at a gap or a limit may leave the objective above what the plan needs:
            # that says nothing about the plan, and is no claim to hold against it
            self._offer(judged)
            return judged, None
        self._offer(judged, report.claimed_s, recomputed_s)
        return judged, None

    # incumbent and bounds

    def _scaled(self, judged: Judged) -> float:
        return self.scales[judged.plan.family] * judged.simulated_s

    def _offer(
        self, judged: Judged, claimed_s: float | None = None, recomputed_s: float | None = None
    ) -> None:
        """Take a plan as incumbent if it is better; the same plan with a claim adds the claim."""
        value_s = self._scaled(judged)
        if self.best_s is None or value_s < self.best_s:
            self.best, self.best_s = judged.plan, value_s
            self.claimed_s, self.recomputed_s = claimed_s, recomputed_s
            self._tell()
        elif judged.plan == self.best and claimed_s is not None:
            self.claimed_s, self.recomputed_s = claimed_s, recomputed_s

    def _lift(self, report: SolveReport, active: list[int], cutoff: float | None) -> float | None:
        """Bounds of the families of a model after its solve; the model's bound."""
        if report.status == "infeasible":
            bound_s = math.inf
        elif report.bound_s is None or report.status == "error":
            return None
        else:
            bound_s = report.bound_s
        self._lift_to(bound_s, active, cutoff)
        return bound_s

    def _lift_to(self, bound_s: float, active: list[int], cutoff: float | None) -> None:
        """A dual bound speaks of plans within the cutoff only."""
        reached = min(bound_s, math.inf if cutoff is None else cutoff)
        for family in active:
            self.bounds_s[family] = max(self.bounds_s[family], reached)
        self._report_bound()

    def _report_bound(self) -> None:
        lowest_s = min(self.bounds_s)
        if self.best_s is not None:
            lowest_s = min(lowest_s, self.best_s)
        proven_s = lowest_s * (1 - SAFETY)
        if proven_s > self.proven_s:
            self.proven_s = proven_s
            self._tell()

    def _tell(self) -> None:
        if self.listener is not None:
            elapsed_s = time.monotonic() - self.started
            self.listener(JointProgress(elapsed_s, self.best, self.best_s, self.proven_s))

    def _outcome(self, ended: Status | None) -> JointOutcome:
        status: Status = ended or "LIMIT"
        if self.best_s is None:
            if status == "LIMIT":
                status = "NO_PLAN_FOUND"
        elif status in ("LIMIT", "GAP_REACHED", "ERROR"):
            reached = (self.best_s - self.proven_s) / self.best_s
            if reached <= OPTIMAL_GAP:
                status = "OPTIMAL"
            elif reached <= self.gap + OPTIMAL_GAP and status != "ERROR":
                status = "GAP_REACHED"
        return JointOutcome(
            plan=self.best,
            simulated_s=self.best_s,
            claimed_s=self.claimed_s,
            recomputed_s=self.recomputed_s,
            lower_bound_s=self.proven_s,
            family_bounds_s=tuple(bound * (1 - SAFETY) for bound in self.bounds_s),
            status=status,
            rounds=tuple(self.rounds),
            cuts=len(self.cuts),
            messages=tuple(dict.fromkeys(self.messages)),
        )


def _renumbered(plan: ModelPlan, active: list[int]) -> ModelPlan:
    return ModelPlan(active[plan.family], plan.layers, plan.node_of_cell)


def arc_count(tables: CostTables) -> int:
    """Arc variables of a family's model."""
    family = Family(tables)
    pairs = len(family.hosts) ** 2
    sets = family.num_boundaries * family.replicas
    if family.ring_model == "positions":
        sets += family.stages * len(family.ring_positions)
    elif family.ring_model == "nodes":
        sets += family.stages
    if tables.embedding_bytes > 0:
        sets += family.replicas
    return sets * pairs
