"""Solve, simulate, cut: one round of the loop that makes a model's bound and the simulator meet.

The simulator is the separation oracle (formulation, section 4). A plan of the model whose simulated time
exceeds its claim yields the longest paths of the simulation as cuts. The models are exact in the durations
of a whole plan, so with these cuts they claim the simulated time for it, and as there are finitely many
paths the loop ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_milp.cost.durations import Durations
from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import SolverError
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.problem import JointProblem, ModelPlan
from pipette_milp.simulator import finish_times, path_counts, simulated_s
from pipette_milp.solvers.interval_cuts import graph_of, path_cut

VIOLATION = 1e-9
"""Relative amount by which a cut must exceed the claim to be worth adding."""


class CutPool:
    """Path cuts found so far, over all families; in order of discovery, no duplicates."""

    def __init__(self) -> None:
        self._cuts: dict[PathCut, None] = {}

    def __len__(self) -> int:
        return len(self._cuts)

    def add(self, cuts: Iterable[PathCut]) -> int:
        """How many of them are new."""
        before = len(self._cuts)
        self._cuts.update(dict.fromkeys(cuts))
        return len(self._cuts) - before

    def of(self, families: Sequence[int]) -> tuple[PathCut, ...]:
        """The cuts of some families, renumbered to their position in the list."""
        position = {family: index for index, family in enumerate(families)}
        return tuple(replace(c, family=position[c.family]) for c in self._cuts if c.family in position)


@dataclass(frozen=True)
class Judged:
    """A plan with what the simulator says about it, in the family's own seconds."""

    plan: ModelPlan
    durations: Durations
    simulated_s: float


def judge(tables: CostTables, plan: ModelPlan) -> Judged:
    """Check a plan and simulate it.

    Raises
    ------
    SolverError
        If it is none: wrong lengths, slots or nodes that do not exist, a split that does not fit.
    """
    shape = (tables.pipeline, tables.data)
    nodes = np.array(plan.node_of_cell, dtype=np.int64)
    if nodes.shape != shape or len(plan.layers) != tables.num_virtual_stages:
        raise SolverError(f"plan of shape {nodes.shape}, {len(plan.layers)} stages, for {shape}")
    if nodes.min() < 0 or nodes.max() >= tables.num_nodes:
        raise SolverError("plan uses a node that does not exist")
    if np.any(np.bincount(nodes.ravel(), minlength=tables.num_nodes) > tables.slots):
        raise SolverError("plan puts more cells on a node than it has slots")
    if not Family(tables).fits(plan.layers):
        raise SolverError(f"layer split {plan.layers} breaks its sum, its bounds or the memory of a stage")
    durations = placement_durations(tables, np.array(plan.layers), nodes)
    return Judged(plan, durations, simulated_s(graph_of(tables), durations))


def separate(tables: CostTables, judged: Judged, family: int, claimed_s: float) -> list[PathCut]:
    """Path cuts that the model needs to see the plan's simulated time.

    ``claimed_s`` is the model's objective in the family's own seconds. One cut per end stage, traced in the
    replica that ends last, of those that exceed the claim.
    """
    durations, graph = judged.durations, graph_of(tables)
    weight = durations.weight_gradient_s
    finish = finish_times(
        graph,
        durations.forward_s,
        durations.backward_s,
        durations.hop_forward_s,
        durations.hop_backward_s,
        weight,
    )
    cuts = []
    for stage in range(tables.pipeline):
        z = int(np.argmax(finish[stage]))
        counts = path_counts(
            graph,
            durations.forward_s[:, z],
            durations.backward_s[:, z],
            durations.hop_forward_s[:, z],
            durations.hop_backward_s[:, z],
            stage,
            None if weight is None else weight[:, z],
        )
        cut = path_cut(counts, (), family, stage)
        if cut.value_s(durations) > claimed_s * (1 + VIOLATION):
            cuts.append(cut)
    return cuts


def model_objective_s(problem: JointProblem, family: int, durations: Durations) -> float:
    """The model's own objective at a plan without a solver (``recomputed_s`` of a result), scaled.

    The largest of the family's cuts, and its known bound, which is a row of the model too. The models are
    exact in the durations of a whole plan, so the full durations are the model's own.
    """
    cuts_s = max((cut.value_s(durations) for cut in problem.cuts_of(family)), default=0.0)
    bound_s = 0.0 if problem.bounds_s is None else problem.bounds_s[family]
    return max(problem.scales[family] * cuts_s, bound_s)


def first_plan(tables: CostTables, family: int) -> ModelPlan | None:
    """Cells in order onto the nodes; the configuration's own layer split, or an even one if it does not fit.

    None where the nodes lack room or no such split fits (another one may).
    """
    places = np.repeat(np.arange(tables.num_nodes), tables.slots)
    cells = tables.pipeline * tables.data
    layers: tuple[int, ...] | None = tables.configuration.layers_per_stage
    if layers is None or not Family(tables).fits(layers):
        layers = _filled_split(tables)
    if len(places) < cells or layers is None:
        return None
    nodes = places[:cells].reshape(tables.pipeline, tables.data)
    return ModelPlan(family, layers, tuple(tuple(int(n) for n in row) for row in nodes))


def _filled_split(tables: CostTables) -> tuple[int, ...] | None:
    """Layer by layer to the virtual stage with the fewest that has room."""
    family = Family(tables)
    low, high = family.layer_range
    caps = family.stage_layer_cap
    split = low.copy()
    while split.sum() < tables.total_layers:
        room = split < high
        if caps is not None:
            loads = split.reshape(-1, family.stages).sum(axis=0)
            room &= np.tile(loads < caps, tables.configuration.virtual_stages)
        if not room.any():
            return None
        split[int(np.argmin(np.where(room, split, np.iinfo(np.int64).max)))] += 1
    layers = tuple(int(count) for count in split)
    return layers if family.fits(layers) else None
