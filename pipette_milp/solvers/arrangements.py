"""Which GPUs of a node form which cell: all choices that can matter.

Once the node of every cell is fixed, what is left is to arrange the cells of each node on its GPUs, rank by
rank. Nodes do not influence each other in this: a choice only changes durations of the cells on its own node
(`pipette_milp.cost.gpu_level`), namely

* the class of each cell (bandwidth of the ring over its GPUs),
* the slowest pair of ranks of every hop inside the node, there and back, and of every embedding exchange,
* the slowest ring over the GPUs of one tensor rank, for every stage with several cells on the node.

These *figures* are all that the simulated time sees of an arrangement. It never falls when one of them gets
worse (monotone lemma, formulation section 3), so of two arrangements the one that is no worse in any figure
stands for both: only those that no other one dominates are kept. That also removes the symmetric copies,
those by the symmetries of the mesh and those by renaming tensor ranks, without having to find the symmetries.
Eight V100 in a hybrid cube mesh have 8!/2 arrangements of four pairs; what is left is a handful.

Figures depend on how the cells of a node relate to each other, not on which cells they are, so the list is
made once for every *structure*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.cost.wiring import Wiring

Cell = tuple[int, int]
"""Stage and replica."""
Pair = tuple[int, int]
"""Positions of two cells in the list of a node's cells."""


@dataclass(frozen=True)
class Structure:
    """How the cells of one node relate; cells are numbered as in the node's list."""

    cells: int
    hops: tuple[Pair, ...]
    """Sender and receiver of the forward hops inside the node."""
    exchanges: tuple[Pair, ...]
    """Cells that exchange the embedding's gradient inside the node."""
    rings: tuple[tuple[int, ...], ...]
    """Cells of one stage, two or more."""


@dataclass(frozen=True)
class Arrangements:
    """Undominated choices for one structure; the first index of every array is the choice."""

    gpus: IntArray
    """[A, cells, t] local GPU of every rank."""
    classes: IntArray
    """[A, cells]"""
    hop_bytes_per_s: Array
    """[A, 2, hops] slowest pair of ranks, there and back."""
    exchange_bytes_per_s: Array
    """[A, exchanges] slower direction"""
    ring_bytes_per_s: Array
    """[A, rings]"""


def cells_of_nodes(node_of_cell: IntArray, num_nodes: int) -> list[list[Cell]]:
    """Per node its cells, stage by stage."""
    cells: list[list[Cell]] = [[] for _ in range(num_nodes)]
    for s, z in np.ndindex(*node_of_cell.shape):
        cells[int(node_of_cell[s, z])].append((s, z))
    return cells


def structure_of(tables: CostTables, cells: list[Cell]) -> Structure:
    """How cells of one node relate."""
    position = {cell: index for index, cell in enumerate(cells)}
    boundaries = range(min(tables.num_virtual_stages - 1, tables.pipeline))
    joined = [tables.boundary_cells(j) for j in boundaries]
    hops = [
        (position[source, z], position[target, z])
        for source, target in joined
        for z in range(tables.data)
        if source != target and (source, z) in position and (target, z) in position
    ]
    last = tables.pipeline - 1
    exchanges = [
        (position[0, z], position[last, z])
        for z in range(tables.data)
        if tables.embedding_bytes > 0 and last > 0 and (0, z) in position and (last, z) in position
    ]
    rings = []
    if _synchronises(tables):
        for s in range(tables.pipeline):
            members = tuple(index for (stage, _), index in position.items() if stage == s)
            if len(members) >= 2:
                rings.append(members)
    return Structure(len(cells), tuple(hops), tuple(exchanges), tuple(rings))


def arrangements(tables: CostTables, node: int, structure: Structure) -> Arrangements:
    """Undominated arrangements of a structure on a node.

    Raises:
        ValueError: the tables do not tell GPUs apart.
    """
    level = tables.gpu_level
    if level is None:
        raise ValueError("the GPUs of every node are joined alike: there is nothing to arrange")
    rates = tuple(float(rate) for rate in level.group_bytes_per_s)
    return _undominated(level.wiring(node), rates, structure, tables.tensor)


def gpu_choices(tables: CostTables, node_of_cell: IntArray) -> Iterator[IntArray]:
    """[p, d, t] every undominated way to arrange the cells of all nodes on their GPUs."""
    hosts, options = [], []
    for node, cells in enumerate(cells_of_nodes(node_of_cell, tables.num_nodes)):
        if cells:
            hosts.append(cells)
            options.append(arrangements(tables, node, structure_of(tables, cells)).gpus)
    for chosen in itertools.product(*options):
        gpus = np.zeros((*node_of_cell.shape, tables.tensor), dtype=np.int64)
        for cells, ranks in zip(hosts, chosen, strict=True):
            put(gpus, cells, ranks)
        yield gpus


def put(gpus_of_cell: IntArray, cells: list[Cell], ranks: IntArray) -> None:
    """Write one arrangement [cells, t] into [p, d, t]."""
    for (s, z), own in zip(cells, ranks, strict=True):
        gpus_of_cell[s, z] = own


def arrangement_count(tables: CostTables) -> float:
    """Upper limit of the arrangements of all nodes together, for a placement that fills as many as it can."""
    if tables.gpu_level is None:
        return 1.0
    count = 1.0
    for node in range(tables.num_nodes):
        wiring = tables.gpu_level.wiring(node)
        if not wiring.uniform:
            cells = min(int(tables.slots[node]), tables.pipeline * tables.data)
            if cells:
                ranks = cells * tables.tensor
                count *= math.perm(wiring.gpus, ranks) / math.factorial(tables.tensor)
    return count


def _synchronises(tables: CostTables) -> bool:
    rings = (tables.sync, tables.gather)
    return tables.data > 1 and any(r.bytes_per_layer > 0 or np.any(r.bytes_extra > 0) for r in rings)


@lru_cache(maxsize=64)
def _all_arrangements(gpus: int, cells: int, tensor: int) -> IntArray:
    """[K, cells, t] every choice, the ranks of the first cell in ascending order (renaming ranks)."""
    if tensor * cells == 0:
        return np.zeros((1, cells, tensor), dtype=np.int64)
    chosen = [
        (*first, *rest)
        for first in itertools.combinations(range(gpus), tensor)
        for rest in itertools.permutations([g for g in range(gpus) if g not in first], tensor * (cells - 1))
    ]
    return np.array(chosen, dtype=np.int64).reshape(-1, cells, tensor)


@lru_cache(maxsize=4096)
def _undominated(
    wiring: Wiring, group_bytes_per_s: tuple[float, ...], structure: Structure, tensor: int
) -> Arrangements:
    if wiring.pair_bytes_per_s is None or wiring.ring_bytes_per_s is None:
        return _of_a_switch(wiring, group_bytes_per_s, structure, tensor)
    pair, ring = wiring.pair_bytes_per_s, wiring.ring_bytes_per_s
    classes = np.searchsorted(-np.array(group_bytes_per_s), -ring)  # [2**G], of no meaning for other sizes
    gpus = _all_arrangements(wiring.gpus, structure.cells, tensor)
    # compared by place in the order of bandwidths: small whole numbers are quick to sort
    places = _figures(structure, gpus, _places(pair), _places(ring), -classes)
    kept = gpus[_best_rows(np.concatenate(places, axis=1))]
    there, back, exchange, rings, group = _figures(structure, kept, pair, ring, -classes)
    return Arrangements(
        gpus=kept,
        classes=-group.astype(np.int64),
        hop_bytes_per_s=np.stack((there, back), axis=1),
        exchange_bytes_per_s=exchange,
        ring_bytes_per_s=rings,
    )


def _of_a_switch(
    wiring: Wiring, group_bytes_per_s: tuple[float, ...], structure: Structure, tensor: int
) -> Arrangements:
    """One choice: consecutive GPUs."""
    port = float(wiring.port_bytes_per_s or 0.0)
    own_class = group_bytes_per_s.index(port if tensor > 1 else float("inf"))
    return Arrangements(
        gpus=np.arange(structure.cells * tensor, dtype=np.int64).reshape(1, structure.cells, tensor),
        classes=np.full((1, structure.cells), own_class, dtype=np.int64),
        hop_bytes_per_s=np.full((1, 2, len(structure.hops)), port),
        exchange_bytes_per_s=np.full((1, len(structure.exchanges)), port),
        ring_bytes_per_s=np.full((1, len(structure.rings)), port),
    )


def _places(values: Array) -> IntArray:
    """Each value's place in their order, slowest 0."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _figures(
    structure: Structure, gpus: IntArray, pair: Array | IntArray, ring: Array | IntArray, group: IntArray
) -> list[Array]:
    """Figures of arrangements [A, cells, t]: hops there, hops back, exchanges, rings, groups; each [A, ...],
    larger is better.

    Args:
        pair: [G, G] bandwidth of pairs, or its place in the order of bandwidths
        ring: [2**G] the same of ring collectives
        group: [2**G] the same of tensor groups
    """
    sets = 1 << gpus

    def slowest(pairs: tuple[Pair, ...], *, back: bool) -> Array:
        found: Array = np.empty((len(gpus), len(pairs)), dtype=pair.dtype)
        for index, (sender, receiver) in enumerate(pairs):
            a, b = (receiver, sender) if back else (sender, receiver)
            found[:, index] = pair[gpus[:, a], gpus[:, b]].min(axis=1)
        return found

    rings: Array = np.empty((len(gpus), len(structure.rings)), dtype=ring.dtype)
    for index, members in enumerate(structure.rings):
        rings[:, index] = ring[sets[:, list(members)].sum(axis=1)].min(axis=1)
    exchanges = np.minimum(slowest(structure.exchanges, back=False), slowest(structure.exchanges, back=True))
    return [
        slowest(structure.hops, back=False),
        slowest(structure.hops, back=True),
        exchanges,
        rings,
        group[sets.sum(axis=2)],
    ]


def _best_rows(places: IntArray) -> IntArray:
    """Rows that no other one equals or exceeds in every figure; the first of equal ones."""
    if places.shape[1] == 0:
        return np.zeros(1, dtype=np.int64)
    places = places - places.min(axis=0)
    # distinct rows as whole numbers, a tenth of the time of comparing rows
    key = np.zeros(len(places), dtype=np.int64)
    size = 1
    for column in places.T:
        base = int(column.max()) + 1
        if size * base > MOST_KEYS:
            key = np.unique(key, return_inverse=True)[1]
            size = int(key.max()) + 1
        key = key * base + column
        size *= base
    first = np.unique(key, return_index=True)[1]
    # what dominates a row has a larger sum of places: the row with the largest is dominated by none left
    left = np.argsort(-places[first].sum(axis=1), kind="stable")
    kept: list[int] = []
    while len(left):
        kept.append(int(first[left[0]]))
        left = left[np.any(places[first[left]] > places[kept[-1]], axis=1)]
    return np.sort(kept)


MOST_KEYS = 2**48
"""Combined places beyond which they are renumbered; times a column's places they still fit into 63 bits."""
