"""What nodes may hold, as arrays; whatever depends on two stages only is looked up in a small table.

A *content* is a vector of cells per stage; the stages of which a node holds some cells but not all have a
*ring* through its card. A node of 8 cells over 16 stages has half a million contents, and a model has
hundreds of rows over them. Nearly every coefficient depends on the counts of two stages (of a boundary, of a
pair that shares a card) or of a stage and the number of rings, so a row is a table of 9 x 9 numbers, and all
rows with the same two are one look-up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables

MOST_LISTED = 600_000
"""Contents of one node that are listed at most before they are filtered: about a second of numpy."""


class TooManyPatternsError(Exception):
    """The contents of one node are too many to list, or too many of them can be part of a good plan."""


@dataclass(frozen=True)
class Contents:
    """Contents of one kind of node.

    Args:
        held: [P, p] cells of every stage.
        data: cells that every stage has in all.
        slots: cells that a node has at most.
    """

    held: NDArray[np.int16]
    data: int
    slots: int
    _codes: dict[tuple[int, int], NDArray[np.uint16]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.held)

    @property
    def stages(self) -> int:
        return int(self.held.shape[1])

    @property
    def rings_column(self) -> int:
        """What stands for "number of rings" where a stage is asked for."""
        return self.stages

    @property
    def partial(self) -> NDArray[np.bool_]:
        """[P, p] whether a node holds some of a stage's cells, but not all."""
        return (self.held > 0) & (self.held < self.data)

    @cached_property
    def ring_sets(self) -> tuple[NDArray[np.bool_], IntArray]:
        """[R, p] the different rows of `partial`, and [P] which of them each content has: a twelfth of the
        contents in number where they are many."""
        partial = self.partial
        packed = np.packbits(partial, axis=1)
        _, first, which = np.unique(
            np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel(),
            return_index=True,
            return_inverse=True,
        )
        return partial[first], np.asarray(which.ravel(), dtype=np.int64)

    def chosen(self, which: NDArray[np.bool_] | IntArray) -> Contents:
        """Some of them, by mask or index."""
        return Contents(self.held[which], self.data, self.slots)

    def grid(self) -> tuple[IntArray, IntArray]:
        """[(slots + 1)^2] each: all pairs of counts, in the order of the tables of `look_up`."""
        counts = np.arange(self.slots + 1)
        first, second = np.meshgrid(counts, counts, indexing="ij")
        return first.ravel(), second.ravel()

    def look_up(self, pair: tuple[int, int], table: Array) -> Array:
        """[P] the entry of a table over `grid` at the counts of two stages (or the number of rings)."""
        if pair not in self._codes:
            first, second = (self._counts(one) for one in pair)
            self._codes[pair] = (first * (self.slots + 1) + second).astype(np.uint16)
        return np.asarray(table[self._codes[pair]])

    def _counts(self, stage: int) -> NDArray[np.int64]:
        one = self.partial.sum(axis=1) if stage == self.rings_column else self.held[:, stage]
        return one.astype(np.int64)


def node_contents(tables: CostTables, slots: int) -> Contents:
    """Everything a node with ``slots`` places may hold; places stay empty only where cells are fewer.

    Raises:
        TooManyPatternsError: more than `MOST_LISTED`.
    """
    full = int(tables.slots.sum()) == tables.pipeline * tables.data
    width = tables.pipeline if full else tables.pipeline + 1  # one more "stage" for empty places
    if pattern_count(width, slots) > MOST_LISTED:
        raise TooManyPatternsError
    listed = patterns(width, slots)[:, : tables.pipeline]
    return Contents(listed[(listed <= tables.data).all(axis=1)], tables.data, slots)


def pattern_count(stages: int, cells: int) -> int:
    """How many ways ``cells`` cells can be spread over ``stages`` stages."""
    return comb(stages + cells - 1, cells)


@lru_cache(maxsize=4)
def patterns(stages: int, cells: int) -> NDArray[np.int16]:
    """[P, stages] all non-negative vectors that sum to ``cells``; read-only."""
    rows = np.zeros((1, stages), dtype=np.int16)
    last = np.zeros(1, dtype=np.int64)
    for _ in range(cells):
        # add one cell at or after the last stage used, so that every vector arises once
        grown = []
        for stage in range(stages):
            added = rows[last <= stage]
            added[:, stage] += 1
            grown.append(added)
        rows = np.concatenate(grown)
        last = np.repeat(np.arange(stages), [len(added) for added in grown])
    rows.flags.writeable = False
    return rows
