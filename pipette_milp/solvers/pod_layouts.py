"""Placements on pods: some stages lie whole in a pod, the pipelines of the others stay inside one as far as
they can.

What the split model with pods (`pipette_milp.solvers.pods`) decides is which stages have their ring inside
a pod. Here those take a pod each, or share one; the others are laid out pipeline after pipeline. Where a pod
ends in the middle of a pipeline, it goes on in another one, at a boundary where a longer hop costs nothing
but the way down and back: next to stages that work less than the busiest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import IntArray
from pipette_milp.cost.placement import stage_times
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.pods import Pods
from pipette_milp.solvers.relaxed import BestLinks, crossing_s

HEADS = 8
"""So many numbers of first stages that lie whole in a pod are tried, evenly apart."""


def leading(tables: CostTables) -> Iterator[NDArray[np.bool_]]:
    """[p] which stages lie whole in a pod: none, all, or the first ones, whose rings end last."""
    for head in np.unique(np.linspace(0, tables.pipeline, HEADS + 1).astype(np.int64)):
        yield np.arange(tables.pipeline) < head


def pod_layout(
    tables: CostTables, pod: IntArray, layers: IntArray, whole: Sequence[bool] | NDArray[np.bool_]
) -> IntArray:
    """[p, d] a placement.

    Args:
        pod: [N] pod of every node; there must be room for all cells.
        layers: [V]
        whole: [p] stages that shall lie in one pod; those that fit in none are laid out like the others.
    """
    rooms = _Rooms(tables, pod)
    cells = np.full((tables.pipeline, tables.data), -1, dtype=np.int64)
    beside: int | None = None
    for s in np.flatnonzero(whole):
        beside = rooms.for_whole(tables.data, beside)
        if beside is not None:
            cells[s] = rooms.take(beside, tables.data)
    free_to_cross = _free_boundaries(tables, pod, layers)
    rest = np.flatnonzero(cells[:, 0] < 0)
    runs = np.split(rest, np.flatnonzero(np.diff(rest) > 1) + 1) if len(rest) else []
    for z in range(tables.data):
        for run in runs:
            first, beyond = int(run[0]), int(run[-1]) + 1
            while first < beyond:
                label, room = rooms.for_piece(beyond - first)
                last = _piece_end(first, min(beyond, first + room), beyond, free_to_cross)
                cells[first:last, z] = rooms.take(label, last - first)
                first = last
    return cells


class _Rooms:
    """Places left in every pod, those of a node next to each other."""

    def __init__(self, tables: CostTables, pod: IntArray) -> None:
        self.left: list[IntArray] = []
        for label in np.unique(pod):
            nodes = np.flatnonzero(pod == label)
            self.left.append(np.repeat(nodes, tables.slots[nodes]))

    def take(self, label: int, number: int) -> IntArray:
        """The next places of a pod."""
        taken, self.left[label] = self.left[label][:number], self.left[label][number:]
        return taken

    def for_whole(self, number: int, beside: int | None) -> int | None:
        """A pod with room for so many cells, if it can be the one given, else the fullest such."""
        if beside is not None and len(self.left[beside]) >= number:
            return beside
        fitting = [label for label, places in enumerate(self.left) if len(places) >= number]
        return min(fitting, key=lambda label: (len(self.left[label]), label)) if fitting else None

    def for_piece(self, number: int) -> tuple[int, int]:
        """The fullest pod with room for all of a piece, else the emptiest, and its room."""
        label = self.for_whole(number, None)
        if label is None:
            label = max(range(len(self.left)), key=lambda one: (len(self.left[one]), -one))
        return label, len(self.left[label])


def _piece_end(first: int, most: int, beyond: int, free_to_cross: NDArray[np.bool_]) -> int:
    """Where a piece that starts at stage ``first`` ends: as late as there is room, at a free boundary."""
    if most == beyond:
        return most
    free = np.flatnonzero(free_to_cross[first:most])
    return first + int(free[-1]) + 1 if len(free) else most


def _free_boundaries(tables: CostTables, pod: IntArray, layers: IntArray) -> NDArray[np.bool_]:
    """[p] whether a hop across pods after stage s leaves the rounds of both its ends within the longest."""
    forward, backward, weight = stage_times(tables, layers)
    work = forward + backward + (0.0 if weight is None else weight)
    busy = work.reshape(-1, tables.pipeline).max(axis=0)
    pods = Pods.of(tables, pod)
    further = 0.0
    if pods is not None and len(np.unique(pod)) > 1:
        hop = pods.hop_s(tables, tables.hop_bytes)
        further = max(0.0, hop - crossing_s(tables, BestLinks.of(tables), tables.hop_bytes))
    spare = busy + 2 * further <= busy.max()
    return np.asarray(spare & np.append(spare[1:], True))
