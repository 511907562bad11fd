"""Runs: where some replica comes into a node and where it leaves it, whatever else its placement is.

A replica's cells of consecutive stages that lie in one node are a *run*: it comes in before the first of them
and leaves after the last, unless that is the pipeline's own first or last stage. Through every stage that the
node holds goes a run, whose ends can be at any of the stages around it that the node holds without a break.
Where a stage has more cells than the one before (after), so many runs begin (end) there and share the card.

What follows holds for one replica, so no mean is taken: the path cuts hold for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.contents import Contents
from pipette_milp.solvers.group_links import GroupLinks
from pipette_milp.solvers.relaxed import best_hop_s


@dataclass(frozen=True)
class Lane:
    """Hops that some replica has at least."""

    forward_s: Array
    """[V-1]"""
    backward_s: Array

    @property
    def key(self) -> bytes:
        """Equal for equal lanes."""
        return self.forward_s.tobytes() + self.backward_s.tobytes()


class Runs:
    """Runs through the nodes of one group.

    Args:
        contents: any contents of the group's nodes, for the size of their tables.
    """

    def __init__(self, tables: CostTables, links: GroupLinks, g: int, contents: Contents) -> None:
        self.tables, self.links, self.g = tables, links, g
        self.floor_s = best_hop_s(tables, links.best)
        source, target = contents.grid()
        inside = np.minimum(source, target)
        self._leaving = self._crossing(source - inside, sends=True)
        self._coming = self._crossing(target - inside, sends=False)

    def _crossing(self, number: IntArray, *, sends: bool) -> tuple[Array, Array, Array]:
        """Over `Contents.grid`: runs that must end (begin) at a boundary, and by how much the hop forward and
        the hop backward of one that does is longer than the best; the same for every boundary."""
        counts = np.arange(int(number.max(initial=0)) + 1)
        forward, backward = (
            np.array([self._longer_s(int(k), sends=way) for k in counts]) for way in (sends, not sends)
        )
        return number.astype(float), forward[number], backward[number]

    def _longer_s(self, flows: int, *, sends: bool) -> float:
        shared_s = self.links.shared_s(self.g, self.tables.hop_bytes, max(1, flows), sends=sends)
        return max(0.0, shared_s + self.tables.hop_gather_s - self.floor_s)

    # ------------------------------------------------------------------ by prices
    def lift(self, contents: Contents, forward: Array, backward: Array) -> Array:
        """[P] least increase of T by where some replica comes into the node and leaves it.

        Args:
            forward, backward: [V-1] seconds of T per second of hop.
        """
        stages = self.tables.pipeline
        price = np.zeros((2, stages))
        for j in range(self.tables.num_virtual_stages - 1):
            price[:, j % stages] += forward[j], backward[j]
        begin, begin_s, first_s = self._ends(contents, price, coming=True)
        end, end_s, last_s = self._ends(contents, price, coming=False)
        lift = np.zeros(len(contents))
        for s in range(stages):
            for cost_s, where in (
                (first_s[s] + last_s[s], contents.held[:, s] > 0),
                (begin_s[s] + last_s[s], begin[s] > 0),
                (first_s[s] + end_s[s], end[s] > 0),
                (begin_s[s] + end_s[s], begin[s] + end[s] > contents.held[:, s]),
            ):
                np.maximum(lift, cost_s, out=lift, where=where)
        return lift

    def _ends(
        self, contents: Contents, price: Array, *, coming: bool
    ) -> tuple[list[Array], list[Array], list[Array]]:
        """Per stage [P]: runs that must begin (end) at it, what doing so costs one of them, and the least
        that it costs a run through the stage to begin (end) somewhere."""
        crossing, forward_s, backward_s = self._coming if coming else self._leaving
        stages = self.tables.pipeline
        nothing = np.zeros(len(contents))
        number, cost_s = [nothing] * stages, [nothing] * stages
        least_s = [nothing] * stages
        order = range(stages) if coming else range(stages - 1, -1, -1)
        least: Array = nothing
        for s in order:
            if s != order[0]:
                pair = (s - 1, s) if coming else (s, s + 1)
                number[s] = contents.look_up(pair, crossing)
                table = price[0, pair[0]] * forward_s + price[1, pair[0]] * backward_s
                cost_s[s] = contents.look_up(pair, table)
                least = np.minimum(cost_s[s], least)
            least = least_s[s] = np.where(contents.held[:, s] > 0, least, np.inf)
        return number, cost_s, least_s

    # ------------------------------------------------------------------ one content
    def lanes(self, held: IntArray) -> list[list[Lane]]:
        """Alternatives: of the lanes of every entry some replica has one.

        Args:
            held: [p] cells of every stage.
        """
        stages = self.tables.pipeline
        begin = np.maximum(0, held - np.concatenate([[held[0]], held[:-1]]))
        end = np.maximum(0, held - np.concatenate([held[1:], [held[-1]]]))
        found: dict[tuple[tuple[int, int], ...], list[Lane]] = {}
        for s in np.flatnonzero(held):
            first = int(s)
            while first > 0 and held[first - 1]:
                first -= 1
            last = int(s)
            while last < stages - 1 and held[last + 1]:
                last += 1
            firsts, lasts = range(first, s + 1), range(int(s), last + 1)
            here = range(int(s), int(s) + 1)
            choices = [(firsts, lasts)]
            if begin[s] + end[s] > held[s]:
                choices.append((here, here))
            else:
                choices += [(here, lasts)] if begin[s] else []
                choices += [(firsts, here)] if end[s] else []
            for some, others in choices:
                ends = tuple((a, b) for a in some for b in others)
                if ends not in found:
                    found[ends] = list(self._lanes_between(ends, begin, end))
        return list(found.values())

    def _lanes_between(
        self, ends: tuple[tuple[int, int], ...], begin: IntArray, end: IntArray
    ) -> Iterator[Lane]:
        boundaries = np.arange(self.tables.num_virtual_stages - 1)
        for first, last in ends:
            forward = np.full(len(boundaries), self.floor_s)
            backward = forward.copy()
            # where a pipeline goes through its stages several times, so does the run
            before = boundaries[boundaries % self.tables.pipeline == first - 1] if first > 0 else []
            after = boundaries[boundaries % self.tables.pipeline == last]
            after = after if last < self.tables.pipeline - 1 else after[:0]
            forward[before] += self._longer_s(int(begin[first]), sends=False)
            backward[before] += self._longer_s(int(begin[first]), sends=True)
            forward[after] += self._longer_s(int(end[last]), sends=True)
            backward[after] += self._longer_s(int(end[last]), sends=False)
            yield Lane(forward, backward)
