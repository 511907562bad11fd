"""The joint model as a mixed-integer linear program in Pyomo.

Sets: families ``f``; per family stages ``s``, replicas ``z``, nodes ``n, a, b``, virtual stages ``j``,
distinct boundaries ``q``. Every variable of a family is multiplied by its ``use`` binary through its rows,
so an unused family is all zeros and its rows hold without a big-M of their own.

Variables per family
    ``use``; ``on[s,z,n]`` binary, cell on node; ``layers[j]`` integer; ``time_s``, the iteration;
    ``hop[q,z,a,b]`` arcs, ``hop_forward[q,z]``, ``hop_backward[q,z]``; ``members[s,n,k]`` binary, k cells
    of a stage on a node; ``first[s,z,n]``, ``newest[s,z,n]`` and ``ring[s,i,a,b]`` arcs; ``sync[s]``,
    ``gather[s]`` ring times; ``load_*`` seconds of one stage's ring on a node's egress, ingress or a node
    pair; ``exposed_sync``; ``exchange[z,a,b]``, ``embedding``; ``step``.
    Arcs and loads are continuous, and what they should be as soon as ``on`` is whole.

Objective: the sum of the families' times, of which all but one are 0.

Constraint families (formulation, sections 2, 3 and 5), each built by the function of its name
    one_family        sum_f use = 1
    cell_on_one_node  sum_n on[s,z,n] = use
    node_slots        sum_{s,z} on[s,z,n] <= slots[n]*use
    layer_split       sum_j layers[j] = total*use, within bounds
    memory            bytes of each stage <= usable*use
    hop_arcs, hop_time, hop_sharing, ring_*, sync_overlap, embedding_*, step_time: see
                      `pipette_milp.formulations.milp_communication`
    path_cuts         time_s >= counts . durations + exposed_sync[end] + embedding + step, every replica
    family_bound      time_s >= bound*use
    cutoff            sum_f time_s <= cutoff
    replica_symmetry, node_symmetry   see `pipette_milp.formulations.symmetry`

Times are in thousandths of the problem's ``reference_s``, which keeps coefficients between 1e-3 and 1e6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyomo.environ as pyo

from pipette_milp.errors import SolverError
from pipette_milp.formulations import milp_communication as communication
from pipette_milp.formulations.milp_family import MilpFamily
from pipette_milp.formulations.problem import CONSTRAINT_FAMILIES, JointProblem, ModelPlan
from pipette_milp.formulations.symmetry import canonical_placement, node_classes, replica_symmetry

UNITS_PER_REFERENCE = 1000.0


@dataclass(frozen=True)
class MilpModel:
    """A built model. ``model`` is the Pyomo model, ``parts`` its families in order."""

    problem: JointProblem
    model: Any
    parts: tuple[MilpFamily, ...]
    unit_s: float
    """Seconds of one unit of the objective."""

    def plan_variables(self) -> list[Any]:
        """The variables that make a plan, in the order `plan` expects their values."""
        return [variable for part in self.parts for variable in part.plan_variables()]

    def plan(self, values: Mapping[int, float]) -> ModelPlan:
        """Read a plan off variable values, keyed by ``id(variable)``.

        Raises
        ------
        SolverError
            If the values are no plan: no family or two, a cell on no node or two.
        """
        chosen = [index for index, part in enumerate(self.parts) if values[id(part.block.use)] > 0.5]
        if len(chosen) != 1:
            raise SolverError(f"solution selects {len(chosen)} configuration families instead of one")
        return self.parts[chosen[0]].plan(chosen[0], values)


def build(problem: JointProblem, only: Collection[str] = CONSTRAINT_FAMILIES) -> MilpModel:
    """Build the model, or only some of its constraint families (to test them alone).

    Raises
    ------
    ValueError
        An unknown constraint family.
    """
    unknown = set(only) - set(BUILDERS)
    if unknown:
        raise ValueError(f"no constraint family {sorted(unknown)}: choose from {list(BUILDERS)}")
    model = pyo.ConcreteModel()
    unit_s = problem.reference_s / UNITS_PER_REFERENCE
    model.family = pyo.Block(range(len(problem.families)))
    parts = tuple(
        MilpFamily(family, model.family[index], unit_s / problem.scales[index], problem.excluded[index])
        for index, family in enumerate(problem.families)
    )
    for part in parts:
        part.create_variables()
    built = MilpModel(problem, model, parts, unit_s)
    for name, builder in BUILDERS.items():
        if name in only:
            builder(built)
    model.objective = pyo.Objective(expr=pyo.quicksum(part.block.time_s for part in parts))
    if problem.start is not None:
        set_start(built, problem.start)
    return built


def set_start(built: MilpModel, start: ModelPlan) -> None:
    """Give the plan's own variables their values (in the placement the symmetry rows keep)."""
    for index, part in enumerate(built.parts):
        nodes = (
            canonical_placement(part.family.tables, np.array(start.node_of_cell))
            if (index == start.family)
            else None
        )
        part.set_start(start.layers, nodes)


def one_family(built: MilpModel) -> None:
    built.model.one_family = pyo.Constraint(expr=pyo.quicksum(part.block.use for part in built.parts) == 1)


def cell_on_one_node(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("cell_on_one_node")
        for s, z in part.cells:
            rows.add(pyo.quicksum(part.on(s, z, n) for n in part.family.hosts) == part.block.use)


def node_slots(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("node_slots")
        for n in part.family.hosts:
            hosted = pyo.quicksum(part.on(s, z, n) for s, z in part.cells)
            rows.add(hosted <= int(part.family.tables.slots[n]) * part.block.use)


def layer_split(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("layer_split")
        tables, block = part.family.tables, part.block
        virtual = range(part.family.num_virtual_stages)
        rows.add(pyo.quicksum(block.layers[j] for j in virtual) == tables.total_layers * block.use)
        for j in virtual:
            rows.add(block.layers[j] >= int(tables.min_layers[j]) * block.use)
            rows.add(block.layers[j] <= int(tables.max_layers[j]) * block.use)


def memory(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("memory")
        family, tables = part.family, part.family.tables
        for s in range(family.stages):
            if family.stage_layer_cap is not None:
                rows.add(part.stage_layers(s) <= int(family.stage_layer_cap[s]) * part.block.use)
                continue
            share = tables.memory_layer_bytes / tables.memory_usable_bytes
            used = pyo.quicksum(float(share[j]) * part.block.layers[j] for j in family.virtual_stages_of(s))
            room = 1.0 - float(tables.memory_extra_bytes[s] / tables.memory_usable_bytes)
            rows.add(used <= room * part.block.use)


def path_cuts(built: MilpModel) -> None:
    for index, part in enumerate(built.parts):
        rows = part.rows("path_cuts")
        for cut in built.problem.cuts_of(index):
            for z in range(part.family.replicas):
                rows.add(part.block.time_s >= part.cut_value(cut, z))


def family_bound(built: MilpModel) -> None:
    if built.problem.bounds_s is None:
        return
    for part, bound_s in zip(built.parts, built.problem.bounds_s, strict=True):
        if np.isfinite(bound_s):
            part.rows("family_bound").add(part.block.time_s >= bound_s / built.unit_s * part.block.use)
        else:
            part.rows("family_bound").add(part.block.use <= 0)


def cutoff(built: MilpModel) -> None:
    if built.problem.cutoff_s is None:
        return
    limit = built.problem.cutoff_s / built.unit_s
    for part in built.parts:
        part.block.time_s.setub(limit)
        part.rows("cutoff").add(part.block.time_s <= limit * part.block.use)


def replica_symmetry_rows(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("replica_symmetry")
        symmetry = replica_symmetry(part.family.tables)
        place = [
            pyo.quicksum(n * part.on(0, z, n) for n in part.family.hosts) for z in range(part.family.replicas)
        ]
        if symmetry == "none" or len(part.family.hosts) < 2:
            continue
        for z in range(1, part.family.replicas):
            rows.add(place[z] >= place[z - 1 if symmetry == "any" else 0])


def node_symmetry_rows(built: MilpModel) -> None:
    for part in built.parts:
        rows = part.rows("node_symmetry")
        for members in node_classes(part.family.tables):
            for before, node in pairwise(members):
                for index, (s, z) in enumerate(part.cells):
                    earlier = pyo.quicksum(part.on(i, k, before) for i, k in part.cells[:index])
                    rows.add(part.on(s, z, node) <= earlier)


def _each(builder: Callable[[MilpFamily], None]) -> Callable[[MilpModel], None]:
    """A builder for every family of configurations from one for a single family."""

    def build_all(built: MilpModel) -> None:
        for part in built.parts:
            builder(part)

    return build_all


BUILDERS: dict[str, Callable[[MilpModel], None]] = {
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
