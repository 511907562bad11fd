"""First plans of a large space: the plainest layouts of every combination of degrees, before any bound.

Every later question is whether a family can beat the best plan, so a good one within the first second spares
most of them. One family of each combination of degrees is looked at, the one with the least bound; a
combination whose bound reaches the best plan is left out, as are families with `CostTables.detail`, where
finding a split that fits is a search of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.evaluation import Candidate, Evaluator
from pipette_milp.solvers.greedy import node_orders
from pipette_milp.solvers.groups import components_of
from pipette_milp.solvers.layer_splits import quickest_split
from pipette_milp.solvers.pod_layouts import leading, pod_layout
from pipette_milp.solvers.pods import many_pods
from pipette_milp.solvers.state import SearchState


def scout(state: SearchState) -> None:
    """Offer plans until every combination of degrees was looked at, or the time is up."""
    seen = set()
    for family in np.argsort(state.lower, kind="stable"):
        if state.time_left_s <= 0 or state.lower[family] >= state.incumbent_s:
            break
        tables = state.families[int(family)]
        c = tables.configuration
        degrees = (c.pipeline, c.virtual_stages, c.tensor, c.data, c.schedule)
        if degrees in seen or tables.detail is not None:
            continue
        if int(tables.slots.sum()) < tables.pipeline * tables.data:
            continue
        seen.add(degrees)
        evaluator = Evaluator(tables)
        layers = quickest_split(evaluator)
        if layers is None:
            continue
        for cells in plain_layouts(tables, layers):
            candidate = Candidate(layers, cells)
            state.offer(int(family), evaluator.simulated_s(candidate), candidate, state.name(int(family)))


def plain_layouts(tables: CostTables, layers: IntArray) -> Iterator[IntArray]:
    """[p, d] stage after stage, and replica after replica, over nodes by index and by fast groups.

    With several pods also the first stages by stage and the rest by replica: rings of the first stages end
    last and shall stay inside a pod, those of later ones have time, and their pipelines stay inside instead.
    """
    known = set()
    for cells in _layouts(tables, layers):
        if cells.tobytes() not in known:
            known.add(cells.tobytes())
            yield cells


def _layouts(tables: CostTables, layers: IntArray) -> Iterator[IntArray]:
    pods = many_pods(tables)
    several_pods = int(components_of(tables).max()) > 0
    for order in node_orders(tables):
        places = np.repeat(order, tables.slots[order])[: tables.pipeline * tables.data]
        yield places.reshape(tables.pipeline, tables.data)
        yield np.ascontiguousarray(places.reshape(tables.data, tables.pipeline).T)
        if several_pods and pods is None:
            for eighths in (1, 2, 4, 6):
                yield _head_by_stage(tables, places, eighths * tables.pipeline // 8)
    if pods is not None:
        for whole in leading(tables):
            yield pod_layout(tables, pods, layers, whole)


def _head_by_stage(tables: CostTables, places: IntArray, head: int) -> IntArray:
    first = head * tables.data
    one = places[:first].reshape(head, tables.data)
    rest = places[first:].reshape(tables.data, tables.pipeline - head).T
    return np.ascontiguousarray(np.concatenate([one, rest]))
