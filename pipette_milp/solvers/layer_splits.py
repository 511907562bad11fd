"""Layer splits worth trying: where the stages with one layer more lie decides how long a pipeline fills.

Whole layers leave many splits that keep the busiest stage equally busy. With two layers on half of the
stages and one on the others the best of them is a quarter faster than the worst: early busy stages hide
behind the way of the first micro-batch, late ones do not. Here the extra layers go to a run of stages that
starts anywhere; the runs are compared on one replica with the best hops and rings.
"""

from __future__ import annotations

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import compose_iteration, finish_times
from pipette_milp.solvers.evaluation import Evaluator, balanced_split
from pipette_milp.solvers.relaxed import BestLinks, best_embedding_s, best_hop_s, best_ring_s

MOST_RUNS = 64
"""First stages of a run that are tried: all of them up to so many stages."""


def quickest_split(evaluator: Evaluator) -> IntArray | None:
    """[V] the fastest of the balanced splits by their run of fuller stages; None if no split fits.

    Splits over several virtual stages a rank share memory between them and stay the balanced one.
    """
    tables = evaluator.tables
    balanced = balanced_split(tables)
    if balanced is None or tables.configuration.virtual_stages > 1 or tables.pipeline == 1:
        return balanced
    starts = np.unique(np.linspace(0, tables.pipeline - 1, min(tables.pipeline, MOST_RUNS)).astype(np.int64))
    tried = [balanced, *(run_split(tables, int(first)) for first in starts)]
    splits = np.unique([split for split in tried if split is not None and evaluator.fits(split)], axis=0)
    if len(splits) == 0:
        return balanced
    return np.asarray(splits[int(np.argmin(_times_at_best(evaluator, splits)))])


def run_split(tables: CostTables, first: int) -> IntArray | None:
    """[p] layers handed out to whoever would be least busy, on a tie to the next stage from ``first`` on;
    None if they do not fit."""
    per_layer = tables.forward_layer_s + tables.backward_layer_s + tables.weight_gradient_layer_s
    busy = tables.forward_extra_s + tables.backward_extra_s + tables.weight_gradient_extra_s
    low = tables.min_layers
    room = (tables.memory_usable_bytes - tables.memory_extra_bytes) / tables.memory_layer_bytes
    high = np.minimum(tables.max_layers, np.floor(room).astype(np.int64))
    left = int(tables.total_layers - low.sum())
    if left < 0 or np.any(high < low):
        return None
    stages = np.repeat(np.arange(tables.pipeline), high - low)
    if len(stages) < left:
        return None
    number = np.concatenate([np.arange(a + 1, b + 1) for a, b in zip(low, high, strict=True)])
    turn = (stages - first) % tables.pipeline
    chosen = np.lexsort((turn, busy[stages] + per_layer * number))[:left]
    return np.asarray(low + np.bincount(stages[chosen], minlength=tables.pipeline))


def _times_at_best(evaluator: Evaluator, splits: IntArray) -> Array:
    """[S] simulated seconds of one replica with every hop and ring at its best."""
    tables, links = evaluator.tables, BestLinks.of(evaluator.tables)
    forward = tables.forward_layer_s * splits + tables.forward_extra_s
    backward = tables.backward_layer_s * splits + tables.backward_extra_s
    weight = None
    if tables.weight_gradient_layer_s != 0:
        weight = (tables.weight_gradient_layer_s * splits + tables.weight_gradient_extra_s)[..., None]
    hops = np.full((tables.pipeline - 1, 1), best_hop_s(tables, links))
    finish = finish_times(evaluator.graph, forward[..., None], backward[..., None], hops, hops, weight)

    def ring_s(split: IntArray, *, sync: bool) -> Array:
        ring = tables.sync if sync else tables.gather
        return best_ring_s(tables, links, ring, ring.bytes_per_layer * split + ring.bytes_extra)

    sync = np.array([ring_s(split, sync=True) for split in splits])
    sync[:, 0] /= tables.sync_buckets  # the last bucket of stage 0 is exposed on every placement
    gather = np.zeros_like(sync)
    if tables.gather_exposed:
        gather = np.array([ring_s(split, sync=False) for split in splits])
    optimizer = tables.optimizer_layer_s * splits + tables.optimizer_extra_s
    exchange = best_embedding_s(tables, links)
    return compose_iteration(finish, sync, exchange, optimizer, gather, tables.fixed_s)
