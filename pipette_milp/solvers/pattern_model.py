"""The pattern model: a relaxation of one family over all placements and layer splits, small at any size.

Nodes fall into *groups* of equal room (pods, slow nodes, or everything in one). A column counts the nodes of
a group with a given content (bounds, section S3). Inside a group every link is the best one of the group,
between two groups the best one between them, and a shared card is charged only with what the node's own
content sends.

Further variables beside those of `pipette_milp.solvers.split_model`
    N[q, g]     nodes of group g with content q, q[s] cells of stage s      integer
    X[s, g]     cells of stage s in group g                                  = sum of q[s] N[q, g]
    f[j, g, h]  pipelines whose boundary j goes from group g to group h      >= 0
    i[j, g]     those of f[j, g, g] that stay inside a node                  >= 0
    o[s]        stage s lies on several nodes                                binary
    w[s, r]     share of the cells of s on nodes with a part of r            in [0, 1]
    z[s, k]     a node with a part of s has k or more rings                  binary
    y[s, g, R]  a node of g with a part of s has the rings R on its card      binary, added when needed
    u, w[s, g]  some of stage s lies in group g, all of it                   binary
    c[k]        some card has k or more pairs of the embedding exchange      binary

Further constraint families (function that adds it)
    5  every node has one content, every stage has its cells                  `_contents`
    6  flows leave and enter where the cells are, hops cost what they cost    `_boundary`
    7  rings: over several nodes, sharing a card (in the mean, and exactly where a solution needs it),
       crossing groups, on a node that is a group               `_spread_ring`, `_mean_card`, `add_cards`,
       `_crossings`, `_lone_node`
    8  embedding exchange: apart, sharing a card, in different groups          `_embedding`
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.content_columns import MISSING_COST, Coefficient, ContentColumns, of_group
from pipette_milp.solvers.contents import Contents
from pipette_milp.solvers.group_links import Group, GroupLinks
from pipette_milp.solvers.lone_nodes import Held
from pipette_milp.solvers.relaxed import best_embedding_s, crossing_s

CARD_TOLERANCE = 1e-5
"""Share of T by which a card must be short to be added exactly."""


PAIR_TOLERANCE = 1e-7
"""Amount, in units of T, by which the rows of a pair must be missed to be added."""


@dataclass(frozen=True)
class _Pair:
    """Stage ``stage`` and the ring of stage ``other`` on the cards of its cells; times in seconds."""

    stage: int
    other: int
    share: int
    """Column w."""
    product: int
    """Column of w times what the other ring needs."""
    largest: int
    """Column that no w of the stage exceeds."""
    low_s: float
    high_s: float
    per_layer_s: float
    extra_s: float


@dataclass(frozen=True)
class Relaxed:
    """A solution of the model in the terms of placement."""

    layers: IntArray
    """[V]"""
    contents: list[tuple[int, IntArray, int]]
    """(group, content [p], number of nodes)"""


class PatternModel(ContentColumns):
    """Build once per family and set of groups, then add cuts until they hold.

    Args:
        groups: a partition of the nodes, equal slots inside each.
        listed: per group what a node of it may hold.
        priced, elastic: see `ContentColumns`.
    """

    def __init__(
        self,
        tables: CostTables,
        ceiling_s: float,
        low: IntArray,
        high: IntArray,
        groups: list[Group],
        listed: list[Contents],
        *,
        priced: bool = False,
        elastic: bool = False,
    ) -> None:
        super().__init__(tables, ceiling_s, low, high, groups, listed, priced=priced, elastic=elastic)
        self.links = GroupLinks(tables, groups)
        self._pairs_left: dict[tuple[int, int], _Pair] = {}
        self.met: list[tuple[int, int]] = []
        """Pairs of stages whose rows a solution needed, in that order."""
        self._known_cards: set[tuple[int, int, tuple[int, ...]]] = set()
        self._contents()
        for j in range(min(tables.num_virtual_stages - 1, tables.pipeline)):
            self._boundary(j)
        for j in range(tables.pipeline, tables.num_virtual_stages - 1):
            for columns in (self.hop_forward, self.hop_backward):
                self.row([(int(columns[j]), 1.0), (int(columns[j - tables.pipeline]), -1.0)], at_least=0.0)
        if self.load_rows:
            for s in range(tables.pipeline):
                self._spread_ring(s)
                self._mean_card(s)
                self._shared_cards(s)
                if len(groups) > 1:
                    self._crossings(s)
        if tables.embedding_bytes > 0:
            self._embedding()

    # ------------------------------------------------------------------ 5
    def _contents(self) -> None:
        tables = self.tables
        self.cells = np.zeros((tables.pipeline, len(self.groups)), dtype=np.int64)
        for g, group in enumerate(self.groups):
            number = float(len(group.nodes))
            idle = [(self.column(0.0, number), 1.0)] if self.elastic else []
            one_each = of_group(g, lambda held, _: np.ones(len(held)))
            self.content_row(idle, (0, 0), one_each, at_least=number, at_most=number)
            for s in range(tables.pipeline):
                room = float(min(tables.data, len(group.nodes) * group.slots))
                self.cells[s, g] = cells = self.column(0.0, room)
                terms = [(cells, -1.0)]
                if self.elastic:
                    terms.append((self.column(0.0, room, cost=MISSING_COST), 1.0))
                held = of_group(g, lambda held, _: held.astype(float))
                self.content_row(terms, (s, s), held, at_least=0.0, at_most=0.0)
        for s in range(tables.pipeline):
            self.row([(x, 1.0) for x in self.cells[s]], at_least=tables.data, at_most=tables.data)

    # ------------------------------------------------------------------ 6
    def _boundary(self, j: int) -> None:
        tables, links = self.tables, self.links
        source, target = tables.boundary_cells(j)
        if source == target:
            return  # one pipeline stage: the wrap-around stays on its own GPUs, the best hop already
        size, data = len(self.groups), float(tables.data)
        inside = self.columns(size, 0.0, data)
        flow = np.array([self.columns(size, 0.0, data) for _ in range(size)])
        for g in range(size):
            kept = of_group(g, lambda one, other: np.minimum(one, other).astype(float))
            self.content_row([(int(inside[g]), -1.0)], (source, target), kept, at_least=0.0)
            leaving = [(int(flow[g, h]), 1.0) for h in range(size)]
            entering = [(int(flow[h, g]), 1.0) for h in range(size)]
            self.row([*leaving, (int(self.cells[source, g]), -1.0)], at_least=0.0, at_most=0.0)
            self.row([*entering, (int(self.cells[target, g]), -1.0)], at_least=0.0, at_most=0.0)
            self.row([(int(flow[g, g]), 1.0), (int(inside[g]), -1.0)], at_least=0.0)
        gather, sent = tables.hop_gather_s, tables.hop_bytes
        for column, reverse in ((self.hop_forward[j], False), (self.hop_backward[j], True)):
            # by flow: what goes from group to group costs at least the best link between them
            terms = [(int(column), data)]
            for g in range(size):
                stay, leave = links.local_s(g, sent), links.hop_s(g, g, sent)
                terms.append((int(inside[g]), leave - stay))
                for h in range(size):
                    cost = links.hop_s(h, g, sent) if reverse else links.hop_s(g, h, sent)
                    terms.append((int(flow[g, h]), -(cost + gather)))
            self.row(terms, at_least=0.0)
            # by node: all flows that leave (enter) a node share its card
            for outgoing in (True, False):
                sends = outgoing != reverse
                ends = (source, target) if outgoing else (target, source)
                self.content_row([(int(column), data)], ends, self._shared_hops(sends=sends), at_least=0.0)

    def _shared_hops(self, *, sends: bool) -> Coefficient:
        """Minus the seconds of all hops between a node's cells of one stage and the other stage, those that
        cross the node's border sharing its card."""
        links, sent, gather = self.links, self.tables.hop_bytes, self.tables.hop_gather_s

        def minus_s(g: int, near: IntArray, far: IntArray) -> Array:
            kept = np.minimum(near, far)
            crossing = near - kept
            each = [
                k * (links.shared_s(g, sent, k, sends=sends) + gather) for k in range(int(crossing.max()) + 1)
            ]
            return -(np.array(each)[crossing] + kept * (links.cheapest_s(g, sent) + gather))

        return minus_s

    # ------------------------------------------------------------------ 7
    def _spread_ring(self, s: int) -> None:
        """A stage that no single node holds as a whole has a ring over several nodes."""
        tables = self.tables
        if math.ceil(tables.data / self.best.most_slots) > 1:
            return  # always so: the own-ring row says it
        spread = self.column(0.0, 1.0, integer=True)
        self.content_row(
            [(spread, 1.0)], (s, s), lambda _, held, __: (held == tables.data).astype(float), at_least=1.0
        )
        self.load_row(s, self.across_rate, (s,), unless=[(spread, 1.0)])

    def _mean_card(self, s: int) -> None:
        """A ring takes at least the mean, over the cells of its stage, of what their cards are loaded with.

        ``U[s] >= tensor / card * sum over r of w[s, r] bytes[r]`` with ``w[s, r]`` the share of the cells of
        s on nodes with a part of r. The products are bounded in two ways: each at its convex envelope
        (McCormick), and together by what all stages lack to their most layers:
        ``sum of w (high - l) <= max w * sum of (high - l)``. Most pairs of stages never meet, so the rows of
        a pair come when a solution needs them (`add_pairs`): a third of the rows, a third of the time.
        """
        tables = self.tables
        per_byte = tables.tensor / float(self.links.card.max())
        per_layer = per_byte * self.base.bytes_per_layer
        largest = self.column(0.0, 1.0)
        products, at_most = [], []
        for r in range(tables.pipeline):
            extra = per_byte * float(self.base.bytes_extra[r])
            most_s = per_layer * float(self.high_of_stage[r]) + extra
            w, product = self.column(0.0, 1.0), self.column(0.0, most_s)
            pair = _Pair(
                s,
                r,
                w,
                product,
                largest,
                low_s=per_layer * float(self.low_of_stage[r]) + extra,
                high_s=most_s,
                per_layer_s=per_layer,
                extra_s=extra,
            )
            self._pairs_left[s, r] = pair
            products.append((product, -1.0))
            if r != s:
                at_most.append((w, -pair.high_s))
        own = self._pairs_left[s, s].product
        self.row([(int(self.load[s]), 1.0), *products], at_least=0.0)
        lacking = per_layer * float(self.high_of_stage.sum() - tables.total_layers)
        self.row([(int(self.load[s]), 1.0), (own, -1.0), *at_most, (largest, lacking)], at_least=0.0)

    def add_pairs(self, x: Array) -> int:
        """Rows of the pairs of stages that meet in a solution more than it admits; how many were added."""
        if not self.load_rows:
            return 0
        tables = self.tables
        shares = np.zeros((tables.pipeline, tables.pipeline))
        for columns, content in zip(self.count, self.contents, strict=True):
            used = np.flatnonzero(x[columns] > 0.0)
            one = content.chosen(used)
            cells = one.held * one.partial * x[columns[used], None]
            shares += cells.T @ one.partial / tables.data
        layers = x[self.layers].reshape(-1, tables.pipeline).sum(axis=0)
        added = 0
        for (s, r), pair in list(self._pairs_left.items()):
            share = float(shares[s, r])
            time_s = pair.per_layer_s * layers[r] + pair.extra_s
            needed = max(share * pair.low_s, time_s - pair.high_s * (1.0 - share))
            short = needed > x[pair.product] + PAIR_TOLERANCE or share > x[pair.share] + PAIR_TOLERANCE
            if share > 0.0 and short:
                self._add_pair(self._pairs_left.pop((s, r)))
                added += 1
        return added

    def repeat_pairs(self, met: list[tuple[int, int]]) -> None:
        """The rows of pairs that another model of the family needed."""
        for pair in met:
            if pair in self._pairs_left:
                self._add_pair(self._pairs_left.pop(pair))

    def _add_pair(self, pair: _Pair) -> None:
        self.met.append((pair.stage, pair.other))
        tables, data = self.tables, float(self.tables.data)

        def met(_: int, one: IntArray, other: IntArray) -> Array:
            both = (one < tables.data) & (other > 0) & (other < tables.data)
            return np.where(both, one / data, 0.0)

        ends = (pair.stage, pair.other)
        self.content_row([(pair.share, -1.0)], ends, met, at_least=0.0, at_most=0.0)
        layers = [(int(j), -pair.per_layer_s) for j in self.layers[pair.other :: tables.pipeline]]
        self.row([(pair.product, 1.0), (pair.share, -pair.low_s)], at_least=0.0)
        self.row(
            [(pair.product, 1.0), *layers, (pair.share, -pair.high_s)], at_least=pair.extra_s - pair.high_s
        )
        if pair.stage != pair.other:
            self.row([(pair.largest, 1.0), (pair.share, -1.0)], at_least=0.0)

    def _shared_cards(self, s: int) -> None:
        """A ring on a node with k rings takes as long as k rings do that are as short as they can be."""
        tables = self.tables
        others = np.delete(np.arange(tables.pipeline), s)
        per_byte = tables.tensor / float(self.links.card.max())
        bytes_low = self.base.bytes_per_layer * self.low_of_stage + self.base.bytes_extra
        extra = np.sort(self.base.bytes_extra[others])
        before = None
        for k in range(2, min(self.best.most_slots, tables.pipeline) + 1):

            def shared(_: int, held: IntArray, rings: IntArray, k: int = k) -> Array:
                return np.where((held < tables.data) & (rings >= k), held, 0).astype(float)

            ends = (s, tables.pipeline)
            if not any(one.look_up(ends, shared(g, *one.grid())).any() for g, one in enumerate(self.listed)):
                break
            shares = self.column(0.0, 1.0, integer=True)
            self.content_row([(shares, -float(tables.data))], ends, shared, at_most=0.0)
            if before is not None:
                self.row([(before, 1.0), (shares, -1.0)], at_least=0.0)
            before = shares
            # k stages, s among them, have at least what the others cannot take
            taken = float(np.sort(self.high_of_stage[others])[k - 1 :].sum())
            layers = max(0.0, tables.total_layers - taken)
            least = self.base.bytes_per_layer * layers + self.base.bytes_extra[s] + extra[: k - 1].sum()
            self.row([(int(self.load[s]), 1.0), (shares, -per_byte * float(least))], at_least=0.0)
            rest = per_byte * float(np.sort(bytes_low[others])[: k - 1].sum())
            self.load_row(s, per_byte, (s,), more_s=rest, unless=[(shares, 1.0)])

    def add_cards(self, x: Array) -> int:
        """The cards of an integer solution whose rings take longer than it says, exactly; how many were
        added.

        A card is a set of rings that meet on one node. Its rows are switched by a binary that is 1 as soon as
        any node with a part of the stage has this set.
        """
        tables = self.tables
        if not self.load_rows:
            return 0
        added = 0
        layers = x[self.layers].reshape(-1, tables.pipeline).sum(axis=0)
        sent = self.base.bytes_per_layer * layers + self.base.bytes_extra
        tolerance = CARD_TOLERANCE * float(x[self.total])
        for g, columns in enumerate(self.count):
            for i in np.flatnonzero(np.round(x[columns])):
                content = self.contents[g].chosen(np.array([i]))
                rings = tuple(int(r) for r in np.flatnonzero(content.partial[0]))
                needed = tables.tensor * float(sent[list(rings)].sum()) / float(self.links.card[g])
                for s in rings:
                    if needed > float(x[self.load[s]]) + tolerance and (s, g, rings) not in self._known_cards:
                        self._add_card(s, g, rings)
                        added += 1
        return added

    def _add_card(self, s: int, g: int, rings: tuple[int, ...]) -> None:
        self._known_cards.add((s, g, rings))
        tables = self.tables
        present = self.column(0.0, 1.0, integer=True)

        content = self.contents[g]
        having = content.partial[:, list(rings)].all(axis=1)
        cells = np.where(having, content.held[:, s], 0).astype(float)
        self.row([(present, -float(tables.data))], [(self.count[g], cells)], at_most=0.0)
        per_byte = tables.tensor / float(self.links.card[g])
        extra = float(self.base.bytes_extra[list(rings)].sum())
        at_low = per_byte * (self.base.bytes_per_layer * self.least_layers_of(rings) + extra)
        self.row([(int(self.load[s]), 1.0), (present, -at_low)], at_least=0.0)
        self.load_row(s, per_byte, rings, unless=[(present, 1.0)])

    def _crossings(self, s: int) -> None:
        """A stage with some but not all of its cells in a group has a ring through that group's border."""
        tables = self.tables
        wholes = []
        for g, group in enumerate(self.groups):
            cells = int(self.cells[s, g])
            room = min(tables.data, len(group.nodes) * group.slots)
            if room == 0:
                continue
            some = self.column(0.0, 1.0, integer=True)
            self.row([(cells, 1.0), (some, -float(room))], at_most=0.0)
            if len(group.nodes) == 1:
                self._lone_node(s, g, some)
            border = [(some, 1.0)]
            if room == tables.data:
                whole = self.column(0.0, 1.0, integer=True)
                self.row([(cells, 1.0), (whole, -float(tables.data))], at_least=0.0)
                border.append((whole, -1.0))
                wholes.append((whole, 1.0))
            per_byte = tables.tensor / self.links.group_crossing_rate(g)
            sent = float(self.base.bytes_per_layer * self.low_of_stage[s] + self.base.bytes_extra[s])
            self.row(
                [(int(self.load[s]), 1.0), *[(c, -per_byte * sent * sign) for c, sign in border]],
                at_least=0.0,
            )
            self.load_row(s, per_byte, (s,), unless=border)
        if wholes:
            self.row(wholes, at_most=1.0)

    def _lone_node(self, s: int, g: int, some: int) -> None:
        """A group of one node has one content: what it needs for stage s holds for the mixture of contents.

        Sharper than rows over cells, where a content with one cell of eight is an eighth of an obstacle; slow
        nodes are such groups.
        """
        tables = self.tables
        self.content_row(
            [(some, 1.0)], (s, s), of_group(g, lambda held, _: -(held > 0).astype(float)), at_least=0.0
        )
        others = np.delete(np.arange(tables.pipeline), s)
        # rings on the card, s among them: each has its least layers, together what the others cannot take
        low = self.low_of_stage[s] + np.cumsum(np.sort(self.low_of_stage[others]))
        taken = np.cumsum(np.sort(self.high_of_stage[others]))[::-1]
        layers = np.maximum([self.low_of_stage[s], *low], tables.total_layers - np.array([*taken, 0]))
        extra = self.base.bytes_extra[s] + np.cumsum(np.sort(self.base.bytes_extra[others]))
        sent = self.base.bytes_per_layer * layers + np.array([self.base.bytes_extra[s], *extra])
        of_rings = tables.tensor / self.links.card[g] * sent

        def card_s(held: IntArray, rings: IntArray) -> Array:
            partial = (held > 0) & (held < tables.data)
            return -np.where(partial, of_rings[np.clip(rings - 1, 0, len(of_rings) - 1)], 0.0)

        self.content_row([(int(self.load[s]), 1.0)], (s, tables.pipeline), of_group(g, card_s), at_least=0.0)

    def give(self, held: tuple[Held, ...]) -> None:
        """What some lone nodes hold, the only content listed for each: their rings and runs, exactly."""
        tables = self.tables
        lanes = {}
        for one in held:
            per_byte = tables.tensor / float(self.links.card[one.group])
            for s in one.rings if self.load_rows else ():
                self.load_row(s, per_byte, one.rings)
            lanes.update({some[0].key: some[0] for some in one.lanes if len(some) == 1})
        self.lanes = list(lanes.values())

    # ------------------------------------------------------------------ 8
    def _embedding(self) -> None:
        tables, links = self.tables, self.links
        sent, data, last = tables.embedding_bytes, float(tables.data), tables.pipeline - 1
        latency = tables.embedding_latency_s
        floor = best_embedding_s(tables, self.best)

        def at_least(value_s: float, switch: int) -> None:
            if value_s > floor:
                self.row([(self.exchange, 1.0), (switch, floor - value_s)], at_least=floor)

        # a pair on two nodes
        apart = self.column(0.0, 1.0, integer=True)
        self.content_row(
            [(apart, data)],
            (0, last),
            lambda _, one, other: np.minimum(one, other).astype(float),
            at_least=data,
        )
        if tables.num_nodes > 1:
            at_least(crossing_s(tables, self.best, sent) + latency, apart)
        # cards that several such pairs share
        shares = []
        for g, one in enumerate(self.listed):
            each = [links.shared_s(g, sent, k, sends=None) + latency for k in range(1, one.slots + 1)]
            shares.append(np.array([0.0, *each]))
        levels = np.unique(np.concatenate(shares))
        for value in levels[levels > floor]:
            loaded = self.column(0.0, 1.0, integer=True)

            def heavy(g: int, one: IntArray, other: IntArray, value: float = value) -> Array:
                return (shares[g][np.abs(one - other)] >= value).astype(float)

            self.content_row([(loaded, -float(tables.num_nodes))], (0, last), heavy, at_most=0.0)
            at_least(float(value), loaded)
        # a pair in two groups
        if len(self.groups) > 1:
            shared = self.columns(len(self.groups), 0.0, data)
            for g in range(len(self.groups)):
                for stage in (0, last):
                    self.row([(int(self.cells[stage, g]), 1.0), (int(shared[g]), -1.0)], at_least=0.0)
            far = self.column(0.0, 1.0, integer=True)
            self.row([*[(int(x), 1.0) for x in shared], (far, data)], at_least=data)
            at_least(links.best_between_groups_s(sent) + latency, far)

    # ------------------------------------------------------------ solution
    def read(self, x: Array) -> Relaxed:
        """An integer solution in the terms of placement."""
        contents = []
        for g, columns in enumerate(self.count):
            numbers = np.round(x[columns]).astype(np.int64)
            held = self.contents[g].held.astype(np.int64)
            contents += [(g, held[i], int(numbers[i])) for i in np.flatnonzero(numbers)]
        return Relaxed(self.layers_of(x), contents)
