"""The joint model for CP-SAT.

The same sets, variables, constraint families and objective as `pipette_milp.formulations.milp`, which
documents them, written for a constraint solver: choices of a node are exactly-one literals, arcs are
literals, and a duration that holds only where something is used is a row enforced by that literal instead
of a row with a big-M. No element tables: over links they have next to no relaxation.

Times are whole ticks. A tick is ``reference_s / TICKS_PER_REFERENCE``; every coefficient is computed in
floating point and rounded down once, and all variables are non-negative, so the model's optimum is a lower
bound. It lies below the exact one by at most one tick per coefficient on the longest path and one per hop
that the path takes: about 1e-7 of the reference for ten micro-batches, 1e-5 for a thousand and eight stages.

The decision strategy names the variables that make a plan; all others follow from them.

Every duration lies on some path, so no time of a plan within the cutoff exceeds the cutoff: that is the
domain of all times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from pipette_milp.errors import SolverError
from pipette_milp.formulations import cpsat_communication as communication
from pipette_milp.formulations.cpsat_family import CpSatFamily, floor_ticks
from pipette_milp.formulations.problem import CONSTRAINT_FAMILIES, JointProblem, ModelPlan
from pipette_milp.formulations.symmetry import canonical_placement, node_classes, replica_symmetry

TICKS_PER_REFERENCE = 2**30
"""Products of two coefficients have to stay inside 64 bits: with 2**36 ticks and times of 2**52, CP-SAT 9.15
called feasible models infeasible in its presolve (about one tiny model in forty; the symptom of
https://github.com/google/or-tools/issues/5274)."""
LONGEST_REFERENCES = 2**12
"""Domain of times where no cutoff bounds them."""


@dataclass(frozen=True)
class CpSatModel:
    """A built model. ``model`` is the CP-SAT model, ``parts`` its families in order."""

    problem: JointProblem
    model: Any
    parts: tuple[CpSatFamily, ...]
    tick_s: float
    """Seconds of one unit of the objective."""

    def plan(self, value: Callable[[Any], int]) -> ModelPlan:
        """Read a plan off a solution, given the value of each variable.

        Raises
        ------
        SolverError
            If the values are no plan: no family or two, a cell on no node or two.
        """
        chosen = [index for index, part in enumerate(self.parts) if value(part.use)]
        if len(chosen) != 1:
            raise SolverError(f"solution selects {len(chosen)} configuration families instead of one")
        return self.parts[chosen[0]].plan(chosen[0], value)


def build(problem: JointProblem, only: Collection[str] = CONSTRAINT_FAMILIES) -> CpSatModel:
    """Build the model, or only some of its constraint families (to test them alone).

    Raises
    ------
    ValueError
        An unknown constraint family.
    """
    unknown = set(only) - set(BUILDERS)
    if unknown:
        raise ValueError(f"no constraint family {sorted(unknown)}: choose from {list(BUILDERS)}")
    model = cp_model.CpModel()
    tick_s = problem.reference_s / TICKS_PER_REFERENCE
    longest = LONGEST_REFERENCES * TICKS_PER_REFERENCE
    if problem.cutoff_s is not None:
        longest = min(longest, floor_ticks(problem.cutoff_s, tick_s) + 1)
    parts = tuple(
        CpSatFamily(family, model, tick_s / problem.scales[index], longest, problem.excluded[index])
        for index, family in enumerate(problem.families)
    )
    built = CpSatModel(problem, model, parts, tick_s)
    for name, builder in BUILDERS.items():
        if name in only:
            builder(built)
    model.minimize(sum(part.time for part in parts))
    for part in parts:
        plan_variables = [part.use, *part.on.values(), *part.layers.values()]
        model.add_decision_strategy(plan_variables, cp_model.CHOOSE_FIRST, cp_model.SELECT_MAX_VALUE)
    if problem.start is not None:
        add_hint(built, problem.start)
    return built


def add_hint(built: CpSatModel, start: ModelPlan) -> None:
    """Hint the plan's own variables (in the placement the symmetry rows keep); the rest follows from them."""
    for index, part in enumerate(built.parts):
        nodes = None
        if index == start.family:
            nodes = canonical_placement(part.family.tables, np.array(start.node_of_cell))
        built.model.add_hint(part.use, nodes is not None)
        for j, variable in part.layers.items():
            built.model.add_hint(variable, start.layers[j] if nodes is not None else 0)
        for (s, z, n), literal in part.on.items():
            built.model.add_hint(literal, nodes is not None and nodes[s, z] == n)


def one_family(built: CpSatModel) -> None:
    built.model.add_exactly_one(part.use for part in built.parts)


def cell_on_one_node(built: CpSatModel) -> None:
    for part in built.parts:
        for s, z in part.cells:
            literals = [part.on[s, z, n] for n in part.family.hosts]
            built.model.add_exactly_one([*literals, part.use.negated()])


def node_slots(built: CpSatModel) -> None:
    for part in built.parts:
        for n in part.family.hosts:
            hosted = sum(part.on[s, z, n] for s, z in part.cells)
            built.model.add(hosted <= int(part.family.tables.slots[n]) * part.use)


def layer_split(built: CpSatModel) -> None:
    for part in built.parts:
        tables = part.family.tables
        virtual = range(part.family.num_virtual_stages)
        built.model.add(sum(part.layers[j] for j in virtual) == tables.total_layers * part.use)
        for j in virtual:
            built.model.add(part.layers[j] >= int(tables.min_layers[j]) * part.use)
            built.model.add(part.layers[j] <= int(tables.max_layers[j]) * part.use)


def memory(built: CpSatModel) -> None:
    for part in built.parts:
        family, tables = part.family, part.family.tables
        for s in range(family.stages):
            if family.stage_layer_cap is not None:
                built.model.add(part.stage_layers(s) <= int(family.stage_layer_cap[s]) * part.use)
                continue
            # whole bytes, rounded so that no split that fits is lost
            weights = {j: int(tables.memory_layer_bytes[j] // 1) for j in family.virtual_stages_of(s)}
            room = int(-((tables.memory_extra_bytes[s] - tables.memory_usable_bytes) // 1))
            used = sum(weight * part.layers[j] for j, weight in weights.items())
            built.model.add(used <= room * part.use)


def path_cuts(built: CpSatModel) -> None:
    for index, part in enumerate(built.parts):
        for cut in built.problem.cuts_of(index):
            for z in range(part.family.replicas):
                built.model.add(part.time >= part.cut_value(cut, z))


def family_bound(built: CpSatModel) -> None:
    if built.problem.bounds_s is None:
        return
    for part, bound_s in zip(built.parts, built.problem.bounds_s, strict=True):
        if np.isfinite(bound_s):
            built.model.add(part.time >= floor_ticks(bound_s, built.tick_s) * part.use)
        else:
            built.model.add(part.use == 0)


def cutoff(built: CpSatModel) -> None:
    if built.problem.cutoff_s is None:
        return
    limit = floor_ticks(built.problem.cutoff_s, built.tick_s) + 1
    for part in built.parts:
        built.model.add(part.time <= limit * part.use)


def replica_symmetry_rows(built: CpSatModel) -> None:
    for part in built.parts:
        symmetry = replica_symmetry(part.family.tables)
        if symmetry == "none":
            continue
        place = [sum(n * part.on[0, z, n] for n in part.family.hosts) for z in range(part.family.replicas)]
        for z in range(1, part.family.replicas):
            built.model.add(place[z] >= place[z - 1 if symmetry == "any" else 0])


def node_symmetry_rows(built: CpSatModel) -> None:
    for part in built.parts:
        for members in node_classes(part.family.tables):
            for before, node in pairwise(members):
                for index, (s, z) in enumerate(part.cells):
                    earlier = [part.on[i, k, before] for i, k in part.cells[:index]]
                    built.model.add_bool_or([part.on[s, z, node].negated(), *earlier])


def _each(builder: Callable[[CpSatFamily], None]) -> Callable[[CpSatModel], None]:
    """A builder for every family of configurations from one for a single family."""

    def build_all(built: CpSatModel) -> None:
        for part in built.parts:
            builder(part)

    return build_all


BUILDERS: dict[str, Callable[[CpSatModel], None]] = {
    "one_family": one_family,
    "cell_on_one_node": cell_on_one_node,
    "node_slots": node_slots,
    "layer_split": layer_split,
    "memory": memory,
    **{name: _each(builder) for name, builder in communication.BUILDERS.items()},
    "path_cuts": path_cuts,
    "family_bound": family_bound,
    "cutoff": cutoff,
    "replica_symmetry": replica_symmetry_rows,
    "node_symmetry": node_symmetry_rows,
}
"""Constraint families by name; the keys are those of `CONSTRAINT_FAMILIES`."""
