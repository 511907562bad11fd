"""Which contents of a node can be part of a plan below a ceiling, by the relaxed split model's prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.contents import Contents, TooManyPatternsError
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.highs import Solved
from pipette_milp.solvers.relaxed import tail_floor_s
from pipette_milp.solvers.split_model import SplitModel

MOST_PRICED = 500_000
"""Contents per group that a relaxation prices: half a second of numpy each time."""
ROUNDING = 1e-9
"""Relative amount by which a content may pass the ceiling: order of additions."""


@dataclass(frozen=True)
class Prices:
    """What the relaxed split model says an increase costs, from its duals (weak duality)."""

    bound_s: float
    hop_forward: Array
    """[V-1] seconds of T per second of hop, at least"""
    hop_backward: Array
    load: Array
    """[p] seconds of T per second of what a ring needs for its bytes"""
    start_s: float = 0.0
    """Least start of the optimiser step."""
    finish_s: Array | None = None
    """[p] least end of each stage's last task; None for 0."""

    @classmethod
    def of(cls, model: SplitModel, solved: Solved) -> Prices | None:
        """Prices of a solved relaxation; None where the solver gave no duals."""
        if solved.column_duals is None or solved.row_duals is None:
            return None
        load = np.zeros(model.tables.pipeline)
        if model.load_rows:
            load = np.maximum(0.0, solved.row_duals[model.load_rows])
        return cls(
            solved.bound,
            np.maximum(0.0, solved.column_duals[model.hop_forward]),
            np.maximum(0.0, solved.column_duals[model.hop_backward]),
            load,
        )

    @classmethod
    def free(cls, model: SplitModel, bound_s: float) -> Prices:
        """Prices that say nothing: no content is out."""
        hops = np.zeros(len(model.hop_forward))
        return cls(bound_s, hops, hops, np.zeros(model.tables.pipeline))

    def ends_s(self, tables: CostTables) -> Array:
        """[p]"""
        return np.zeros(tables.pipeline) if self.finish_s is None else self.finish_s


def useful_contents(
    model: SplitModel,
    groups: list[Group],
    listed: dict[int, Contents],
    branches: list[Prices],
    ceiling_s: float,
) -> list[NDArray[np.bool_]]:
    """Per group which contents can be part of a plan with T <= ceiling, in any of the branches.

    A content is out if the flows of one boundary that must leave or enter its node, and the rings that share
    its card, would lift the relaxed split model's optimum above the ceiling: by its duals, for one of the
    replicas concerned, so no mean is taken.

    Args:
        listed: by the slots of a group all contents of its nodes.
        branches: prices of every part of the layer splits that is open.

    Raises:
        TooManyPatternsError: more than `MOST_PRICED` in a group.
    """
    links = GroupLinks(model.tables, groups)
    known: dict[tuple[object, ...], NDArray[np.bool_]] = {}
    useful = []
    for g, group in enumerate(groups):
        key = (group.slots, *links.of_group(g))  # equal pods need one filter
        if key not in known:
            known[key] = _GroupFilter(model, links, g, listed[group.slots], branches, ceiling_s).kept()
        if known[key].sum() > MOST_PRICED:
            raise TooManyPatternsError
        useful.append(known[key])
    return useful


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
    ) -> None:
        self.model, self.links, self.g = model, links, g
        self.contents, self.branches, self.ceiling_s = contents, branches, ceiling_s
        tables = model.tables
        self.floor_s = model.column_lower(int(model.hop_forward[0])) if len(model.hop_forward) else 0.0
        self.forward_s = self._crossing_s(reverse=False)
        self.backward_s = self._crossing_s(reverse=True)
        ring = model.base
        high = ring.bytes_per_layer * model.high_of_stage + ring.bytes_extra
        self.own_s = high * max(model.across_rate, 1.0 / model.best.local_bytes_per_s)
        self.tail_s = tail_floor_s(tables)
        self.step_s = tables.optimizer_layer_s * model.low_of_stage + tables.optimizer_extra_s

    def kept(self) -> NDArray[np.bool_]:
        """[P]"""
        model, size = self.model, len(self.contents)
        kept = np.zeros(size, dtype=bool)
        left = np.arange(size)
        partial = np.zeros((size, 0))
        load = np.zeros(size)
        if model.load_rows:
            partial = self.contents.partial.astype(float)
            load = self._card_load(partial)
            # what the least demanding mixture of all branches rules out, each of them does
            lenient = self._least_with_rings(
                partial,
                load,
                np.min([one.ends_s(model.tables) for one in self.branches], axis=0),
                min(one.start_s for one in self.branches),
            )
            left = np.flatnonzero(lenient <= self.ceiling_s * (1 + ROUNDING))
        for prices in self.branches:
            contents = self.contents.chosen(left)
            lift = self._hop_lift(contents, prices)
            fits = np.ones(len(left), dtype=bool)
            if model.load_rows:
                lift += self._ring_lift(partial[left], load[left], prices)
                least = self._least_with_rings(
                    partial[left], load[left], prices.ends_s(model.tables), prices.start_s
                )
                fits = least <= self.ceiling_s * (1 + ROUNDING)
            slack = self.ceiling_s - prices.bound_s
            fits &= lift <= slack * (1 + ROUNDING) + 1e-12
            kept[left[fits]] = True
            left = left[~fits]
        return kept

    def _crossing_s(self, *, reverse: bool) -> list[tuple[NDArray[np.bool_], Array]]:
        """What a hop of the boundary's direction costs over `Contents.grid`, of the cells that must leave a
        node and of those that must come from elsewhere; the same for every boundary."""
        tables, links = self.model.tables, self.links
        source, target = self.contents.grid()
        inside = np.minimum(source, target)
        found = []
        for near, sends in ((source, True), (target, False)):
            crossing = near - inside
            by_count = np.array(
                [
                    links.shared_s(self.g, tables.hop_bytes, k, sends=sends != reverse)
                    for k in range(self.contents.slots + 1)
                ]
            )
            hop_s = np.maximum(0.0, by_count[crossing] + tables.hop_gather_s - self.floor_s)
            found.append((crossing > 0, hop_s))
        return found

    def _hop_lift(self, contents: Contents, prices: Prices) -> Array:
        """[P] least increase of T by the flows of one boundary that must cross the node's border."""
        tables = self.model.tables
        lift = np.zeros(len(contents))
        for j in range(tables.num_virtual_stages - 1):
            table = np.zeros((contents.slots + 1) ** 2)
            for (crosses, forward_s), (_, backward_s) in zip(self.forward_s, self.backward_s, strict=True):
                price = prices.hop_forward[j] * forward_s + prices.hop_backward[j] * backward_s
                table = np.maximum(table, np.where(crosses, price, 0.0))
            np.maximum(lift, contents.look_up(tables.boundary_cells(j), table), out=lift)
        return lift

    def _card_load(self, partial: Array) -> Array:
        """[P] least seconds a card of the group needs for the rings on it."""
        model, ring = self.model, self.model.base
        # the rings on the card have at least what the other stages cannot take
        layers = np.maximum(
            partial @ model.low_of_stage.astype(float),
            model.tables.total_layers - (1 - partial) @ model.high_of_stage.astype(float),
        )
        least = ring.bytes_per_layer * layers + partial @ ring.bytes_extra
        return np.asarray(model.tables.tensor * least / self.links.card[self.g])

    def _least_with_rings(self, partial: Array, load: Array, ends_s: Array, start_s: float) -> Array:
        """[P] least T of a plan in which some node has the content.

        A stage on it ends, its ring shares the card, the step follows; or all stages end, and the gather of a
        stage on it shares the card.
        """
        model, tables = self.model, self.model.tables
        sync, gather = model.proportion(tables.sync), model.proportion(tables.gather)
        least = np.zeros(len(load))
        for s in range(tables.pipeline):
            with_it = float(ends_s[s]) + model.exposed_share(tables.sync, s) * sync * load + self.tail_s
            if tables.gather_exposed:
                by_gather = start_s + float(self.step_s[s]) + gather * load + tables.fixed_s
                with_it = np.maximum(with_it, by_gather)
            np.maximum(least, partial[:, s] * with_it, out=least)
        return least

    def _ring_lift(self, partial: Array, load: Array, prices: Prices) -> Array:
        """[P] least increase of T by the rings that share the node's card."""
        lift = np.zeros(len(load))
        for s in np.flatnonzero(prices.load):
            lift += partial[:, s] * (prices.load[s] * np.maximum(0.0, load - self.own_s[s]))
        return lift


def indices_of(kept: list[NDArray[np.bool_]]) -> list[IntArray]:
    """Per group the positions that a mask keeps."""
    return [np.flatnonzero(one) for one in kept]
