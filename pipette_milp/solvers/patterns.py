"""Which contents of a node can be part of a plan below a ceiling, by the relaxed split model's prices."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.solvers.contents import Contents, TooManyPatternsError
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.highs import Solved
from pipette_milp.solvers.runs import Runs
from pipette_milp.solvers.split_model import SplitModel

MOST_PRICED = 500_000
"""Contents per group that a relaxation prices: half a second of numpy each time."""
ROUNDING = 1e-9
"""Relative amount by which a content may pass the ceiling: order of additions."""


@dataclass(frozen=True)
class Prices:
    """What the relaxed split model says about one branch: what an increase costs, from its duals (weak
    duality), and how far a ring can grow."""

    bound_s: float
    low: IntArray
    """[V] layers of the branch"""
    high: IntArray
    hop_forward: Array
    """[V-1] seconds of T per second of hop, at least"""
    hop_backward: Array
    load: Array
    """[p] seconds of T per second of what a ring needs for its bytes"""
    room_s: Array
    """[p] most seconds that a stage's ring can need for its bytes in a plan below the ceiling"""

    @classmethod
    def of(cls, model: SplitModel, solved: Solved, low: IntArray, high: IntArray) -> Prices:
        """Prices of a relaxation over the layers from low to high; where the solver gave no duals they say
        nothing: no content is out."""
        hops, load = np.zeros(len(model.hop_forward)), np.zeros(model.tables.pipeline)
        room_s = np.full(model.tables.pipeline, np.inf)
        if solved.column_duals is None or solved.row_duals is None:
            return cls(solved.bound, low, high, hops, hops, load, room_s)
        if model.load_rows:
            load = np.maximum(0.0, solved.row_duals[model.load_rows])
        return cls(
            solved.bound,
            low,
            high,
            np.maximum(0.0, solved.column_duals[model.hop_forward]),
            np.maximum(0.0, solved.column_duals[model.hop_backward]),
            load,
            room_s,
        )

    def of_stages(self, total_layers: int) -> tuple[IntArray, IntArray]:
        """[p] each: least and most layers of the pipeline stages."""
        low, high = (one.reshape(-1, len(self.load)).sum(axis=0) for one in (self.low, self.high))
        return low, np.minimum(high, total_layers)


def useful_contents(
    model: SplitModel,
    groups: list[Group],
    listed: dict[int, Contents],
    branches: list[Prices],
    ceiling_s: float,
    *,
    deadline: float = math.inf,
) -> list[list[NDArray[np.bool_]]]:
    """For every branch, per group, which contents can be part of a plan with T <= ceiling.

    A content is out if the rings that share its card need more time than one of them has, or if they, and the
    hops with which some replica comes into its node and leaves it (`pipette_milp.solvers.runs`), would lift
    the relaxed split model's optimum above the ceiling by its duals.

    Args:
        listed: by the slots of a group all contents of its nodes.
        branches: prices of every part of the layer splits that is open.
        deadline: on the monotonic clock; what was not looked at by then is left in.

    Raises:
        TooManyPatternsError: more than `MOST_PRICED` in a group.
    """
    links = GroupLinks(model.tables, groups)
    known: dict[tuple[object, ...], list[NDArray[np.bool_]]] = {}
    of_group = []
    for g, group in enumerate(groups):
        key = (group.slots, *links.of_group(g))  # equal pods need one filter
        if key not in known:
            known[key] = _GroupFilter(
                model, links, g, listed[group.slots], branches, ceiling_s, deadline
            ).kept()
        if max(int(kept.sum()) for kept in known[key]) > MOST_PRICED:
            raise TooManyPatternsError
        of_group.append(known[key])
    return [list(kept) for kept in zip(*of_group, strict=True)]


class _GroupFilter:
    """The contents of one group against all branches."""

    def __init__(
        self,
        model: SplitModel,
        links: GroupLinks,
        g: int,
        contents: Contents,
        branches: list[Prices],
        ceiling_s: float,
        deadline: float,
    ) -> None:
        self.model, self.links, self.g = model, links, g
        self.contents, self.branches, self.ceiling_s = contents, branches, ceiling_s
        self.runs = Runs(model.tables, links, g, contents)
        self.ring_sets, self.set_of_content = contents.ring_sets
        self.deadline = deadline

    def kept(self) -> list[NDArray[np.bool_]]:
        """[P] of every branch."""
        found = []
        for prices in self.branches:
            if time.monotonic() > self.deadline:
                found.append(np.ones(len(self.contents), dtype=bool))
                continue
            left = np.arange(len(self.contents))
            lift = np.zeros(len(left))
            if self.model.load_rows:
                card_s = self._card_s(prices)
                left = np.flatnonzero(self._fits(card_s, prices)[self.set_of_content])
                lift = self._ring_lift(card_s, prices)[self.set_of_content[left]]
            lift = lift + self.runs.lift(self.contents.chosen(left), prices.hop_forward, prices.hop_backward)
            slack = self.ceiling_s - prices.bound_s
            kept = np.zeros(len(self.contents), dtype=bool)
            kept[left[lift <= slack * (1 + ROUNDING) + 1e-12]] = True
            found.append(kept)
        return found

    def _card_s(self, prices: Prices) -> Array:
        """[R] least seconds a card of the group needs for every set of rings on it."""
        model, ring = self.model, self.model.base
        on_card = self.ring_sets.astype(float)
        # the rings on the card have at least what the other stages cannot take
        low, high = prices.of_stages(model.tables.total_layers)
        layers = np.maximum(on_card @ low, model.tables.total_layers - (1 - on_card) @ high)
        least = ring.bytes_per_layer * layers + on_card @ ring.bytes_extra
        return np.asarray(model.tables.tensor * least / self.links.card[self.g])

    def _fits(self, card_s: Array, prices: Prices) -> NDArray[np.bool_]:
        """[R] whether every ring on the card has room for all of them."""
        tightest = np.where(self.ring_sets, prices.room_s, np.inf).min(axis=1)
        return np.asarray(card_s <= tightest * (1 + ROUNDING))

    def _ring_lift(self, card_s: Array, prices: Prices) -> Array:
        """[R] least increase of T by the rings that share the node's card."""
        model, ring = self.model, self.model.base
        _, high = prices.of_stages(model.tables.total_layers)
        # what the relaxation may count for a ring by itself
        most = ring.bytes_per_layer * high + ring.bytes_extra
        own_s = most * max(model.across_rate, 1.0 / model.best.local_bytes_per_s)
        lift = np.zeros(len(card_s))
        for s in np.flatnonzero(prices.load):
            lift += self.ring_sets[:, s] * (prices.load[s] * np.maximum(0.0, card_s - own_s[s]))
        return lift
