"""Branch and bound over configuration families, in decision form, with worker processes.

The family with the least bound is asked, at the next depth, whether it holds a plan better than the incumbent
by half the wanted gap (bounds, section S2). Depths: layer split with best links; node patterns over one group
of nodes; over the groups found from the links; the same with more time; the exact arc model. With many pods
the first asks for whole layers and for the pods that rings cross. What the relaxations find are starting
points for plans; the time between is shared with local search on the families that could still win.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.construct import candidates_from
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.exhaustive import candidate_count, candidates
from pipette_milp.solvers.family_bound import FamilyBound, bound_family
from pipette_milp.solvers.greedy import greedy, starting_plan
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.highs import SAFETY
from pipette_milp.solvers.layer_branches import BranchKey
from pipette_milp.solvers.local_search import local_search
from pipette_milp.solvers.pod_layouts import pod_layout
from pipette_milp.solvers.pods import many_pods
from pipette_milp.solvers.scout import plain_layouts, scout
from pipette_milp.solvers.state import ENUMERATION, SearchState
from pipette_milp.solvers.workers import Done, Job, Pool

COARSE_GAP = 0.03
"""Gap asked for first; then the wanted one, then half of it. Coarse questions are answered quickly, and what
they close stays closed."""
MIDDLE_GAP = 0.01
"""Asked for in between where the coarse gap took more than `SHORT_OF_TIME` of the time limit: the wanted one
would likely not be reached, and a question that is not answered for every family says nothing."""
SHORT_OF_TIME = 0.3
DEPTH_LIMITS_S = (5.0, 20.0, 20.0, 40.0, 60.0)
"""Time limit of a bound job by depth: split, one group, groups, groups again, exact arcs."""
LONE_LIMIT_S = 8.0
"""The same where a slow node is a group of its own: the groups from the start, because a single group says
too little, and little time at first."""
EASED = 0.003
"""Once better plans have lowered the question by this much since a family was first asked, it is asked at
the first depths again: an easier question may need no groups."""
POD_LIMIT_S = 15.0
"""The same of the first depth with many pods. With 64 stages whole layers take half a minute; what is settled
stays so, and the family is asked again."""
PATIENCE = (0.0, 0.02, 0.04, 0.10, 0.15)
"""By how much of the incumbent a family's bound must be lower than that of one that can be asked cheaply, so
that it goes first, by depth: the least bound decides the proof, but not every second lifts it equally
well."""
EXACT_DEPTH = 4
SEARCH_SHARE = 0.12
"""Share of worker time spent on local search while bounds are still open."""
SEARCH_SLICE_S = 1.0
EARLY_SEARCH_S = 8.0
EARLY_SHARE = 0.1
"""Search, in all and as a share of the time limit, before the first question that takes longer: how hard the
questions are depends on the plan to beat."""
SLICES_BEFORE_BUILDING = 3
BEST_COUNTS = 0.8
"""How much a family's best plan counts for where to search, beside its bound."""
TIRING = 0.02
"""By how much of the incumbent a family is less promising after a second of search; it goes with the root of
the seconds, so that a near plan is searched longer."""
ENUMERATED = 20_000
"""Plans of a family that are enumerated where GPUs are told apart, by their upper limit: some seconds."""
BUILD_DEPTH = 2
BUILD_LIMIT_S = 10.0
BUILD_GAINS = (0.012, 0.004, 0.001)
"""Once a family that could still win was searched, the pattern model is asked for contents that would beat
the incumbent by this much: what it finds is a start that exchanges of cells do not reach. Large gains first:
the closer the question to the model's optimum, the longer the answer takes (measured: 10 s at 1 % below, more
than 40 s at the incumbent)."""
POLISH_ITERATIONS = 2_000
"""Moves of local search on what greedy layouts or a relaxation start from, before the family is searched in
slices as others are. Measured with 16 nodes: 0.03 s, mostly within 3 % of what 130,000 moves find, where the
layouts themselves are 10 to 30 % off: which family to search is seen only then."""
POLISH_SHARE = 0.1
"""Once the wanted gap is reached, at most this share of the time limit goes into half of it."""
MOST_LABELLED = 256
"""Nodes up to which the contents of a relaxation are turned into placements; it takes seconds beyond, and
pods leave the contents without a place."""
EXACT_ARCS = 40_000
"""Boundary and ring arcs, p * d * N^2, up to which the exact arc model is tried."""
ROUNDING = 2e-9
"""How far below the wanted gap the question stays: what is closed to rounding must not end just above it."""
FINEST_QUESTION = 1e-6
"""Least relative improvement that is asked for: the solvers' tolerance."""
POLL_S = 0.2

Plans = list[tuple[float, Candidate]]
"""Simulated seconds of plans. Where GPUs are told apart, of plans without GPUs the best case."""
Answer = tuple[FamilyBound, Plans]


def branch_and_bound(state: SearchState) -> None:
    """Run until the gap is reached, the limits are, or nothing is left to ask."""
    if not state.families:
        return
    scout(state)
    run = _Run(state)
    workers = max(1, state.limits.threads)
    with Pool(state.families, workers) as pool:
        run.loop(pool)


@dataclass
class _Run:
    state: SearchState
    jobs: int = 0
    search_s: float = 0.0
    bound_s: float = 0.0
    reached_at: float | None = None
    level: int = 0
    levels: tuple[float, ...] = field(init=False)
    """Gaps that are asked for one after the other, before half the wanted one."""
    branches_s: dict[int, dict[BranchKey, float]] = field(default_factory=dict)
    """Per family what earlier answers proved about parts of it."""
    time_factor: float = 1.0
    """How many times its limit a bound job may take now."""
    depth: IntArray = field(init=False)
    cut_short: IntArray = field(init=False)
    """Per family the least depth at which an answer was ended by its time limit; len(DEPTH_LIMITS_S) for
    none."""
    searched_s: np.ndarray = field(init=False)
    slices: IntArray = field(init=False)
    """Per family how often it was searched."""
    built: IntArray = field(init=False)
    """Per family the next of `BUILD_GAINS`."""
    asked_s: np.ndarray = field(init=False)
    """Ceiling of the family's first question at a depth above 0, 0 before; see `EASED`."""
    podded: np.ndarray = field(init=False)
    """Whether a family sees many pods."""
    settled: np.ndarray = field(init=False)
    """Whether the exact model answered the family's question of now; its bound may be short of the ceiling by
    the solver's tolerance."""

    def __post_init__(self) -> None:
        self.levels = (COARSE_GAP, self.state.limits.gap)
        self.depth = np.zeros(len(self.state.families), dtype=np.int64)
        self.cut_short = np.full(len(self.state.families), len(DEPTH_LIMITS_S))
        self.searched_s = np.zeros(len(self.state.families))
        self.slices = np.zeros(len(self.state.families), dtype=np.int64)
        self.built = np.zeros(len(self.state.families), dtype=np.int64)
        self.asked_s = np.zeros(len(self.state.families))
        self.settled = np.zeros(len(self.state.families), dtype=bool)
        self.podded = np.array([many_pods(tables) is not None for tables in self.state.families])
        self.rng = np.random.default_rng(self.state.limits.seed)

    def loop(self, pool: Pool) -> None:
        prepared = False
        while not self.finished(pool):
            while pool.idle and (job := self.next_job(pool)) is not None:
                pool.submit(job)
                self.jobs += 1
            if not prepared:
                _load_kernels(self.state.families[int(np.argmin(self.state.lower))])
                prepared = True
            if not pool.running:
                break
            for done in pool.poll(min(POLL_S, max(0.01, self.state.time_left_s))):
                self.take(done)

    def finished(self, pool: Pool) -> bool:
        """Whether to stop now."""
        state, limits = self.state, self.state.limits
        if state.time_left_s <= 0:
            return True
        if limits.iterations is not None and self.jobs >= limits.iterations and not pool.running:
            return True
        self.refine()
        if state.gap <= self.finest_gap or (self.question_gap <= self.finest_gap and self.all_closed):
            return True
        if state.gap <= limits.gap:
            self.reached_at = self.reached_at if self.reached_at is not None else state.elapsed_s
            return state.elapsed_s - self.reached_at > POLISH_SHARE * limits.time_s
        return False

    @property
    def finest_gap(self) -> float:
        return max(FINEST_QUESTION, self.state.limits.gap / 2)

    @property
    def question_gap(self) -> float:
        """The gap asked for now."""
        levels = self.levels
        return max(self.finest_gap, levels[self.level] - ROUNDING if self.level < len(levels) else 0.0)

    def refine(self) -> None:
        """Once everything is closed at this gap, ask for the next one; families get all depths again that ask
        for more than a relaxation of the layer split."""
        while self.question_gap > self.finest_gap and self.all_closed:
            self.level += 1
            limits = self.state.limits
            late = self.state.elapsed_s > SHORT_OF_TIME * limits.time_s
            if self.level == 1 and late and limits.gap < MIDDLE_GAP:
                self.levels = (COARSE_GAP, MIDDLE_GAP, limits.gap)
            self.depth = np.minimum(self.depth, np.where(self.podded, 0, 1))
            self.cut_short[:] = len(DEPTH_LIMITS_S)
            self.settled[:] = False

    @property
    def all_closed(self) -> bool:
        """No family has a plan below the ceiling."""
        return bool(np.all((self.state.lower >= self.ceiling_s * (1 - 1e-9)) | self.settled))

    @property
    def ceiling_s(self) -> float:
        """Scaled time a plan must beat to matter."""
        return self.state.incumbent_s * (1 - self.question_gap)

    # ------------------------------------------------------------------ what next
    def next_job(self, pool: Pool) -> Job | None:
        if self.state.limits.iterations is not None and self.jobs >= self.state.limits.iterations:
            return None
        busy = {job.family for job in pool.running}
        bounding = self.next_bound(busy) or self.next_longer(pool, busy)
        if bounding is None or self.search_is_due(bounding):
            searching = self.next_search(busy)
            if searching is not None:
                return searching
        return bounding

    def search_is_due(self, bounding: Job) -> bool:
        """Whether local search goes before the next question."""
        if self.state.incumbent is None or bounding.arguments["depth"] == 0:
            return False  # first a start and a bound of every family, to see which to search
        early_s = min(EARLY_SEARCH_S, EARLY_SHARE * self.state.limits.time_s)
        return self.search_s < max(early_s, SEARCH_SHARE * (self.search_s + self.bound_s))

    def next_bound(self, busy: set[int]) -> Job | None:
        """The open family with the least bound that can still be asked something."""
        state = self.state
        ceiling = self.ceiling_s
        eased = self.asked_s > ceiling * (1 + EASED)
        self.depth[eased] = np.minimum(self.depth[eased], 1)
        self.asked_s[eased] = 0.0
        open_ = np.flatnonzero((state.lower < ceiling) & (self.depth < len(DEPTH_LIMITS_S)) & ~self.settled)
        waiting = [int(k) for k in open_ if int(k) not in busy]
        reference = state.incumbent_s if math.isfinite(state.incumbent_s) else float(state.lower.max())
        patience = np.array(PATIENCE) * reference
        for family in sorted(waiting, key=lambda k: (state.lower[k] + patience[self.depth[k]], k)):
            depth = int(self.depth[family])
            tables = state.families[family]
            arcs = tables.pipeline * tables.data * tables.num_nodes**2
            if depth == EXACT_DEPTH and (arcs > EXACT_ARCS or tables.detail is not None):
                self.depth[family] += 1
                continue
            if depth > 0 and self.asked_s[family] == 0.0:
                self.asked_s[family] = ceiling
            limit_s = self.time_factor * self.depth_limit_s(family, depth)
            return self.bound_job(family, depth, ceiling, limit_s, tag="bound")
        return None

    def depth_limit_s(self, family: int, depth: int) -> float:
        """Time limit of a bound job."""
        if depth == 0 and self.podded[family]:
            return POD_LIMIT_S
        if depth == 1 and has_lone_nodes(self.state.families[family]):
            return LONE_LIMIT_S
        return DEPTH_LIMITS_S[depth]

    def next_longer(self, pool: Pool, busy: set[int]) -> Job | None:
        """Once every question was asked: those that more time could answer, with twice the time.

        A question that is cut short (an enumeration on a busy machine) would else stay open for the rest of
        the run.
        """
        again = (self.state.lower < self.ceiling_s) & (self.cut_short < len(DEPTH_LIMITS_S)) & ~self.settled
        again[list(busy)] = False
        if not again.any() or any(job.tag == "bound" for job in pool.running):
            return None  # an answer on its way may still close what is open
        self.time_factor *= 2.0
        self.depth[again] = self.cut_short[again]
        self.cut_short[again] = len(DEPTH_LIMITS_S)
        return self.next_bound(busy)

    def next_search(self, busy: set[int]) -> Job | None:
        """A family whose bound leaves room and whose plan is near, little searched so far."""
        state = self.state
        # what a coarse question closed may still hold the best plan
        could_win = state.lower < state.incumbent_s * (1 - self.finest_gap)
        open_ = could_win & np.isfinite(state.best_s)
        candidates = [int(k) for k in np.flatnonzero(open_) if int(k) not in busy]
        if not candidates:
            return None

        # promise: how good the plan is, how low the bound; tired by what was spent already
        def merit(k: int) -> float:
            promise = BEST_COUNTS * state.best_s[k] + (1 - BEST_COUNTS) * state.lower[k]
            return float(promise / state.incumbent_s + TIRING * math.sqrt(self.searched_s[k]))

        family = min(candidates, key=merit)
        step = int(self.built[family])
        if (
            self.slices[family] >= SLICES_BEFORE_BUILDING
            and step < len(BUILD_GAINS)
            and BUILD_GAINS[step] >= self.finest_gap / 2
        ):
            self.built[family] += 1  # back again if it finds a better plan
            ceiling = state.incumbent_s * (1 - BUILD_GAINS[step])
            depth = 0 if self.podded[family] else BUILD_DEPTH
            return self.bound_job(family, depth, ceiling, BUILD_LIMIT_S, tag="build")
        limit = min(SEARCH_SLICE_S, state.time_left_s)
        arguments = {
            "start": state.best[family],
            "anew": bool(self.slices[family] % 2 == 1),
            "time_limit_s": limit,
            "seed": int(self.rng.integers(2**31)),
        }
        self.slices[family] += 1
        return Job(search_job, family, arguments, limit, tag="search")

    def bound_job(self, family: int, depth: int, ceiling_s: float, limit_s: float, tag: str) -> Job:
        """Ask a family at a depth whether it has a plan below a (scaled) ceiling."""
        state = self.state
        scale = float(state.scale[family])
        limit = min(limit_s, state.time_left_s)
        arguments = {
            "depth": depth,
            "ceiling_s": ceiling_s / scale if math.isfinite(ceiling_s) else 1e9,
            "time_limit_s": limit,
            "seed": int(self.rng.integers(2**31)),
            "known": state.best[family],
            "lower_s": float(state.lower[family]) / scale,
            "branches_s": self.branches_s.get(family, {}),
        }
        return Job(bound_job, family, arguments, limit, tag=tag)

    # ------------------------------------------------------------------ what came
    def goes_on(self, done: Done) -> bool:
        """Whether a job ended in the middle of its branches, and settled some."""
        if done.error is not None or self.depth[done.job.family] > 0:
            return False
        bound = done.value[0]
        before, ceiling_s = done.job.arguments["branches_s"], done.job.arguments["ceiling_s"]
        settled = [sum(value >= ceiling_s for value in one.values()) for one in (before, bound.branches_s)]
        return not bound.exhausted and not bound.closed and settled[1] > settled[0]

    def take(self, done: Done) -> None:
        state, family = self.state, done.job.family
        if done.job.tag != "bound":
            self.search_s += done.wall_s
            self.searched_s[family] += done.wall_s
        else:
            self.bound_s += done.wall_s
            goes_on = self.goes_on(done)
            if not goes_on and (done.error is not None or not done.value[0].exhausted):
                self.cut_short[family] = min(self.cut_short[family], self.depth[family])
            self.depth[family] += 0 if goes_on else 1
        if done.error is not None:
            state.warnings.append(f"{done.job.tag} of {state.name(family)}: {done.error}")
            return
        bound, plans = done.value
        scale = float(state.scale[family])
        better = [state.offer(family, time_s, candidate, state.name(family)) for time_s, candidate in plans]
        if done.job.tag == "build" and any(better):
            self.built[family] = 0
        if bound is not None:
            if done.job.tag == "bound":
                self.settled[family] = bound.closed
            self.branches_s[family] = bound.branches_s
            state.raise_bound(family, bound.bound_s * scale, by=bound.by)


def has_lone_nodes(tables: CostTables) -> bool:
    """Whether some node is a group of its own, a slow one."""
    groups = find_groups(tables)
    return len(groups) > len(one_group(tables)) and min(len(group.nodes) for group in groups) == 1


def _load_kernels(tables: CostTables) -> None:
    """Evaluate any plan while the workers are busy: loading compiled kernels takes a second, which the answer
    to an interrupt should not have to wait for."""
    cells = np.repeat(np.arange(tables.num_nodes), tables.slots)[: tables.pipeline * tables.data]
    candidate = Candidate(tables.min_layers, cells.reshape(tables.pipeline, tables.data))
    Evaluator(tables).simulated_s(candidate)


def bound_job(
    tables: CostTables,
    *,
    depth: int,
    ceiling_s: float,
    time_limit_s: float,
    seed: int,
    known: Candidate | None,
    lower_s: float,
    branches_s: dict[BranchKey, float],
) -> Answer:
    """Bound one family at one depth and turn what the relaxation found into plans."""
    evaluator = Evaluator(tables)
    plans: Plans = []
    pods = many_pods(tables)
    if depth == 0:
        bound = bound_family(
            evaluator, [], ceiling_s, time_limit_s=time_limit_s, known_s=branches_s, pods=pods
        )
        if known is None and not bound.closed:
            start = starting_plan(evaluator)
            if start is not None:
                plans.append(polished(evaluator, [start], seed))
        if pods is not None and bound.relaxed is not None and tables.detail is None:
            plans.append(polished(evaluator, pod_starts(tables, pods, bound), seed))
        return bound, plans
    if tables.gpu_level is not None and candidate_count(tables) <= ENUMERATED:
        return enumerate_job(evaluator, ceiling_s, time_limit_s)
    if depth == EXACT_DEPTH:
        return exact_job(tables, ceiling_s, time_limit_s, seed, known, lower_s)
    coarse = pods is not None or (depth == 1 and not has_lone_nodes(tables))
    groups = one_group(tables) if coarse else find_groups(tables)
    # whole numbers wait for every family's relaxation where there are many pods
    bound = bound_family(
        evaluator,
        groups,
        ceiling_s,
        time_limit_s=0.9 * time_limit_s,
        known_s=branches_s,
        whole=depth > 1 or pods is None,
        pods=pods,
    )
    if bound.relaxed is not None and tables.detail is None:
        starts = []
        if pods is not None:
            starts += pod_starts(tables, pods, bound)
        if tables.num_nodes <= MOST_LABELLED and bound.relaxed.contents:
            starts += candidates_from(tables, evaluator, groups, bound.relaxed)
        plans.append(polished(evaluator, starts, seed))
    return bound, plans


def polished(evaluator: Evaluator, starts: list[Candidate], seed: int) -> tuple[float, Candidate]:
    """The best of some plans, and a little local search."""
    start = min(starts, key=evaluator.simulated_s)
    return local_search(evaluator, start, np.random.default_rng(seed), iterations=POLISH_ITERATIONS)


def pod_starts(tables: CostTables, pods: IntArray, bound: FamilyBound) -> list[Candidate]:
    """Plans with the layers of a relaxation: with its pods, and the plain ones."""
    if bound.relaxed is None:
        return []
    layers = bound.relaxed.layers
    layouts = list(plain_layouts(tables, layers))
    if bound.shape is not None and bound.shape.across:
        layouts.append(pod_layout(tables, pods, layers, ~np.array(bound.shape.across)))
    return [Candidate(layers, cells) for cells in layouts]


def enumerate_job(evaluator: Evaluator, ceiling_s: float, time_limit_s: float) -> Answer:
    """Every plan of a family with its GPUs: bounds that look at nodes alone cannot close the last gap."""
    deadline = time.monotonic() + time_limit_s
    best_s, best = math.inf, None
    for candidate in candidates(evaluator):
        value = evaluator.simulated_s(candidate)
        if value < best_s:
            best_s, best = value, candidate
        if time.monotonic() > deadline:
            plans = [] if best is None else [(best_s, best)]
            return FamilyBound(0.0, False, by=ENUMERATION, exhausted=False), plans
    return FamilyBound(best_s, True, by=ENUMERATION), [] if best is None else [(best_s, best)]


def exact_job(
    tables: CostTables,
    ceiling_s: float,
    time_limit_s: float,
    seed: int,
    known: Candidate | None,
    lower_s: float,
) -> Answer:
    """The arc model of one family in the cut loop, CP-SAT."""
    from pipette_milp.formulations.problem import ModelPlan
    from pipette_milp.solvers.joint import solve_joint

    incumbent = None
    if known is not None:
        cells = tuple(tuple(int(node) for node in row) for row in known.node_of_cell)
        incumbent = ModelPlan(0, tuple(int(v) for v in known.layers), cells)
    started = time.monotonic()
    outcome = solve_joint(
        [replace(tables, gpu_level=None)],  # by nodes: a relaxation where GPUs are told apart
        backend="cpsat",
        incumbent=incumbent,
        cutoff_s=ceiling_s,
        bounds_s=[lower_s],
        time_limit_s=time_limit_s,
        seed=seed,
        in_process=True,
    )
    plans = []
    if outcome.plan is not None and outcome.simulated_s is not None:
        plans.append(
            (
                outcome.simulated_s,
                Candidate(np.array(outcome.plan.layers), np.array(outcome.plan.node_of_cell)),
            )
        )
    bound = min(outcome.lower_bound_s, ceiling_s)
    # nothing is left below the ceiling, or below the plan found there; the bound is lowered by a margin
    least_s = min(ceiling_s, math.inf if outcome.simulated_s is None else outcome.simulated_s)
    closed = bound >= least_s * (1 - 2 * SAFETY)
    late = time.monotonic() - started > 0.9 * time_limit_s
    return FamilyBound(bound, closed, by="CP-SAT", exhausted=closed or not late), plans


def search_job(
    tables: CostTables, *, start: Candidate, anew: bool, time_limit_s: float, seed: int
) -> tuple[None, Plans]:
    """Local search on one family for a slice of time.

    Args:
        start: the best plan known.
        anew: from another start, where there are such. Measured on five families of 16 unequal nodes: the
            best of six searches of a second is 0 to 4 % better than one of six seconds.
    """
    evaluator = Evaluator(tables)
    deadline = time.monotonic() + 0.9 * time_limit_s
    rng = np.random.default_rng(seed)
    if anew and tables.detail is None and tables.num_nodes <= MOST_LABELLED:
        start = greedy(evaluator, rng)
    value, candidate = local_search(
        evaluator,
        start,
        rng,
        iterations=10**9,
        stop=lambda: time.monotonic() > deadline,
    )
    return None, [(value, candidate)]
