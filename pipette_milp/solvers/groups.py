"""Groups of nodes found from the link matrix: pods, and slow nodes alone.

A group is a component of the graph of links above a relative gap between link speeds. Any partition gives
a valid relaxation (`pipette_milp.solvers.pattern_model`); a good one gives a strong bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.link_extremes import known_fact, origin_of

LEAST_GAP = 1.2
"""Ratio between two neighbouring link speeds that counts as a gap. Measured spread of equal links is a few
per cent, at most 1.19 between the best and the worst of 240 (field case M02)."""


def find_groups(tables: CostTables) -> list[Group]:
    """Partition of the nodes; one group per kind of node where the links show no gap."""
    components = components_of(tables)
    keys = [
        (int(component), int(slots), float(local), float(latency))
        for component, slots, local, latency in zip(
            components, tables.slots, tables.local_bytes_per_s, tables.local_latency_s, strict=True
        )
    ]
    groups = []
    for key in sorted(set(keys)):
        nodes = np.array([n for n, other in enumerate(keys) if other == key], dtype=np.int64)
        groups.append(Group(nodes, key[1]))
    return groups


def one_group(tables: CostTables) -> list[Group]:
    """The coarsest partition: nodes differ only in how many cells they hold."""
    return [
        Group(np.flatnonzero(tables.slots == slots).astype(np.int64), int(slots))
        for slots in np.unique(tables.slots)
    ]


def components_of(tables: CostTables) -> IntArray:
    """[N] `link_components` of the family's links."""
    pair, _ = origin_of(tables.pair_bytes_per_s)  # ratios of speeds do not depend on the unit
    return known_fact(pair, "components", lambda: link_components(pair))


def link_components(pair_bytes_per_s: Array) -> IntArray:
    """[N] component of each node; all 0 where no gap splits the nodes into groups of more than one.

    Gaps are tried from the fastest links down, so that pods come apart before what joins them, and a slow
    node's links do not hide the pods of the others.
    """
    size = len(pair_bytes_per_s)
    together = np.zeros(size, dtype=np.int64)
    if size < 3:
        return together
    speed = np.minimum(pair_bytes_per_s, pair_bytes_per_s.T)
    values = np.sort(np.unique(speed[~np.eye(size, dtype=bool)]))
    gaps = np.flatnonzero(values[1:] / values[:-1] >= LEAST_GAP)
    for gap in gaps[::-1]:
        component = _components(speed > values[gap])
        if 1 < component.max() + 1 < size:
            return component
    return together


def _components(linked: NDArray[np.bool_]) -> IntArray:
    component = np.full(len(linked), -1, dtype=np.int64)
    number = 0
    for start in range(len(linked)):
        if component[start] >= 0:
            continue
        component[start] = number
        queue = [start]
        while queue:
            node = queue.pop()
            for other in np.flatnonzero(linked[node] & (component < 0)):
                component[other] = number
                queue.append(int(other))
        number += 1
    return component
