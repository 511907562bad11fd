"""Variables of one family in the Pyomo model, and the linear expressions built from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyomo.environ as pyo

from pipette_milp.cost.tables import IntArray
from pipette_milp.errors import SolverError
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.links import Arcs
from pipette_milp.formulations.problem import ModelPlan
from pipette_milp.formulations.reduction import Excluded


class MilpFamily:
    """One block of the model: variables, named rows, and how to read a plan off.

    ``unit_s`` is what one unit of the objective is in seconds of this family; `seconds` converts.
    """

    def __init__(self, family: Family, block: Any, unit_s: float, excluded: Excluded) -> None:
        self.family = family
        self.block = block
        self.unit_s = unit_s
        self.links = Arcs(family, excluded)
        self.cells = [(s, z) for s in range(family.stages) for z in range(family.replicas)]

    def seconds(self, value_s: float) -> float:
        """A time in model units."""
        return float(value_s) / self.unit_s

    def rows(self, name: str) -> Any:
        """The constraint list of a constraint family."""
        component = self.block.component(name)
        if component is None:
            component = pyo.ConstraintList()
            self.block.add_component(name, component)
        return component

    def create_variables(self) -> None:
        """All variables of the block; loads are made where they are needed."""
        family, block = self.family, self.block
        stages, replicas, hosts = range(family.stages), range(family.replicas), family.hosts
        _, high = family.layer_range
        block.use = pyo.Var(domain=pyo.Binary)
        block.on = pyo.Var([(s, z, n) for s, z in self.cells for n in hosts], domain=pyo.Binary)
        block.layers = pyo.Var(
            range(family.num_virtual_stages),
            domain=pyo.NonNegativeIntegers,
            bounds=lambda _, j: (0, max(0, int(high[j]))),
        )
        block.time_s = pyo.Var(domain=pyo.NonNegativeReals)
        self.arcs = {q: self.links.hop(q) for q in range(family.num_boundaries)}
        block.hop = pyo.Var(
            [(q, z, a, b) for q, arcs in self.arcs.items() for z in replicas for a, b in arcs], bounds=(0, 1)
        )
        boundaries = [(q, z) for q in range(family.num_boundaries) for z in replicas]
        block.hop_forward = pyo.Var(boundaries, domain=pyo.NonNegativeReals)
        block.hop_backward = pyo.Var(boundaries, domain=pyo.NonNegativeReals)
        block.members = pyo.Var(
            [
                (s, n, k)
                for s in stages
                for n in hosts
                if family.rings and family.slots[n] >= 2
                for k in range(family.slots[n] + 1)
            ],
            domain=pyo.Binary,
        )
        ordered = [
            (s, z, n) for s, z in self.cells for n in hosts if family.ring_model == "appearance" and z > 0
        ]
        block.first = pyo.Var(ordered, bounds=(0, 1))
        block.newest = pyo.Var(ordered, bounds=(0, 1))
        block.ring = pyo.Var([(s, i, a, b) for s in stages for i, a, b in self.links.ring(s)], bounds=(0, 1))
        block.sync = pyo.Var(stages, domain=pyo.NonNegativeReals)
        block.gather = pyo.Var(stages, domain=pyo.NonNegativeReals)
        block.exposed_sync = pyo.Var(domain=pyo.NonNegativeReals)
        block.exchange = pyo.Var(
            [(z, a, b) for z in replicas for a, b in self.links.exchange()], bounds=(0, 1)
        )
        block.embedding = pyo.Var(domain=pyo.NonNegativeReals)
        block.step = pyo.Var(domain=pyo.NonNegativeReals)

    # expressions

    def on(self, stage: int, replica: int, node: int) -> Any:
        return self.block.on[stage, replica, node]

    def stage_layers(self, stage: int) -> Any:
        """Layers of all chunks of a pipeline stage."""
        return pyo.quicksum(self.block.layers[j] for j in self.family.virtual_stages_of(stage))

    def ring_bytes(self, name: str, stage: int) -> Any:
        """What a stage's ring sends over each edge."""
        ring = self.family.rings[name].ring
        extra = float(ring.bytes_extra[stage])
        return ring.bytes_per_layer * self.stage_layers(stage) + extra * self.block.use

    def members(self, stage: int, node: int, count: int) -> Any:
        """1 if a node hosts exactly ``count`` cells of a stage."""
        if self.family.slots[node] >= 2:
            return self.block.members[stage, node, count]
        return pyo.quicksum(self.on(stage, z, node) for z in range(self.family.replicas))

    def used(self, stage: int, node: int) -> Any:
        """1 if a node hosts a cell of a stage."""
        if self.family.slots[node] >= 2:
            return self.block.use - self.block.members[stage, node, 0]
        return self.members(stage, node, 1)

    def leaves(self, stage: int, node: int) -> Any:
        """1 if the ring of a stage leaves a node (and so enters it)."""
        most = min(self.family.slots[node], self.family.replicas - 1)
        return pyo.quicksum(self.members(stage, node, k) for k in range(1, most + 1))

    def ring_edge(self, stage: int, a: int, b: int) -> Any:
        """1 if the ring of a stage has the directed edge; 0 where the cutoff rules it out."""
        ring, family = self.block.ring, self.family
        if self.links.edge_excluded(stage, a, b):
            return 0
        if family.replicas == 2:
            return ring[stage, 0, a, b] + ring[stage, 0, b, a]
        return pyo.quicksum(ring[stage, i, a, b] for i in family.ring_steps)

    def newest(self, stage: int, replica: int, node: int) -> Any:
        """1 if, up to a replica, the node is the last that appeared for the first time."""
        if replica == 0:
            return self.on(stage, 0, node)
        return self.block.newest[stage, replica, node]

    def ring_latency(self, name: str, stage: int) -> Any:
        """Latency of a ring, linear in the number of distinct nodes."""
        ring, family = self.family.rings[name].ring, self.family
        node_step = self.seconds(ring.latency_per_node_step_s)
        local_step = self.seconds(ring.latency_per_local_step_s)
        constant = self.seconds(ring.latency_s) - node_step + family.replicas * local_step
        distinct = pyo.quicksum(self.used(stage, n) for n in family.hosts)
        return constant * self.block.use + (node_step - local_step) * distinct

    def cut_value(self, cut: PathCut, replica: int) -> Any:
        """A path cut's right-hand side for one replica, in model units."""
        family, block = self.family, self.block
        parts = family.cut_coefficients(cut)
        terms = [
            self.seconds(parts.layer_s[j]) * block.layers[j]
            for j in range(family.num_virtual_stages)
            if parts.layer_s[j] > 0
        ]
        terms.append(self.seconds(parts.constant_s) * block.use)
        for q in range(family.num_boundaries):
            if parts.hop_forward[q]:
                terms.append(int(parts.hop_forward[q]) * block.hop_forward[q, replica])
            if parts.hop_backward[q]:
                terms.append(int(parts.hop_backward[q]) * block.hop_backward[q, replica])
        overlapped = cut.end_stage == 0 and family.tables.sync_buckets > 1
        terms.append(block.exposed_sync if overlapped else block.sync[cut.end_stage])
        if family.pays_embedding(cut):
            terms.append(block.embedding)
        terms.append(block.step)
        return pyo.quicksum(terms)

    # plans

    def plan_variables(self) -> list[Any]:
        return [self.block.use, *self.block.layers.values(), *self.block.on.values()]

    def plan(self, index: int, values: Mapping[int, float]) -> ModelPlan:
        """Layer split and placement; see `MilpModel.plan`."""
        block, family = self.block, self.family
        layers = tuple(round(values[id(block.layers[j])]) for j in range(family.num_virtual_stages))
        nodes = []
        for s in range(family.stages):
            row = []
            for z in range(family.replicas):
                at = [n for n in family.hosts if values[id(block.on[s, z, n])] > 0.5]
                if len(at) != 1:
                    raise SolverError(f"solution puts stage {s}, replica {z} on {len(at)} nodes")
                row.append(at[0])
            nodes.append(tuple(row))
        return ModelPlan(index, layers, tuple(nodes))

    def set_start(self, layers: tuple[int, ...], nodes: IntArray | None) -> None:
        """Start values of the plan's variables; ``nodes`` None means that the family is not used."""
        used = nodes is not None
        self.block.use.set_value(int(used))
        for j, variable in self.block.layers.items():
            variable.set_value(layers[j] if used else 0)
        for (s, z, n), variable in self.block.on.items():
            variable.set_value(int(nodes is not None and nodes[s, z] == n))
