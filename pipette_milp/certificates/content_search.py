"""What one node may hold in a plan below a target: searched stage by stage, with nothing listed beforehand.

The search that found the bounds lists all contents, filters them, and looks row coefficients up in tables.
Here partial contents grow by one stage at a time, and one is dropped as soon as what it holds so far makes
every plan with it too slow. Both follow the same argument (bounds, section S3); they share no code but the
times of links.

Of a plan with the content on some node, for the duals of the split model over the same layer splits:

hops    cells without their neighbour on the node send over its border, for each replica concerned; the duals
        say what a longer hop costs
rings   every ring through the node takes as long as its card needs for all of them; the duals say what a
        longer ring costs, and the ends of stages what it leads to at least
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array
from pipette_milp.solvers.group_links import GroupLinks
from pipette_milp.solvers.relaxed import tail_floor_s
from pipette_milp.solvers.split_model import SplitModel

MOST_PARTIAL = 2_000_000
"""Partial contents looked at in one step at most: 200 MB with 16 stages."""
ROUNDING = 1e-9
"""Relative amount by which a content may pass the target: order of additions."""


class TooManyContentsError(Exception):
    """More partial contents than can be looked at."""


@dataclass(frozen=True)
class SplitPrices:
    """What the duals of a split model prove; each entry at most its true value."""

    bound_s: float
    hop_forward: Array
    """[V-1] seconds of the iteration per second of a hop."""
    hop_backward: Array
    ring: Array
    """[p] seconds of the iteration per second that a ring needs for its bytes."""
    start_s: float
    """Least start of the optimiser step."""
    finish_s: Array
    """[p] least end of each stage's last task."""


def possible_contents(
    model: SplitModel, links: GroupLinks, group: int, slots: int, prices: SplitPrices, target_s: float
) -> NDArray[np.int16]:
    """[P, p] contents of a node of the group in plans that take at most the target.

    Args:
        model: whose layer bounds and times are used; times in its unit.

    Raises:
        TooManyContentsError: more than `MOST_PARTIAL`.
    """
    tables = model.tables
    stages, data = tables.pipeline, tables.data
    full = int(tables.slots.sum()) == stages * data
    search = _Search(model, links, group, slots, prices, target_s)
    held = np.zeros((1, 0), dtype=np.int16)
    for stage in range(stages):
        used = held.sum(axis=1)
        room = np.minimum(data, slots - used)
        # where no place stays empty, the stages to come must be able to fill the node
        least = np.maximum(0, slots - used - data * (stages - stage - 1)) if full else np.zeros_like(room)
        width = np.maximum(0, room - least + 1)
        if int(width.sum()) > MOST_PARTIAL:
            raise TooManyContentsError
        origin = np.repeat(np.arange(len(held)), width)
        first = np.repeat(np.cumsum(width) - width, width)
        count = np.repeat(least, width) + np.arange(len(origin)) - first
        held = np.concatenate([held[origin], count[:, None].astype(np.int16)], axis=1)
        held = held[search.possible(held)]
    return held


class _Search:
    """The tests of partial contents of one group."""

    def __init__(
        self,
        model: SplitModel,
        links: GroupLinks,
        group: int,
        slots: int,
        prices: SplitPrices,
        target_s: float,
    ) -> None:
        self.model, self.links, self.group, self.prices = model, links, group, prices
        self.target_s = target_s * (1 + ROUNDING)
        self.slack_s = self.target_s - prices.bound_s
        tables = model.tables
        floor_s = model.hop_floor_s
        gather_s = tables.hop_gather_s

        def longer_s(*, sends: bool) -> Array:
            """[slots + 1] by how much a hop over the border exceeds the floor, by flows that share the
            card."""
            times = [
                links.shared_s(group, tables.hop_bytes, k, sends=sends) + gather_s for k in range(slots + 1)
            ]
            return np.maximum(0.0, np.array(times) - floor_s)

        self.sending_s, self.receiving_s = longer_s(sends=True), longer_s(sends=False)
        rate = max(model.across_rate, 1.0 / model.best.local_bytes_per_s)
        self.own_ring_s = rate * (model.base.bytes_per_layer * model.high_of_stage + model.base.bytes_extra)
        self.tail_s = tail_floor_s(tables)
        self.step_s = tables.optimizer_layer_s * model.low_of_stage + tables.optimizer_extra_s

    def possible(self, held: NDArray[np.int16]) -> NDArray[np.bool_]:
        """[P] whether what the first stages hold leaves a plan below the target possible."""
        longer = self._hops_s(held)
        if not self.model.load_rows:
            return np.asarray(longer <= self.slack_s)
        rings, least = self._rings_s(held)
        return np.asarray((longer + rings <= self.slack_s) & (least <= self.target_s))

    def _hops_s(self, held: NDArray[np.int16]) -> Array:
        """[P] how much longer the iteration is for a replica whose hop must cross the border."""
        tables, prices = self.model.tables, self.prices
        longest = np.zeros(len(held))
        for j in range(tables.num_virtual_stages - 1):
            source, target = tables.boundary_cells(j)
            if max(source, target) >= held.shape[1]:
                continue
            near, far = held[:, source].astype(np.int64), held[:, target].astype(np.int64)
            for count, there, back in (
                (near - far, self.sending_s, self.receiving_s),
                (far - near, self.receiving_s, self.sending_s),
            ):
                crossing = np.maximum(0, count)
                cost = prices.hop_forward[j] * there + prices.hop_backward[j] * back
                longest = np.maximum(longest, np.where(crossing > 0, cost[crossing], 0.0))
        return longest

    def _rings_s(self, held: NDArray[np.int16]) -> tuple[Array, Array]:
        """[P] how much longer the iteration is by the rings that share the card, and how long it is by
        what follows the ends of their stages."""
        model, tables, prices = self.model, self.model.tables, self.prices
        base = model.base
        known = held.shape[1]
        shared = (held > 0) & (held < tables.data)
        layers = np.zeros(len(held))
        elsewhere = np.full(len(held), float(model.high_of_stage[known:].sum()))
        extra = np.zeros(len(held))
        for s in range(known):
            layers += np.where(shared[:, s], float(model.low_of_stage[s]), 0.0)
            elsewhere += np.where(shared[:, s], 0.0, float(model.high_of_stage[s]))
            extra += np.where(shared[:, s], float(base.bytes_extra[s]), 0.0)
        layers = np.maximum(layers, tables.total_layers - elsewhere)
        card_s = (base.bytes_per_layer * layers + extra) * tables.tensor / float(self.links.card[self.group])
        longer, least = np.zeros(len(held)), np.zeros(len(held))
        sync, gather = model.proportion(tables.sync), model.proportion(tables.gather)
        for s in range(known):
            own = prices.ring[s] * np.maximum(0.0, card_s - self.own_ring_s[s])
            longer += np.where(shared[:, s], own, 0.0)
            end_s = float(prices.finish_s[s]) + self.tail_s
            ended = end_s + model.exposed_share(tables.sync, s) * sync * card_s
            if tables.gather_exposed:
                stepped = prices.start_s + float(self.step_s[s]) + tables.fixed_s + gather * card_s
                ended = np.maximum(ended, stepped)
            least = np.maximum(least, np.where(shared[:, s], ended, 0.0))
        return longer, least
