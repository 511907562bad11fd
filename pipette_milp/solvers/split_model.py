"""The split model: a relaxation of one family over its layer splits, every link at its best.

Variables
    l[j]        layers of virtual stage j                        integer
    hf, hb[j]   hop of boundary j, mean over replicas            at least the best any placement allows
    U[s]        seconds the ring of stage s needs for its bytes  >= 0
    A[s], G[s]  gradient synchronisation, parameter gather       >= 0
    e           embedding exchange                               >= 0
    E[s]        end of stage s's last task, mean over replicas   >= 0
    S, R, T     step start, slowest optimiser and gather, iteration

Constraint families (function that adds it)
    1  layers add up, memory of every stage                                  `_layers`
    2  U of a ring's own bytes on the best card; A and G follow from U        `_own_rings`
    3  S >= E + A (+ e after the ends); R >= optimiser + G; T >= S + R + fixed  `_tail`
    4  E >= path cut with mean hops, for every cut                            `add_cut`

Valid because every path cut holds for each replica, hence for the mean over replicas, and every duration is
bounded from below (formulation, section 3). `pipette_milp.solvers.pattern_model` adds the placement.
"""

from __future__ import annotations

import math

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.simulator import PathCounts
from pipette_milp.solvers.highs import INFINITY, Model
from pipette_milp.solvers.relaxed import (
    BestLinks,
    best_embedding_s,
    best_hop_s,
    local_ring_latency_s,
    ring_latency_s,
)
from pipette_milp.solvers.ring_rates import best_ring_rate
from pipette_milp.solvers.runs import Lane

MARGIN = 4e-6
"""How far above the ceiling the model looks: a solver may take what is within its tolerance (1e-6) of a bound
as beyond it, or at it."""


class SplitModel(Model):
    """Build once per family, then add cuts until they hold.

    Args:
        tables: the family.
        ceiling_s: only plans with T <= this matter.
        low, high: [V] layer bounds, already tightened with ``ceiling_s``.
    """

    def __init__(self, tables: CostTables, ceiling_s: float, low: IntArray, high: IntArray) -> None:
        super().__init__()
        self.tables = tables
        self.low, self.high = low, high
        self.best = BestLinks.of(tables)
        self.lanes: list[Lane] = []
        """Hops that some replica has at least; every path holds for it too."""
        stages, boundaries = tables.pipeline, tables.num_virtual_stages - 1
        self.low_of_stage = low.reshape(-1, stages).sum(axis=0)
        self.high_of_stage = np.minimum(high.reshape(-1, stages).sum(axis=0), tables.total_layers)
        most_s = ceiling_s * (1 + MARGIN)
        self.total = self.column(0.0, most_s, cost=1.0)
        self.step_start = self.column(0.0, most_s)
        self.slowest_step = self.column(0.0, most_s)
        self.layers = np.array(
            [self.column(float(a), float(b), integer=True) for a, b in zip(low, high, strict=True)]
        )
        self.hop_floor_s = best_hop_s(tables, self.best)
        self.hop_forward = self.columns(boundaries, self.hop_floor_s, INFINITY)
        self.hop_backward = self.columns(boundaries, self.hop_floor_s, INFINITY)
        self.finish = self.columns(stages, 0.0, ceiling_s)
        self.load = self.columns(stages, 0.0, INFINITY)
        self.sync = self.columns(stages, 0.0, INFINITY)
        self.gather = self.columns(stages, 0.0, INFINITY)
        self.exchange = self.column(best_embedding_s(tables, self.best), INFINITY)
        self._layers()
        self._own_rings()
        self._tail()

    # ------------------------------------------------------------------ 1
    def _layers(self) -> None:
        tables = self.tables
        total = float(tables.total_layers)
        self.row([(j, 1.0) for j in self.layers], at_least=total, at_most=total)
        for stage in range(tables.pipeline):
            room = tables.memory_usable_bytes - tables.memory_extra_bytes[stage]
            terms = [
                (int(self.layers[j]), float(tables.memory_layer_bytes[j] / tables.memory_usable_bytes))
                for j in range(stage, tables.num_virtual_stages, tables.pipeline)
            ]
            self.row(terms, at_most=float(room / tables.memory_usable_bytes))

    # ------------------------------------------------------------------ 2
    def _own_rings(self) -> None:
        """``load_rows[s]`` is the row of U[s], where there are rings at all.

        All rings of a family send in proportion: the gather's bytes are those of the synchronisation times a
        factor (the least one over stages, should they differ).
        """
        tables = self.tables
        self.load_rows: list[int] = []
        self.base = tables.sync if _sends(tables.sync) else tables.gather
        if tables.data == 1 or not _sends(self.base):
            return
        fewest = math.ceil(tables.data / self.best.most_slots)
        rate = self.across_rate
        if fewest == 1:  # all of it may lie inside one node
            rate = min(1.0 / self.best.local_bytes_per_s, rate)
        self.load_rows = [self.load_row(s, rate, (s,)) for s in range(tables.pipeline)]
        for ring, times in ((tables.sync, self.sync), (tables.gather, self.gather)):
            if not _sends(ring) or (ring is tables.gather and not tables.gather_exposed):
                continue
            latency = ring_latency_s(ring, tables.data, max(2, fewest))
            if fewest == 1:
                latency = min(latency, local_ring_latency_s(ring, tables.data))
            factor = _proportion(ring, self.base)
            for s in range(tables.pipeline):
                share = self.exposed_share(ring, s)
                self.row(
                    [(int(times[s]), 1.0), (int(self.load[s]), -share * factor)], at_least=share * latency
                )

    def exposed_share(self, ring: Ring, stage: int) -> float:
        """Share of a ring's time that is exposed on every placement: the last bucket."""
        return 1.0 / self.tables.sync_buckets if ring is self.tables.sync and stage == 0 else 1.0

    def proportion(self, ring: Ring) -> float:
        """Least bytes of a ring per byte of the one that U is counted for; 0 where it sends nothing."""
        return _proportion(ring, self.base) if _sends(ring) else 0.0

    @property
    def across_rate(self) -> float:
        """Seconds per byte of a ring over several nodes with nothing else on its best links."""
        tables = self.tables
        fewest = math.ceil(tables.data / self.best.most_slots)
        return max(
            1.0 / (min(self.best.most_slots, tables.data) * tables.port_bytes_per_s),
            tables.tensor / best_ring_rate(tables, max(2, fewest)),
        )

    def load_row(
        self,
        stage: int,
        s_per_byte: float,
        stages: tuple[int, ...],
        *,
        more_s: float = 0.0,
        unless: list[tuple[int, float]] | None = None,
    ) -> int:
        """``U[stage] >= s_per_byte * bytes of the rings of stages``, layers as variables.

        Args:
            more_s: what comes on top.
            unless: terms that are 1 where the row holds; 0 switches it off.
        """
        per_layer = s_per_byte * self.base.bytes_per_layer
        own = [int(self.layers[j]) for s in stages for j in range(s, len(self.layers), self.tables.pipeline)]
        constant = more_s + s_per_byte * float(self.base.bytes_extra[list(stages)].sum())
        terms = [(int(self.load[stage]), 1.0), *[(j, -per_layer) for j in own]]
        if unless is None:
            return self.row(terms, at_least=constant)
        most = constant + per_layer * self.most_layers_of(stages)
        return self.row([*terms, *[(c, -most * sign) for c, sign in unless]], at_least=constant - most)

    def most_layers_of(self, stages: tuple[int, ...]) -> float:
        """Layers that some stages have together at most: their own most, or what the others must leave."""
        inside = np.zeros(self.tables.pipeline, dtype=bool)
        inside[list(stages)] = True
        left = self.tables.total_layers - self.low_of_stage[~inside].sum()
        return float(min(self.high_of_stage[inside].sum(), left))

    def least_layers_of(self, stages: tuple[int, ...]) -> float:
        """Layers that some stages have together at least: their own least, or what the others cannot take."""
        inside = np.zeros(self.tables.pipeline, dtype=bool)
        inside[list(stages)] = True
        rest = self.tables.total_layers - self.high_of_stage[~inside].sum()
        return float(max(self.low_of_stage[inside].sum(), rest))

    # ------------------------------------------------------------------ 3
    def _tail(self) -> None:
        tables = self.tables
        for s in range(tables.pipeline):
            exchange = [(self.exchange, -1.0)] if s in (0, tables.pipeline - 1) else []
            ends = [(int(self.finish[s]), -1.0), (int(self.sync[s]), -1.0), *exchange]
            self.row([(self.step_start, 1.0), *ends], at_least=0.0)
            own = [(int(j), -tables.optimizer_layer_s) for j in self.layers[s :: tables.pipeline]]
            self.row(
                [(self.slowest_step, 1.0), (int(self.gather[s]), -1.0), *own],
                at_least=float(tables.optimizer_extra_s[s]),
            )
        self.row(
            [(self.total, 1.0), (self.step_start, -1.0), (self.slowest_step, -1.0)], at_least=tables.fixed_s
        )

    # ------------------------------------------------------------------ 4
    def add_cut(self, counts: PathCounts, end_stage: int, lane: Lane | None = None) -> None:
        """One path that ends at ``end_stage``, with the mean hops or those of a ``lane``; counts are [V] and
        [V-1]."""
        tables = self.tables
        forward, backward, weight = counts.forward, counts.backward, counts.weight_gradient
        per_layer = (
            forward * tables.forward_layer_s
            + backward * tables.backward_layer_s
            + weight * tables.weight_gradient_layer_s
        )
        constant = (
            forward @ tables.forward_extra_s
            + backward @ tables.backward_extra_s
            + weight @ tables.weight_gradient_extra_s
        )
        many = [(self.layers, -per_layer)]
        if lane is None:
            many.append((self.hop_forward, -counts.hop_forward.astype(float)))
            many.append((self.hop_backward, -counts.hop_backward.astype(float)))
        else:
            constant += counts.hop_forward @ lane.forward_s + counts.hop_backward @ lane.backward_s
        self.row([(int(self.finish[end_stage]), 1.0)], many, at_least=float(constant))

    def restrict_layers(self, low: IntArray, high: IntArray) -> None:
        """Narrower bounds of the layers than those the model was built with."""
        for j, a, b in zip(self.layers, low, high, strict=True):
            self.set_bounds(int(j), float(a), float(b))

    # ------------------------------------------------------------ solution
    def hops_of(self, x: Array) -> tuple[Array, Array]:
        """[V-1] mean hops of a solution, forward and backward."""
        return np.maximum(0.0, x[self.hop_forward]), np.maximum(0.0, x[self.hop_backward])

    def layers_of(self, x: Array) -> IntArray:
        """[V] layer split of an integer solution."""
        return np.asarray(np.round(x[self.layers]), dtype=np.int64)


def _sends(ring: Ring) -> bool:
    return bool(ring.bytes_per_layer > 0 or np.any(ring.bytes_extra > 0))


def _proportion(ring: Ring, base: Ring) -> float:
    """Largest factor f with ``bytes of ring >= f * bytes of base`` for every stage and every split."""
    ratios = [ring.bytes_per_layer / base.bytes_per_layer] if base.bytes_per_layer > 0 else []
    used = base.bytes_extra > 0
    ratios += list(ring.bytes_extra[used] / base.bytes_extra[used])
    return float(min(ratios))
