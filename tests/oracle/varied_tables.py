"""Random tiny cost tables with the features that bounds can stumble over, on top of `tiny_tables`.

Every feature is a function of its own; `varied_tables` applies a few of them, so that each is also met in
combination with others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.solvers.time_unit import in_unit
from tests.oracle.tiny_tables import random_tables

SHAPES = (
    # pipeline, data, virtual stages, nodes, slots of each node
    (1, 1, 1, 1, (1,)),
    (1, 2, 1, 1, (2,)),
    (1, 3, 1, 1, (4,)),
    (2, 1, 1, 1, (2,)),
    (2, 2, 1, 1, (4,)),
    (2, 1, 2, 1, (3,)),
    (2, 1, 1, 4, (1, 1, 1, 1)),
    (3, 1, 1, 3, (1, 2, 1)),
    (4, 1, 1, 4, (1, 1, 1, 1)),
    (4, 1, 1, 3, (2, 2, 1)),
    (1, 2, 1, 3, (1, 1, 2)),
    (1, 3, 1, 4, (1, 1, 1, 1)),
    (1, 3, 1, 2, (3, 2)),
    (1, 4, 1, 4, (2, 1, 2, 1)),
    (1, 4, 1, 3, (2, 2, 2)),
    (1, 4, 1, 2, (4, 4)),
    (2, 2, 1, 4, (1, 1, 1, 1)),
    (2, 2, 1, 6, (1, 1, 1, 1, 1, 1)),
    (2, 2, 1, 3, (2, 2, 1)),
    (2, 2, 1, 3, (2, 2, 2)),
    (2, 2, 1, 2, (2, 2)),
    (2, 2, 1, 2, (4, 4)),
    (2, 2, 1, 3, (3, 1, 0)),
    (2, 3, 1, 3, (2, 2, 2)),
    (2, 3, 1, 2, (4, 4)),
    (2, 4, 1, 2, (4, 4)),
    (3, 2, 1, 3, (2, 2, 2)),
    (3, 2, 1, 2, (3, 3)),
    (3, 2, 1, 2, (4, 2)),
    (2, 2, 2, 2, (2, 2)),
    (2, 2, 2, 3, (2, 2, 1)),
    (2, 1, 2, 3, (1, 1, 1)),
    (2, 1, 3, 2, (2, 2)),
    (3, 1, 2, 3, (1, 1, 1)),
)
"""One node, one cell, nodes that hold a whole stage, spare and unequal room, a node without any, virtual
stages."""

Feature = Callable[[CostTables, np.random.Generator], CostTables]


def pods(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Links within two sets of nodes much faster than between them."""
    member = rng.integers(0, 2, tables.num_nodes)
    inside = member[:, None] == member[None, :]
    spread = rng.uniform(0.97, 1.03, inside.shape)
    return replace(tables, pair_bytes_per_s=np.where(inside, 30e9, float(rng.choice([2e9, 8e9]))) * spread)


def slow_node(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """One node with slow links and a slow card."""
    slow = int(rng.integers(tables.num_nodes))
    pair, egress, ingress = (
        np.array(a) for a in (tables.pair_bytes_per_s, tables.egress_bytes_per_s, tables.ingress_bytes_per_s)
    )
    pair[slow, :] *= 0.2
    pair[:, slow] *= 0.2
    egress[slow] *= 0.3
    ingress[slow] *= 0.3
    return replace(tables, pair_bytes_per_s=pair, egress_bytes_per_s=egress, ingress_bytes_per_s=ingress)


def busy_cards(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Egress and ingress below the links, so that what shares a node decides."""
    size = tables.num_nodes
    return replace(
        tables,
        egress_bytes_per_s=rng.uniform(1e9, 4e9, size),
        ingress_bytes_per_s=rng.uniform(1e9, 4e9, size),
    )


def narrow_ports(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """The network port of one GPU below everything else."""
    return replace(tables, port_bytes_per_s=float(rng.uniform(0.5e9, 3e9)))


def slow_inside(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Links inside a node slower than the network."""
    size = tables.num_nodes
    return replace(
        tables,
        local_bytes_per_s=rng.uniform(0.3e9, 3e9, size),
        local_latency_s=rng.uniform(1e-5, 3e-3, size),
    )


def mixed_inside(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Links inside a node fast on some nodes, slow on others."""
    size = tables.num_nodes
    return replace(tables, local_bytes_per_s=rng.choice([1e9, 200e9], size))


def even_layers(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Nothing beside the layers in any stage, every split of equal stages ties."""
    zero = np.zeros(tables.num_virtual_stages)
    return replace(tables, forward_extra_s=zero, backward_extra_s=zero, weight_gradient_extra_s=zero)


def one_layer_each(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """As many layers as virtual stages (two at least)."""
    layers = max(2, tables.num_virtual_stages)
    return replace(tables, total_layers=layers, max_layers=np.minimum(tables.max_layers, layers))


def heavy_extras(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """First and last stage with several layers' worth of embedding and head."""
    forward, backward = np.array(tables.forward_extra_s), np.array(tables.backward_extra_s)
    for j in (0, -1):
        forward[j] += float(rng.uniform(0, 3)) * tables.forward_layer_s
        backward[j] += float(rng.uniform(0, 3)) * tables.backward_layer_s
    return replace(tables, forward_extra_s=forward, backward_extra_s=backward)


def long_rings(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Gradient synchronisation that takes as long as the pipeline, uneven over stages."""
    return replace(tables, sync=_bytes_times(tables.sync, float(rng.uniform(5, 20)), rng))


def unequal_gather(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """A gather whose bytes are not in proportion to those of the synchronisation."""
    return replace(tables, gather=_bytes_times(tables.gather, float(rng.uniform(2, 10)), rng))


def rings_of_extras_only(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Layers without gradients to synchronise: some stages may send nothing."""
    return replace(tables, sync=replace(tables.sync, bytes_per_layer=0.0))


def gather_alone(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """No synchronisation but a gather."""
    if tables.data == 1:
        return tables
    sync = tables.sync
    none = replace(sync, bytes_per_layer=0.0, bytes_extra=0 * sync.bytes_extra, latency_s=0.0)
    return replace(tables, sync=none, gather=sync, gather_exposed=True, sync_buckets=1)


def many_buckets(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """A gradient synchronisation in several buckets."""
    return tables if tables.data == 1 else replace(tables, sync_buckets=int(rng.integers(2, 6)))


def large_embedding(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """An embedding exchange as long as a few layers."""
    if tables.pipeline == 1:
        return tables
    return replace(tables, embedding_bytes=float(rng.uniform(4e7, 2e8)), embedding_latency_s=5e-5)


def long_hops(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Hops as long as the work of a stage."""
    return replace(tables, hop_bytes=tables.hop_bytes * float(rng.uniform(3, 10)))


def tight_memory(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Room for the balanced split and little else."""
    pipeline = tables.pipeline
    even = np.bincount(np.arange(tables.total_layers) % pipeline, minlength=pipeline)[::-1]
    needed = tables.memory_layer_bytes[:pipeline] * even + tables.memory_extra_bytes
    return replace(tables, memory_usable_bytes=float(needed.max()) * float(rng.choice([1.0, 1.05])))


def fixed_layers(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """The user's own split: fewest and most layers are the same."""
    virtual = tables.num_virtual_stages
    split = np.ones(virtual, dtype=np.int64)
    for _ in range(tables.total_layers - virtual):
        split[int(rng.integers(virtual))] += 1
    return (
        tables if split.sum() != tables.total_layers else replace(tables, min_layers=split, max_layers=split)
    )


def empty_stages(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """Stages may have no layer."""
    virtual = tables.num_virtual_stages
    return replace(
        tables,
        min_layers=np.zeros(virtual, dtype=np.int64),
        max_layers=np.full(virtual, tables.total_layers),
    )


def whole_seconds(tables: CostTables, rng: np.random.Generator) -> CostTables:
    """The same problem a hundred times slower, about as long as a real iteration."""
    return in_unit(tables, 0.01)


def _bytes_times(ring: Ring, factor: float, rng: np.random.Generator) -> Ring:
    uneven = factor * rng.uniform(0.1, 2.0, ring.bytes_extra.shape)
    return replace(ring, bytes_per_layer=ring.bytes_per_layer * factor, bytes_extra=ring.bytes_extra * uneven)


FEATURES: tuple[Feature, ...] = (
    pods,
    slow_node,
    busy_cards,
    narrow_ports,
    slow_inside,
    mixed_inside,
    even_layers,
    one_layer_each,
    heavy_extras,
    long_rings,
    unequal_gather,
    rings_of_extras_only,
    gather_alone,
    many_buckets,
    large_embedding,
    long_hops,
    tight_memory,
    fixed_layers,
    empty_stages,
    whole_seconds,
)
MOST_FEATURES = 5


def varied_tables(rng: np.random.Generator) -> CostTables:
    """Random tables with up to `MOST_FEATURES` features, in the order of `FEATURES`."""
    tables = random_tables(rng, SHAPES[int(rng.integers(len(SHAPES)))])
    chosen = rng.choice(len(FEATURES), size=int(rng.integers(0, MOST_FEATURES + 1)), replace=False)
    for index in sorted(chosen):
        tables = FEATURES[int(index)](tables, rng)
    return tables
