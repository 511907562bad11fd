"""Which plans are replayed: drawn by a seeded rule and written down before any of them runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.assessment import assess
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.tables import CostTables
from pipette_milp.measure.study.clusters import MICRO_BATCH
from pipette_milp.plans import cells_of_plan, default_cells
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers import solve
from pipette_milp.solvers.evaluation import Evaluator, balanced_split
from pipette_milp.solvers.greedy import greedy
from pipette_milp.solvers.local_search import local_search

MICRO_BATCHES = range(4, 17)
SLOW_ONE, SLOW = 9, 2.0
"""This plan of a cluster should take that many times as long as the optimiser's, if a draw finds one."""
SLOWEST = 2.4
"""Plans slower than the best one by more than this are drawn again: nobody would run them, and they take
long."""
PLACEMENTS = ("random", "default", "optimised")
SEARCH_MOVES = 20_000
SOLVE_S = 12.0
SOLVE_GAP = 0.005
SHARED_RINGS = (3, 6)
"""Numbers of the plans in which, where nodes have several ranks, rings of two stages must share a node: they
are rare otherwise."""
DRAWS = 200
"""Tries for one plan before the rule gives up on its kind."""


@dataclass(frozen=True)
class StudyPlan:
    """One plan and how it came to be."""

    cluster: str
    number: int
    origin: str
    """optimiser (the best of all), its default order, or drawn."""
    placement: str
    predicted_s: float
    shares_egress: bool
    """Some concurrency group sends two flows or more out of one node."""
    rings_share_node: bool
    """Rings of two stages have a node in common."""
    plan: Plan

    def to_json(self) -> dict[str, Any]:
        """For the file of plans."""
        return {**asdict(self), "plan": self.plan.model_dump(mode="json")}


def draw_plans(cluster: str, instance: Instance, count: int, rng: np.random.Generator) -> list[StudyPlan]:
    """``count`` different plans of a measured instance.

    The first is what the optimiser picks from all plans with 4 to 16 micro-batches, the second the same
    configuration in default rank order. The others go round the kinds of placement, and change the transfer
    mode each time: degrees are drawn evenly, then one of the legal configurations with them.
    """
    costs = CostModel.of(instance)
    families = [
        tables
        for tables in enumerate_space(costs).families
        if tables.configuration.num_micro_batches in MICRO_BATCHES
    ]
    best = _pick(costs)
    plans = [_judged(costs, cluster, 0, "optimiser", "optimised", best)]
    default = default_cells(costs.cluster, best.configuration)
    if default is not None:
        ordered = assess(costs, best.configuration, default).plan
        plans.append(_judged(costs, cluster, 1, "its default order", "default", ordered))
    several = int(costs.cluster.gpus_per_node.max()) > 1
    seen = {plan.plan.model_dump_json() for plan in plans}
    while len(plans) < count:
        number = len(plans)
        kind, mode = PLACEMENTS[number % len(PLACEMENTS)], ("exchange", "async")[number % 2]
        spare: StudyPlan | None = None
        for _ in range(DRAWS):
            plan = _drawn(costs, families, kind, mode, rng)
            if plan is None or plan.model_dump_json() in seen:
                continue
            judged = _judged(costs, cluster, number, "drawn", kind, plan)
            if judged.predicted_s > SLOWEST * plans[0].predicted_s:
                continue
            if number in SHARED_RINGS and several and not judged.rings_share_node:
                continue
            spare = spare or judged
            if number != SLOW_ONE or judged.predicted_s >= SLOW * plans[0].predicted_s:
                spare = judged
                break
        if spare is None:
            raise RuntimeError(f"no {kind} plan with {mode} transfers found in {DRAWS} draws")
        seen.add(spare.plan.model_dump_json())
        plans.append(spare)
    return plans


def _pick(costs: CostModel) -> Plan:
    """The optimiser's best plan with a number of micro-batches that the study wants.

    That number follows from two degrees of freedom of the search, so one of them is fixed at a time.
    """
    instance = costs.instance
    batch = instance.training.global_batch_size[0]
    best: tuple[float, Plan] | None = None
    for size in MICRO_BATCH:
        data = [d for d in range(1, costs.cluster.num_gpus + 1) if batch / (size * d) in MICRO_BATCHES]
        search = instance.search.model_copy(update={"micro_batch": (size,), "data": tuple(data)})
        result = solve(
            instance.model_copy(update={"search": search}), time_limit_s=SOLVE_S, gap=SOLVE_GAP, threads=1
        )
        if result.plan is not None and result.simulated_s is not None:
            found = result.simulated_s, result.plan
            best = found if best is None or found[0] < best[0] else best
    if best is None:
        raise RuntimeError("the optimiser found no plan for the study's instance")
    return best[1]


def _drawn(
    costs: CostModel, families: list[CostTables], kind: str, mode: str, rng: np.random.Generator
) -> Plan | None:
    usable = [tables for tables in families if tables.configuration.pipeline_transfers == mode]
    degrees = sorted({_degrees(tables.configuration) for tables in usable})
    wanted = degrees[int(rng.integers(len(degrees)))]
    members = [tables for tables in usable if _degrees(tables.configuration) == wanted]
    tables = members[int(rng.integers(len(members)))]
    layers = balanced_split(tables)
    if layers is None:
        return None
    configuration = tables.configuration.with_layers(tuple(int(count) for count in layers))
    if kind == "default":
        cells = default_cells(costs.cluster, configuration)
        return None if cells is None else assess(costs, configuration, cells).plan
    places = np.repeat(np.arange(len(tables.slots)), tables.slots)
    cells = rng.permutation(places)[: tables.pipeline * tables.data].reshape(tables.pipeline, tables.data)
    if kind == "optimised":
        evaluator = Evaluator(tables)
        _, candidate = local_search(evaluator, greedy(evaluator, rng), rng, iterations=SEARCH_MOVES)
        configuration = configuration.with_layers(tuple(int(count) for count in candidate.layers))
        cells = candidate.node_of_cell
    return assess(costs, configuration, cells).plan


def _degrees(configuration: Configuration) -> tuple[int, int, int]:
    return configuration.pipeline, configuration.tensor, configuration.data


def _judged(
    costs: CostModel, cluster: str, number: int, origin: str, placement: str, plan: Plan
) -> StudyPlan:
    cells = cells_of_plan(costs.cluster, plan)
    return StudyPlan(
        cluster=cluster,
        number=number,
        origin=origin,
        placement=placement,
        predicted_s=assess(costs, plan.configuration, plan.placement).simulated_s,
        shares_egress=shares_egress(cells, plan.configuration.tensor),
        rings_share_node=rings_share_node(cells),
        plan=plan,
    )


def shares_egress(cells: IntArray, tensor: int) -> bool:
    """Whether two flows of one boundary and direction leave the same node for other nodes."""
    for source, target in ((a, b) for s in range(len(cells) - 1) for a, b in ((s, s + 1), (s + 1, s))):
        leaving = cells[source][cells[source] != cells[target]]
        counts = np.bincount(leaving) if len(leaving) else np.zeros(1, dtype=np.int64)
        if counts.max() * tensor >= 2:
            return True
    return False


def rings_share_node(cells: IntArray) -> bool:
    """Whether the rings of two stages, each over several nodes, have a node in common."""
    rings = [set(row.tolist()) for row in cells if len(set(row.tolist())) > 1]
    return any(rings[i] & rings[j] for i in range(len(rings)) for j in range(i))


def missing(plans: list[StudyPlan]) -> list[str]:
    """What a whole study has to contain and these plans do not."""
    said = []
    if sum(plan.shares_egress for plan in plans) < 5:
        said.append("5 plans in which flows share a node's egress")
    if sum(plan.rings_share_node for plan in plans) < 3:
        said.append("3 plans in which rings of two stages share a node")
    times = [plan.predicted_s for plan in plans]
    if max(times) < 2 * min(times):
        said.append("predicted times that span a factor of 2")
    modes = {plan.plan.configuration.pipeline_transfers for plan in plans}
    if len(modes) < 2:
        said.append("both transfer modes")
    return said
