"""What nodes that are groups of their own hold, case by case.

A slow node has a few contents at most that a good plan can give it, mostly cells of one stage with few
layers. A relaxation mixes many of them and pays for none: a tenth of a ring on its card costs a tenth. Here
the split model is asked with one content given, for each in turn: the rings on the node's card then need what
they need, and the hops of the replicas that come into the node and leave it are known
(`pipette_milp.solvers.runs`). Few contents pass. Together, one of each lone node, they are the cases that the
pattern model is asked about one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.contents import Contents
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.highs import INFINITY, Solved
from pipette_milp.solvers.patterns import ROUNDING, Prices
from pipette_milp.solvers.runs import Lane, Runs
from pipette_milp.solvers.split_model import SplitModel

MOST_CONTENTS = 40
"""Contents of a lone node, after all rings were tried, that are asked about one by one."""
MOST_CASES = 100
"""Combinations of contents that are asked about; with more, the other lone nodes stay open."""


@dataclass(frozen=True)
class Held:
    """What one lone node holds."""

    group: int
    position: int
    """In the contents listed."""
    rings: tuple[int, ...]
    """Stages with a ring on its card."""
    lanes: list[list[Lane]]
    """See `Runs.lanes`."""


@dataclass(frozen=True)
class Case:
    """A content for some lone nodes, and a bound of all plans with them."""

    bound_s: float
    held: tuple[Held, ...]


class CardModel(SplitModel):
    """The split model with the rings on some nodes' cards given, and the hops of one replica.

    Args:
        card_bytes_per_s: of every such node.
    """

    def __init__(
        self,
        tables: CostTables,
        ceiling_s: float,
        low: IntArray,
        high: IntArray,
        card_bytes_per_s: list[float],
    ) -> None:
        super().__init__(tables, ceiling_s, low, high)
        self.on_card: list[IntArray] = []
        """Per card [p] columns: whether a stage's ring is on it."""
        if not self.load_rows:
            return
        stages = range(tables.pipeline)
        for card in card_bytes_per_s:
            on = self.columns(tables.pipeline, 0.0, 0.0)
            per_byte = tables.tensor / card
            per_layer = per_byte * self.base.bytes_per_layer
            extra = per_byte * self.base.bytes_extra
            most = per_layer * self.high_of_stage + extra
            needed = [self.column(0.0, float(most[s])) for s in stages]
            for s in stages:
                layers = [(int(j), -per_layer) for j in self.layers[s :: tables.pipeline]]
                terms = [(needed[s], 1.0), *layers, (int(on[s]), -float(most[s]))]
                self.row(terms, at_least=float(extra[s] - most[s]))
                together = float(most.sum())
                self.row(
                    [(int(self.load[s]), 1.0), *[(c, -1.0) for c in needed], (int(on[s]), -together)],
                    at_least=-together,
                )
            self.on_card.append(on)

    def give_rings(self, card: int, rings: tuple[int, ...]) -> None:
        """The rings on a card, and no others."""
        if self.on_card:
            for s, column in enumerate(self.on_card[card]):
                self.set_bounds(int(column), float(s in rings), float(s in rings))

    def give_lane(self, lane: Lane | None) -> None:
        """The hops that the replica has at least which the model is about; None for any replica."""
        for j in range(len(self.hop_forward)):
            forward = self.hop_floor_s if lane is None else float(lane.forward_s[j])
            backward = self.hop_floor_s if lane is None else float(lane.backward_s[j])
            self.set_bounds(int(self.hop_forward[j]), forward, INFINITY)
            self.set_bounds(int(self.hop_backward[j]), backward, INFINITY)


class LoneNodes:
    """The lone nodes of a family.

    Args:
        listed: by the slots of a group all contents of its nodes.
        ask: the bound of a model's relaxation and its solution.
        deadline: on the monotonic clock; what was not asked by then is left in.
    """

    def __init__(
        self,
        tables: CostTables,
        groups: list[Group],
        listed: dict[int, Contents],
        ceiling_s: float,
        ask: Callable[[CardModel], tuple[float, Solved]],
        deadline: float,
    ) -> None:
        self.tables = tables
        self.groups = groups
        self.lone = [g for g, group in enumerate(groups) if len(group.nodes) == 1]
        links = GroupLinks(tables, groups)
        self.cards = [float(links.card[g]) for g in self.lone]
        self.listed = listed
        self.runs = [Runs(tables, links, g, listed[groups[g].slots]) for g in self.lone]
        self.ceiling_s = ceiling_s
        self.ask = ask
        self.deadline = deadline

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline

    def cases(
        self, model: CardModel, useful: list[NDArray[np.bool_]]
    ) -> tuple[list[Case], list[NDArray[np.bool_]]]:
        """All cases of a part of the layer splits, of which every plan below the ceiling is one, and what is
        left of ``useful`` (per group).

        A case without contents stands for all of them.
        """
        left = list(useful)
        found: list[list[tuple[float, Held]] | None] = []
        for card, g in enumerate(self.lone):
            left[g] = self._left_by_rings(model, card, useful[g])
            found.append(self._contents(model, card, left[g]))
            if found[-1] is not None:
                left[g] = np.zeros_like(left[g])
                left[g][[held.position for _, held in found[-1]]] = True
            if not left[g].any():
                return [], left
        cases = [Case(0.0, ())]
        for one in found:
            if one is None or len(cases) * len(one) > MOST_CASES:
                continue
            cases = list(self._combined(model, cases, one))
        return sorted(cases, key=lambda case: case.bound_s), left

    def _left_by_rings(self, model: CardModel, card: int, useful: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """What of the contents is left by the sets of rings they put on the card; with each set, by the hops
        into the node and out of it at that relaxation's prices."""
        listed = self.listed[self.groups[self.lone[card]].slots]
        sets, set_of_content = listed.ring_sets
        left = useful.copy()
        out: list[int] = []
        model.give_lane(None)
        for other in range(len(self.lone)):
            model.give_rings(other, ())
        positions = np.flatnonzero(useful)
        set_of_useful = set_of_content[positions]
        present = np.unique(set_of_useful)
        for k in present[np.argsort(sets[present].sum(axis=1), kind="stable")]:
            if self.late:
                break
            rings = tuple(int(s) for s in np.flatnonzero(sets[k]))
            bits = sum(1 << s for s in rings)
            here = positions[set_of_useful == k]
            if any(one & bits == one for one in out):  # fewer rings are too many already
                left[here] = False
                continue
            model.give_rings(card, rings)
            bound, solved = self.ask(model)
            if bound >= self.ceiling_s:
                left[here] = False
                if rings:
                    out.append(bits)
                continue
            prices = Prices.of(model, solved, model.low, model.high)
            lift = self.runs[card].lift(listed.chosen(here), prices.hop_forward, prices.hop_backward)
            left[here[prices.bound_s + lift > self.ceiling_s * (1 + ROUNDING)]] = False
        model.give_rings(card, ())
        return left

    def _contents(
        self, model: CardModel, card: int, useful: NDArray[np.bool_]
    ) -> list[tuple[float, Held]] | None:
        """The contents that one lone node may have by itself, with their bounds; None where they are many."""
        positions = np.flatnonzero(useful)
        if len(positions) > MOST_CONTENTS:
            return None
        g = self.lone[card]
        listed = self.listed[self.groups[g].slots]
        sets, set_of_content = listed.ring_sets
        found = []
        for position in positions:
            content = listed.held[position].astype(np.int64)
            rings = tuple(int(s) for s in np.flatnonzero(sets[set_of_content[position]]))
            held = Held(g, int(position), rings, self.runs[card].lanes(content))
            bound = self._value(model, (held,), 0.0)
            if bound < self.ceiling_s:
                found.append((bound, held))
        return found

    def _combined(
        self, model: CardModel, cases: list[Case], contents: list[tuple[float, Held]]
    ) -> Iterator[Case]:
        """Every case with every content of one more node, where they can be together."""
        for case in cases:
            for bound, held in contents:
                both = (*case.held, held)
                if self._overfull(both):
                    continue
                least = max(case.bound_s, bound)
                value = self._value(model, both, least) if case.held else least
                if value < self.ceiling_s:
                    yield Case(value, both)

    def _overfull(self, held: tuple[Held, ...]) -> bool:
        """Whether a stage would have more cells than there are."""
        cells: Array = np.zeros(self.tables.pipeline)
        for one in held:
            cells += self.listed[self.groups[one.group].slots].held[one.position]
        return bool(np.any(cells > self.tables.data))

    def _value(self, model: CardModel, held: tuple[Held, ...], least_s: float) -> float:
        """A bound of all plans with these contents, at least what is known already."""
        for card, g in enumerate(self.lone):
            model.give_rings(card, next((one.rings for one in held if one.group == g), ()))
        value = least_s
        every: list[list[Lane] | list[None]] = [lanes for one in held for lanes in one.lanes]
        for lanes in every or [[None]]:
            if value >= self.ceiling_s or self.late:
                break
            best = math.inf
            for lane in lanes:
                model.give_lane(lane)
                best = min(best, self.ask(model)[0])
                if best <= value:
                    break
            value = max(value, best)
        return value
