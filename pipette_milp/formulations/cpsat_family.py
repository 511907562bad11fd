"""Variables of one family in the CP-SAT model, and the integer expressions built from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pipette_milp.errors import SolverError
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.links import Arcs
from pipette_milp.formulations.problem import ModelPlan
from pipette_milp.formulations.reduction import Excluded


def floor_ticks(seconds: float, tick_s: float) -> int:
    """Whole ticks, rounded down: a coefficient of a lower bound."""
    return math.floor(seconds / tick_s)


class CpSatFamily:
    """Literals and integers of one family; see `pipette_milp.formulations.milp_family.MilpFamily`.

    ``tick_s`` is what one tick of the objective is in seconds of this family, ``longest`` the domain of times
    in ticks.
    """

    def __init__(self, family: Family, model: Any, tick_s: float, longest: int, excluded: Excluded) -> None:
        self.family, self.model, self.tick_s, self.longest = family, model, tick_s, longest
        self.links = Arcs(family, excluded)
        self.cells = [(s, z) for s in range(family.stages) for z in range(family.replicas)]
        stages, replicas, hosts = range(family.stages), range(family.replicas), family.hosts
        boundaries = range(family.num_boundaries)
        _, high = family.layer_range

        self.use = model.new_bool_var("use")
        self.on = {(s, z, n): model.new_bool_var(f"on[{s},{z},{n}]") for s, z in self.cells for n in hosts}
        self.layers = {
            j: model.new_int_var(0, max(0, int(high[j])), f"layers[{j}]")
            for j in range(family.num_virtual_stages)
        }
        self.time = self._time("time")
        self.arcs = {q: self.links.hop(q) for q in boundaries}
        self.hop = {
            (q, z, a, b): model.new_bool_var(f"hop[{q},{z},{a},{b}]")
            for q in boundaries
            for z in replicas
            for a, b in self.arcs[q]
        }
        self.hop_forward = {(q, z): self._time("hop_forward") for q in boundaries for z in replicas}
        self.hop_backward = {(q, z): self._time("hop_backward") for q in boundaries for z in replicas}
        self.members = {
            (s, n, k): model.new_bool_var(f"members[{s},{n},{k}]")
            for s in stages
            for n in hosts
            if family.rings
            for k in range(family.slots[n] + 1)
        }
        self.leaves = {(s, n): model.new_bool_var("leaves") for s in stages for n in hosts if family.rings}
        ordered = [
            (s, z, n) for s, z in self.cells for n in hosts if family.ring_model == "appearance" and z > 0
        ]
        self.first = {key: model.new_bool_var("first") for key in ordered}
        self.newest = {key: model.new_bool_var("newest") for key in ordered}
        self.ring = {
            (s, i, a, b): model.new_bool_var(f"ring[{s},{i},{a},{b}]")
            for s in stages
            for i, a, b in self.links.ring(s)
        }
        self.edge = self._edges()
        self.sync = {s: self._time("sync") for s in stages}
        self.gather = {s: self._time("gather") for s in stages}
        self.exposed_sync = self._time("exposed_sync")
        self.exchange = {
            (z, a, b): model.new_bool_var(f"exchange[{z},{a},{b}]")
            for z in replicas
            for a, b in self.links.exchange()
        }
        self.embedding = self._time("embedding")
        self.step = self._time("step")

    def _time(self, name: str) -> Any:
        return self.model.new_int_var(0, self.longest, name)

    def _edges(self) -> dict[tuple[int, int, int], Any]:
        """Literal of each directed ring edge."""
        pairs = dict.fromkeys((s, a, b) for s, _, a, b in self.ring if a != b)
        return {key: self.model.new_bool_var("edge") for key in pairs}

    def ticks(self, seconds: float) -> int:
        """Rounded down; more than the longest time is as good as just above it."""
        return min(floor_ticks(seconds, self.tick_s), self.longest + 1)

    def weighted(self, terms: Sequence[tuple[Any, float]]) -> Any:
        """Sum of seconds times 0/1 or whole variables, each coefficient rounded down once."""
        return sum(self.ticks(seconds) * variable for variable, seconds in terms)

    def cell_at(self, stage: int, replica: int, node: int) -> Any:
        return self.on[stage, replica, node]

    def newest_at(self, stage: int, replica: int, node: int) -> Any:
        """Whether, up to a replica, the node is the last that appeared for the first time."""
        return self.on[stage, 0, node] if replica == 0 else self.newest[stage, replica, node]

    def stage_layers(self, stage: int) -> Any:
        return sum(self.layers[j] for j in self.family.virtual_stages_of(stage))

    def ring_bytes_ticks(self, name: str, stage: int, per_byte_s: float) -> Any:
        """Time that a stage's ring bytes take on a resource."""
        ring = self.family.rings[name].ring
        per_layer = self.ticks(per_byte_s * ring.bytes_per_layer)
        extra = self.ticks(per_byte_s * float(ring.bytes_extra[stage]))
        return per_layer * self.stage_layers(stage) + extra * self.use

    def ring_latency(self, name: str, stage: int) -> Any:
        """Latency of a ring, linear in the number of distinct nodes."""
        ring, family = self.family.rings[name].ring, self.family
        step_s = ring.latency_per_node_step_s - ring.latency_per_local_step_s
        constant_s = (
            ring.latency_s - ring.latency_per_node_step_s + family.replicas * ring.latency_per_local_step_s
        )
        empty = sum(self.members[stage, n, 0] for n in family.hosts)
        distinct = len(family.hosts) * self.use - empty
        return self.ticks(constant_s) * self.use + self.ticks(step_s) * distinct

    def cut_value(self, cut: PathCut, replica: int) -> Any:
        """A path cut's right-hand side for one replica, in ticks."""
        family = self.family
        parts = family.cut_coefficients(cut)
        terms = [self.ticks(parts.layer_s[j]) * self.layers[j] for j in range(family.num_virtual_stages)]
        terms += [self.ticks(parts.constant_s) * self.use, self.step]
        for q in range(family.num_boundaries):
            terms.append(int(parts.hop_forward[q]) * self.hop_forward[q, replica])
            terms.append(int(parts.hop_backward[q]) * self.hop_backward[q, replica])
        overlapped = cut.end_stage == 0 and family.tables.sync_buckets > 1
        terms.append(self.exposed_sync if overlapped else self.sync[cut.end_stage])
        if family.pays_embedding(cut):
            terms.append(self.embedding)
        return sum(terms)

    def plan(self, index: int, value: Callable[[Any], int]) -> ModelPlan:
        """Layer split and placement; see `CpSatModel.plan`."""
        family = self.family
        nodes = []
        for s in range(family.stages):
            row = []
            for z in range(family.replicas):
                at = [n for n in family.hosts if value(self.on[s, z, n])]
                if len(at) != 1:
                    raise SolverError(f"solution puts stage {s}, replica {z} on {len(at)} nodes")
                row.append(at[0])
            nodes.append(tuple(row))
        layers = tuple(int(value(self.layers[j])) for j in range(family.num_virtual_stages))
        return ModelPlan(index, layers, tuple(nodes))
