"""What a family costs at least, and which links a cutoff rules out before a solver starts.

Both evaluate path cuts with every other duration at its smallest (monotone lemma, formulation section 3),
so neither excludes a plan that is better than the cutoff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.cost.tables import Array
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut


@dataclass(frozen=True)
class Floor:
    """Smallest durations of a family over all placements and layer splits, in seconds."""

    hop: Array
    """[Q] either direction of each distinct boundary."""
    sync: Array
    """[p] exposed synchronisation."""
    embedding_s: float
    step_s: float
    """Slowest optimizer plus parameter gather, and ``fixed_s``."""


def floor_of(family: Family) -> Floor:
    """Every duration with the best link it could have."""
    tables = family.tables
    hops = np.zeros(family.num_boundaries)
    for boundary in range(family.num_boundaries):
        source, target = family.boundary_cells(boundary)
        hops[boundary] = _best_link(family, family.hop_s, same_cell=source == target)
    embedding = 0.0
    if tables.embedding_bytes > 0:
        embedding = _best_link(family, family.embedding_s, same_cell=family.stages == 1)
    low_layers, _ = family.stage_range
    step = tables.optimizer_layer_s * low_layers + tables.optimizer_extra_s + _ring_floor(family, "gather")
    return Floor(
        hop=hops,
        sync=_exposed(family, _ring_floor(family, "sync")),
        embedding_s=embedding,
        step_s=float(step.max()) + tables.fixed_s,
    )


def _best_link(family: Family, times: Array, *, same_cell: bool) -> float:
    best = np.inf
    for a in family.hosts:
        for b in family.hosts:
            allowed = a == b if same_cell else (a != b or family.tables.slots[a] >= 2)
            if allowed:
                best = min(best, float(times[a, b]))
    return best


def _ring_floor(family: Family, name: str) -> Array:
    """[p] the ring at its fewest bytes on the best node, with the cheapest number of nodes."""
    if name not in family.rings:
        return np.zeros(family.stages)
    cost = family.rings[name]
    per_byte = min(
        family.member_s(node, members)
        for node in family.hosts
        for members in range(1, family.slots[node] + 1)
    )
    return ring_latency_floor_s(family, name) + cost.low_bytes * per_byte


def ring_latency_floor_s(family: Family, name: str) -> float:
    """Latency of a ring with the number of nodes that is cheapest."""
    ring = family.rings[name].ring
    replicas = family.replicas
    fewest = _fewest_nodes(family)
    node_step, local_step = ring.latency_per_node_step_s, ring.latency_per_local_step_s
    counts = (fewest, min(replicas, len(family.hosts)))
    return float(ring.latency_s + min((m - 1) * node_step + (replicas - m) * local_step for m in counts))


def _fewest_nodes(family: Family) -> int:
    room = np.sort(np.asarray(family.slots))[::-1].cumsum()
    return int(np.searchsorted(room, family.replicas)) + 1


def _exposed(family: Family, ring_s: Array) -> Array:
    exposed = np.array(ring_s, dtype=float)
    exposed[0] /= family.tables.sync_buckets
    return exposed


def cut_floor_s(family: Family, cut: PathCut, floor: Floor, *, with_sync: bool = True) -> float:
    """Least value of a cut over layer splits and placements; ``inf`` if no layer split exists."""
    parts = family.cut_coefficients(cut)
    value = parts.constant_s + _least_layers_s(family, parts.layer_s)
    value += float((parts.hop_forward + parts.hop_backward) @ floor.hop)
    if with_sync:
        value += float(floor.sync[cut.end_stage])
    if family.pays_embedding(cut):
        value += floor.embedding_s
    return value + floor.step_s


def _least_layers_s(family: Family, layer_s: Array) -> float:
    """Minimum of ``layer_s . layers`` over splits in their ranges: the cheapest stages are filled first."""
    low, high = family.layer_range
    if np.any(low > high):
        return np.inf
    layers = low.copy()
    spare = family.tables.total_layers - int(layers.sum())
    for stage in np.argsort(layer_s, kind="stable").tolist():
        more = min(spare, int(high[stage] - low[stage]))
        layers[stage] += more
        spare -= more
    return float(layer_s @ layers) if spare == 0 else np.inf


def family_bound_s(family: Family, cuts: Sequence[PathCut]) -> float:
    """Lower bound on every plan of the family; ``inf`` if it has none, 0 without cuts.

    ``cuts`` are the family's own.
    """
    if placeable(family) and cuts:
        floor = floor_of(family)
        return max(cut_floor_s(family, cut, floor) for cut in cuts)
    return 0.0 if placeable(family) else np.inf


def placeable(family: Family) -> bool:
    """Whether the nodes have room for all cells and the layers for a split within their ranges."""
    room = int(np.minimum(family.tables.slots, family.stages * family.replicas).sum())
    low, high = family.layer_range
    total = family.tables.total_layers
    return (
        room >= family.stages * family.replicas
        and bool(np.all(low <= high))
        and int(low.sum()) <= total <= int(high.sum())
    )


@dataclass(frozen=True)
class Excluded:
    """Links that no plan better than the cutoff uses."""

    hop: np.ndarray
    """[Q, N, N] boolean: source cell on the row's node, target cell on the column's."""
    ring_edge: np.ndarray
    """[p, N, N] boolean: directed edge of a stage's gradient ring."""


def excluded_links(family: Family, cuts: Sequence[PathCut], cutoff_s: float | None) -> Excluded:
    """Links whose cheapest completion exceeds ``cutoff_s`` (in the family's own seconds; None: nothing)."""
    nodes = family.tables.num_nodes
    hop_s = np.zeros((family.num_boundaries, nodes, nodes))
    edge_s = np.zeros((family.stages, nodes, nodes))
    if cutoff_s is None or not cuts:
        return Excluded(hop_s > 0, edge_s > 0)
    floor = floor_of(family)
    for cut in cuts:
        parts = family.cut_coefficients(cut)
        base = cut_floor_s(family, cut, floor)
        for boundary in range(family.num_boundaries):
            extra = family.hop_s - floor.hop[boundary]
            value = base + parts.hop_forward[boundary] * extra + parts.hop_backward[boundary] * extra.T
            np.maximum(hop_s[boundary], value, out=hop_s[boundary])
        if "sync" in family.rings:
            stage = cut.end_stage
            ring_s = family.rings["sync"].low_bytes[stage] * family.edge_s
            ring_s = ring_s + ring_latency_floor_s(family, "sync")
            if stage == 0:
                ring_s = ring_s / family.tables.sync_buckets
            value = base - floor.sync[stage] + ring_s
            np.maximum(edge_s[stage], value, out=edge_s[stage])
    return Excluded(hop_s > cutoff_s, edge_s > cutoff_s)
