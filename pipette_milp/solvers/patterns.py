"""What one node can hold: vectors of cells per stage, the columns of the pattern model."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.highs import Solved
from pipette_milp.solvers.relaxed import tail_floor_s
from pipette_milp.solvers.split_model import SplitModel

MOST_LISTED = 600_000
"""Contents of one node that are listed at most before they are filtered: about a second of numpy."""
MOST_KEPT = 4_000
"""Contents per group that a model is built with: a few seconds of HiGHS per solve on one core."""


class TooManyPatternsError(Exception):
    """The contents of one node are too many to list, or too many of them can be part of a good plan."""


def pattern_count(stages: int, cells: int) -> int:
    """How many ways ``cells`` cells can be spread over ``stages`` stages."""
    return comb(stages + cells - 1, cells)


def patterns(stages: int, cells: int, most: int) -> IntArray:
    """[P, stages] all non-negative vectors that sum to ``cells`` with no entry above ``most``."""
    rows = np.zeros((1, stages), dtype=np.int64)
    for _ in range(cells):
        # add one cell at or after the last stage used, so that every vector arises once
        last = np.where(rows.any(axis=1), stages - 1 - np.argmax(rows[:, ::-1] > 0, axis=1), 0)
        grown = []
        for stage in range(stages):
            added = rows[last <= stage]
            added[:, stage] += 1
            grown.append(added[added[:, stage] <= most])
        rows = np.concatenate(grown)
    return rows


def node_contents(tables: CostTables, slots: int) -> IntArray:
    """[P, p] everything a node with ``slots`` places may hold; places stay empty only where cells are fewer.

    Raises:
        TooManyPatternsError: more than `MOST_LISTED`.
    """
    full = int(tables.slots.sum()) == tables.pipeline * tables.data
    width = tables.pipeline if full else tables.pipeline + 1  # one more "stage" for empty places
    if pattern_count(width, slots) > MOST_LISTED:
        raise TooManyPatternsError
    listed = patterns(width, slots, slots)[:, : tables.pipeline]
    return listed[(listed <= tables.data).all(axis=1)]


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


def useful_contents(
    model: SplitModel, groups: list[Group], prices: Prices, ceiling_s: float
) -> list[IntArray]:
    """Per group the contents that can be part of a plan with T <= ceiling.

    A content is out if the flows of one boundary that must leave or enter its node, and the rings that share
    its card, would lift the relaxed split model's optimum above the ceiling: by its duals, for one of the
    replicas concerned, so no mean is taken.

    Raises:
        TooManyPatternsError
    """
    tables = model.tables
    links = GroupLinks(tables, groups)
    per_slots: dict[int, IntArray] = {}
    useful = []
    slack = ceiling_s - prices.bound_s
    for g, group in enumerate(groups):
        if group.slots not in per_slots:
            per_slots[group.slots] = node_contents(tables, group.slots)
        listed = per_slots[group.slots]
        lift = _ring_lift(model, links, prices, g, listed) + _hop_lift(model, links, prices, g, listed)
        kept = listed[
            (lift <= slack * (1 + 1e-9) + 1e-12)
            & (_least_with_rings(model, links, prices, g, listed) <= ceiling_s * (1 + 1e-9))
        ]
        if len(kept) > MOST_KEPT:
            raise TooManyPatternsError
        useful.append(kept)
    return useful


def _hop_lift(model: SplitModel, links: GroupLinks, prices: Prices, g: int, listed: IntArray) -> Array:
    """[P] least increase of T by the flows of one boundary that must cross the node's border."""
    tables = model.tables
    lift = np.zeros(len(listed))
    floor = model.column_lower(int(model.hop_forward[0])) if len(model.hop_forward) else 0.0
    for j in range(tables.num_virtual_stages - 1):
        source, target = tables.boundary_cells(j)
        inside = np.minimum(listed[:, source], listed[:, target])
        for near, sends in ((listed[:, source], True), (listed[:, target], False)):
            crossing = near - inside
            forward = _by_count(links, tables.hop_bytes, g, crossing, sends=sends) + tables.hop_gather_s
            backward = _by_count(links, tables.hop_bytes, g, crossing, sends=not sends) + tables.hop_gather_s
            price = prices.hop_forward[j] * np.maximum(0.0, forward - floor)
            price += prices.hop_backward[j] * np.maximum(0.0, backward - floor)
            lift = np.maximum(lift, np.where(crossing > 0, price, 0.0))
    return lift


def _by_count(links: GroupLinks, sent: float, g: int, crossing: IntArray, *, sends: bool) -> Array:
    table = np.array([links.shared_s(g, sent, k, sends=sends) for k in range(int(crossing.max()) + 1)])
    return np.asarray(table[crossing])


def _card_load(model: SplitModel, links: GroupLinks, g: int, partial: IntArray) -> Array:
    """[P] least seconds a card of the group needs for the rings on it."""
    tables, ring = model.tables, model.base
    # the rings on the card have at least what the other stages cannot take
    layers = np.maximum(
        partial @ model.low_of_stage, tables.total_layers - (1 - partial) @ model.high_of_stage
    )
    least = ring.bytes_per_layer * layers + partial @ ring.bytes_extra
    return np.asarray(tables.tensor * least / links.card[g])


def _least_with_rings(
    model: SplitModel, links: GroupLinks, prices: Prices, g: int, listed: IntArray
) -> Array:
    """[P] least T of a plan in which some node has the content.

    A stage on it ends, its ring shares the card, the step follows; or all stages end, and the gather of a
    stage on it shares the card.
    """
    tables = model.tables
    least = np.zeros(len(listed))
    if not model.load_rows:
        return least
    partial = ((listed > 0) & (listed < tables.data)).astype(np.int64)
    load = _card_load(model, links, g, partial)
    tail = tail_floor_s(tables)
    step = tables.optimizer_layer_s * model.low_of_stage + tables.optimizer_extra_s
    sync, gather = model.proportion(tables.sync), model.proportion(tables.gather)
    for s in range(tables.pipeline):
        finish = 0.0 if prices.finish_s is None else float(prices.finish_s[s])
        by_sync = finish + model.exposed_share(tables.sync, s) * sync * load + tail
        by_gather = prices.start_s + float(step[s]) + gather * load + tables.fixed_s
        if not tables.gather_exposed:
            by_gather = np.zeros(len(listed))
        least = np.maximum(least, np.where(partial[:, s] > 0, np.maximum(by_sync, by_gather), 0.0))
    return least


def _ring_lift(model: SplitModel, links: GroupLinks, prices: Prices, g: int, listed: IntArray) -> Array:
    """[P] least increase of T by the rings that share the node's card."""
    tables, ring = model.tables, model.base
    lift = np.zeros(len(listed))
    if not model.load_rows:
        return lift
    partial = ((listed > 0) & (listed < tables.data)).astype(np.int64)
    high = ring.bytes_per_layer * model.high_of_stage + ring.bytes_extra
    loaded = _card_load(model, links, g, partial)
    own = high * max(model.across_rate, 1.0 / model.best.local_bytes_per_s)
    for s in range(tables.pipeline):
        gain = prices.load[s] * np.maximum(0.0, loaded - own[s])
        lift += np.where(partial[:, s] > 0, gain, 0.0)
    return lift
