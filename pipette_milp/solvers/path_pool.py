"""The pool of path cuts of one family: found where a relaxation misses them, repeated in every model."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.placement import stage_times
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import PathCounts, path_counts_batch
from pipette_milp.solvers.evaluation import Evaluator, balanced_split
from pipette_milp.solvers.layer_branches import Branch
from pipette_milp.solvers.relaxed import BestLinks, best_hop_s
from pipette_milp.solvers.runs import Lane
from pipette_milp.solvers.split_model import SplitModel

VIOLATION = 1e-6
"""Relative amount by which a cut must be missed to be added."""
NEAR = 1e-3
"""Share of the bound by which a cut may be slack in a branch's relaxation to be part of its integer model:
the slack ones make four fifths of the rows, and what is missed comes in rounds."""


_Durations = tuple[Array, Array, Array | None, Array, Array]
"""Forward, backward and weight gradient [V], hops forward and backward [V-1] of one replica, seconds."""


class PathPool:
    """Path cuts found so far, each once."""

    def __init__(self, evaluator: Evaluator, tables: CostTables) -> None:
        self.evaluator = evaluator
        self.tables = tables
        """Those of the evaluator in the unit of time of the models."""
        self.known: dict[bytes, tuple[PathCounts, int]] = {}
        self.inside: set[bytes] = set()
        """Keys of those in the model that was begun last, by `seed` or `repeat`."""
        self.seeds: set[bytes] = set()
        self.ends = np.arange(evaluator.tables.pipeline)

    def seed(self, model: SplitModel, low: IntArray, high: IntArray) -> None:
        """Paths at a balanced split with the best hops: plain, and with each stage in turn the busiest."""
        self.inside = set()
        tables = self.tables
        layers = balanced_split(tables)
        layers = np.clip(low if layers is None else layers, low, high)
        forward, backward, weight = stage_times(tables, layers)
        virtual = tables.num_virtual_stages
        hop = best_hop_s(tables, BestLinks.of(tables))
        busy = 1.0 + 0.5 * np.vstack([np.zeros(virtual), np.eye(virtual)])
        hops = np.full((virtual + 1, virtual - 1), hop)
        weights = None if weight is None else weight * busy
        counts = path_counts_batch(
            self.evaluator.graph, forward * busy, backward * busy, hops, hops, self.ends, weights
        )
        for k in range(virtual + 1):
            # the busiest stage shows in the way back to stage 0; the other ends matter once it is settled
            for end in self.ends if k == 0 else self.ends[:1]:
                self._add(model, _pick(counts, k, int(end)), int(end))
        self.seeds = set(self.known)

    def busiest(self, model: SplitModel, branch: Branch) -> None:
        """Into this model only: paths to every end with the branch's stage the busiest."""
        tables = self.tables
        forward, backward, weight = stage_times(tables, np.maximum(branch.low, 1))
        virtual = tables.num_virtual_stages
        hop = best_hop_s(tables, BestLinks.of(tables))
        hops = np.full(virtual - 1, hop)
        busy = 1.0 + (np.arange(virtual) == branch.busiest)
        weights = None if weight is None else weight * busy
        counts = self._longest((forward * busy, backward * busy, weights, hops, hops))
        for end in self.ends:
            model.add_cut(_pick(counts, 0, int(end)), int(end))

    def repeat(self, model: SplitModel, near: Array | None = None, *, seeds: bool = False) -> None:
        """All cuts known so far into another model of the family; with a solution of such a model only those
        that it keeps with next to no slack, and the ``seeds``."""
        self.inside = set(self.known)
        if near is not None:
            durations = self._durations(self.place_of(model, near))
            latest = float(near[model.step_start]) - NEAR - self._after_s(model, near)
            self.inside = {
                key
                for key, (counts, end) in self.known.items()
                if counts.length_s(*durations) > latest[end] or (seeds and key in self.seeds)
            }
        for key in self.known:
            if key in self.inside:
                model.add_cut(*self.known[key])

    def place_of(self, model: SplitModel, x: Array) -> Array:
        """[3V - 2] layers and hops of a solution."""
        return np.concatenate([np.maximum(0.0, x[model.layers]), *model.hops_of(x)])

    def _durations(self, place: Array, lane: Lane | None = None) -> _Durations:
        virtual = self.tables.num_virtual_stages
        layers: Any
        layers, forward, backward = np.split(place, [virtual, 2 * virtual - 1])
        if lane is not None:
            forward, backward = lane.forward_s, lane.backward_s
        return *stage_times(self.tables, layers), forward, backward

    def _after_s(self, model: SplitModel, x: Array) -> Array:
        """[p] what follows the last task of each stage before the step starts."""
        after = x[model.sync].copy()
        after[[0, -1]] += x[model.exchange]
        return np.asarray(after)

    def _longest(self, durations: _Durations) -> PathCounts:
        """The longest paths to every end."""
        forward, backward, weight, hop_forward, hop_backward = durations
        return path_counts_batch(
            self.evaluator.graph,
            forward[None],
            backward[None],
            hop_forward[None],
            hop_backward[None],
            self.ends,
            None if weight is None else weight[None],
        )

    def add_at(self, model: SplitModel, place: Array) -> None:
        """The longest paths at some layers and hops."""
        counts = self._longest(self._durations(place))
        for e in self.ends:
            self._add(model, _pick(counts, 0, int(e)), int(e))

    def add_violated(self, model: SplitModel, x: Array) -> int:
        """Cuts that the solution misses; how many were added."""
        place = self.place_of(model, x)
        most = float(x[model.step_start]) * (1 + VIOLATION) - self._after_s(model, x)
        added = 0
        for lane in (None, *model.lanes):
            durations = self._durations(place, lane)
            counts = self._longest(durations)
            for e in self.ends:
                one = _pick(counts, 0, int(e))
                if one.length_s(*durations) > most[e]:
                    added += self._add(model, one, int(e), lane)
        return added

    def _add(self, model: SplitModel, counts: PathCounts, end: int, lane: Lane | None = None) -> bool:
        key = counts.key(end)
        inside = key if lane is None else key + lane.key
        if inside in self.inside:
            return False
        self.inside.add(inside)
        if lane is None:  # the paths of a lane are those of few other models
            self.known[key] = (counts, end)
        model.add_cut(counts, end, lane)
        return True


def _pick(counts: PathCounts, k: int, e: int) -> PathCounts:
    return PathCounts(
        counts.forward[k, e],
        counts.backward[k, e],
        counts.weight_gradient[k, e],
        counts.hop_forward[k, e],
        counts.hop_backward[k, e],
    )
