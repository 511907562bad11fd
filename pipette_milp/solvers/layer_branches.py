"""Layer splits that a plan below a ceiling can have, and their parts by the busiest stage.

Closed forms over the best links: nothing here is solved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.highs import SAFETY
from pipette_milp.solvers.relaxed import BestLinks, best_hop_s, best_ring_s, tail_floor_s

ROUNDING = 1e-9
"""Layers that a quotient of times may be off by."""

BranchKey = tuple[int, ...]
"""See `Branch.key`."""


def floor_bound_s(tables: CostTables) -> float:
    """Cheap bound from best links alone: every pipeline stage must do its own work, one after the other.

    ``max over s of [sum of F + B before s + M (F_s + B_s)] + ring + tail`` is a path of every schedule; for
    layers not yet decided the mean over stages, weighted so that only the total counts.
    """
    links = BestLinks.of(tables)
    micro_batches = tables.configuration.num_micro_batches
    per_layer, extra = _work(tables)
    chunks, pipeline = tables.configuration.virtual_stages, tables.pipeline
    low = tables.min_layers
    sent = tables.sync.bytes_per_layer * low.reshape(chunks, pipeline).sum(axis=0) + tables.sync.bytes_extra
    ring = best_ring_s(tables, links, tables.sync, sent)
    exposed = (
        ring
        if tables.sync_buckets == 1
        else np.where(np.arange(pipeline) == 0, ring / tables.sync_buckets, ring)
    )
    # M * C_s of the busiest stage: whole layers make it longer than the mean
    if chunks == 1:
        busiest = micro_batches * least_busiest_s(tables, tables.min_layers, tables.max_layers)
    else:
        busiest = micro_batches * (per_layer * tables.total_layers + float(extra.sum())) / pipeline
    # one micro-batch down and up, and the other M - 1 on the last stage; where the weight gradient is
    # separate it
    # may be put off beyond the last way up, so only the rest counts
    round_layer = tables.forward_layer_s + tables.backward_layer_s
    round_extra = tables.forward_extra_s + tables.backward_extra_s
    hop = best_hop_s(tables, links)
    once = (
        round_layer * tables.total_layers
        + float(round_extra.sum())
        + 2 * (tables.num_virtual_stages - 1) * hop
    )
    last = tables.num_virtual_stages - 1
    last_busy = (round_layer * low[last] + round_extra[last]) * (micro_batches - 1)
    return (
        max(busiest + float(exposed.min()), once + last_busy + float(exposed.min())) + tail_floor_s(tables)
    ) * (1 - SAFETY)


def tightened_layers(tables: CostTables, ceiling_s: float) -> tuple[IntArray, IntArray] | None:
    """[V] layer bounds that any plan with T <= ceiling keeps; None if there is none.

    A pipeline stage works for ``M * C_s`` after one micro-batch came down to it and before the last one went
    up (a separate weight gradient may come after that).
    """
    separate = tables.weight_gradient_layer_s > 0
    per_layer, extra = _work(tables)
    micro_batches = tables.configuration.num_micro_batches
    links = BestLinks.of(tables)
    hop = best_hop_s(tables, links)
    tail = tail_floor_s(tables)
    low, high = tables.min_layers.copy(), tables.max_layers.copy()
    pipeline, virtual = tables.pipeline, tables.num_virtual_stages
    for _ in range(3):
        if np.any(low > high):
            return None
        least = per_layer * low + extra
        sent = tables.sync.bytes_per_layer * low.reshape(-1, pipeline).sum(axis=0) + tables.sync.bytes_extra
        ring = best_ring_s(tables, links, tables.sync, sent)
        ring[0] /= tables.sync_buckets
        passing = tables.forward_layer_s * low + tables.forward_extra_s
        returning = tables.backward_layer_s * low + tables.backward_extra_s
        for j in range(virtual):
            stage = j % pipeline
            down = float(passing[:stage].sum()) + stage * hop
            up = 0.0 if separate else float(returning[:stage].sum()) + stage * hop
            # the stage's own ring follows, or the way up to stage 0 and the ring of that
            around = down + float(ring[stage] if separate else max(ring[stage], up + ring[0]))
            siblings = float(least[stage::pipeline].sum()) - least[j]
            room = (ceiling_s - tail - around) / micro_batches - siblings - extra[j]
            high[j] = min(high[j], int(np.floor(room / per_layer + ROUNDING)))
        if np.any(high < 0) or high.sum() < tables.total_layers:
            return None
        low = np.maximum(low, tables.total_layers - (high.sum() - high))
    return None if np.any(low > high) else (low, high)


@dataclass(frozen=True)
class Branch:
    """A part of the layer splits: virtual stage ``busiest`` is the first (or the last) to work as long as the
    best split's busiest stage must."""

    busiest: int
    key: BranchKey
    """The stage and the layers that it, and no stage before (after) it, must have: the same set of splits in
    every call for a family, whatever the ceiling."""
    low: IntArray
    high: IntArray


def least_busiest_s(tables: CostTables, low: IntArray, high: IntArray) -> float:
    """Work per micro-batch of the busiest virtual stage in the split that keeps it least busy."""
    per_layer, extra = _work(tables)
    values = np.unique(
        np.concatenate(
            [per_layer * np.arange(a, b + 1) + e for a, b, e in zip(low, high, extra, strict=True)]
        )
    )
    first, last = 0, len(values) - 1
    while first < last:
        middle = (first + last) // 2
        most = _most_within(tables, float(values[middle]), high)
        if np.all(most >= low) and most.sum() >= tables.total_layers:
            last = middle
        else:
            first = middle + 1
    return float(values[first])


def _work(tables: CostTables) -> tuple[float, Array]:
    """Seconds per micro-batch of one layer, and [V] of what a virtual stage has beside its layers."""
    per_layer = tables.forward_layer_s + tables.backward_layer_s + tables.weight_gradient_layer_s
    return per_layer, tables.forward_extra_s + tables.backward_extra_s + tables.weight_gradient_extra_s


def _most_within(tables: CostTables, work_s: float, high: IntArray) -> IntArray:
    """[V] most layers of each virtual stage within a given work."""
    per_layer, extra = _work(tables)
    fitting = np.floor((work_s - extra) / per_layer + ROUNDING)
    return np.asarray(np.minimum(high, fitting), dtype=np.int64)


def busy_layers(tables: CostTables, low: IntArray, high: IntArray) -> IntArray:
    """[V] layers from which a virtual stage works as long as the best split's busiest stage must."""
    per_layer, extra = _work(tables)
    quotient = (least_busiest_s(tables, low, high) - extra) / per_layer
    return np.asarray(np.ceil(quotient - ROUNDING), dtype=np.int64)


def busiest_branches(
    tables: CostTables, low: IntArray, high: IntArray, *, last: bool = False
) -> list[Branch]:
    """All splits within the bounds, by their first stage with at least the least busiest stage's work.

    Whole layers make the busiest stage longer than the mean, by 20 % with 4 layers a stage. A relaxation over
    fractional layers does not see that; in each branch it does.

    Args:
        last: by the last such stage. Early busy stages hide behind the way of the first micro-batch: where
            the last busy stage is early, all busy ones are, which leaves whole layers little choice; where it
            is late, the pipeline fills slowly. By the first one, the branch of stage 0 leaves all others
            open.
    """
    # most layers that stay below the least busiest work; what is less than ROUNDING below it counts as equal
    needed = busy_layers(tables, low, high)
    below = np.minimum(high, needed - 1)
    branches = []
    for j in range(tables.num_virtual_stages):
        others = slice(j + 1, None) if last else slice(0, j)
        branch_low, branch_high = low.copy(), high.copy()
        branch_low[j] = max(low[j], below[j] + 1)
        branch_high[others] = np.minimum(high[others], below[others])
        if np.all(branch_low <= branch_high):
            stage = -1 - j if last else j
            key = (stage, int(needed[j]), *(int(layers) for layers in needed[others]))
            branches.append(Branch(j, key, branch_low, branch_high))
    return branches
