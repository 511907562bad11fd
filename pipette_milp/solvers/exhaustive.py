"""Exhaustive enumeration: every family, every layer split, every placement. The oracle for tiny instances."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.solvers.arrangements import arrangement_count, gpu_choices
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.state import ENUMERATION, SearchState

MOST_CANDIDATES = 2_000_000
"""Plans beyond which enumeration is refused: about ten minutes of evaluations."""


def exhaustive(state: SearchState) -> None:
    """Evaluate every plan of every family; the bound is the best plan.

    Raises:
        InputError: too many plans.
    """
    total = sum(candidate_count(tables) for tables in state.families)
    if total > MOST_CANDIDATES:
        raise InputError(
            f"exhaustive would evaluate up to {total:.3g} plans, more than {MOST_CANDIDATES:.3g}: "
            "use --solver auto, or narrow the search"
        )
    done = 0
    for family, tables in enumerate(state.families):
        evaluator = Evaluator(tables)
        best = np.inf
        for candidate in candidates(evaluator):
            if state.time_left_s <= 0 or (
                state.limits.iterations is not None and done >= state.limits.iterations
            ):
                return
            done += 1
            value = evaluator.simulated_s(candidate)
            if value < best:
                best = value
                state.offer(family, value, candidate, state.name(family))
        state.raise_bound(family, best * float(state.scale[family]), by=ENUMERATION)


def candidates(evaluator: Evaluator) -> Iterator[Candidate]:
    """Every plan of a family that fits; where GPUs are told apart, every way to arrange a node that no other
    way dominates (`pipette_milp.solvers.arrangements`)."""
    tables = evaluator.tables
    for layers in layer_splits(tables):
        if not evaluator.fits(layers):
            continue
        for cells in placements(tables):
            if evaluator.memory_depends_on_placement and not evaluator.fits(layers, cells):
                continue
            if tables.gpu_level is None:
                yield Candidate(layers, cells)
                continue
            for gpus in gpu_choices(tables, cells):
                yield Candidate(layers, cells, gpus)


def candidate_count(tables: CostTables) -> float:
    """Upper limit of what enumeration would visit; inf beyond what a float holds."""
    spare = tables.total_layers - int(tables.min_layers.sum())
    splits = math.comb(spare + tables.num_virtual_stages - 1, max(spare, 0)) if spare >= 0 else 0
    count = splits * tables.num_nodes ** (tables.pipeline * tables.data)
    if count.bit_length() >= sys.float_info.max_exp:
        return math.inf
    return float(count) * arrangement_count(tables)


def layer_splits(tables: CostTables) -> Iterator[IntArray]:
    """All [V] splits within the bounds of each virtual stage."""

    def extend(prefix: list[int], left: int) -> Iterator[IntArray]:
        j = len(prefix)
        if j == tables.num_virtual_stages:
            if left == 0:
                yield np.array(prefix, dtype=np.int64)
            return
        rest = int(tables.min_layers[j + 1 :].sum())
        for layers in range(int(tables.min_layers[j]), min(int(tables.max_layers[j]), left - rest) + 1):
            yield from extend([*prefix, layers], left - layers)

    yield from extend([], tables.total_layers)


def placements(tables: CostTables) -> Iterator[IntArray]:
    """All [p, d] assignments of cells to nodes that respect the places of each node."""
    cells = tables.pipeline * tables.data
    assigned = np.zeros(cells, dtype=np.int64)
    room = tables.slots.copy()

    def extend(index: int) -> Iterator[IntArray]:
        if index == cells:
            yield assigned.reshape(tables.pipeline, tables.data).copy()
            return
        for node in range(tables.num_nodes):
            if room[node]:
                room[node] -= 1
                assigned[index] = node
                yield from extend(index + 1)
                room[node] += 1

    yield from extend(0)
