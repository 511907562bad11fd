"""The path cuts a cut loop starts with.

The loops between two stages are what paces a pipeline (bounds, section S1). For each pair of virtual stages
``a < b`` the simulator runs once with the hops between them at the mean link time and once at thirty times
it, all other hops free; paths are traced from the end of every stage, and distinct ones are kept. The cuts
hold for every layer split and placement; the split used for tracing only decides which paths are found.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipette_milp.cost.tables import Array, CostTables
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.simulator import EventGraph, PathCounts, event_graph, path_counts_batch

SLOW_HOP_FACTOR = 30.0
"""How much slower the hops of an interval are in its second run (bounds, section S1)."""
MANY_STAGES = 17
"""From here on only intervals of 1, 2, 4, ... boundaries: all of them would be V**3 / 2 long paths."""


def graph_of(tables: CostTables) -> EventGraph:
    """The event graph of a family."""
    configuration = tables.configuration
    return event_graph(
        configuration.schedule,
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )


def first_cuts(tables: CostTables, family: int = 0) -> list[PathCut]:
    """The cuts of a pipeline without communication, one for each end stage: cheap to find."""
    return _traced(tables, family, np.zeros((1, tables.num_virtual_stages - 1)))


def interval_cuts(tables: CostTables, family: int = 0) -> list[PathCut]:
    """Distinct cuts of all intervals and end stages, about V(V-1)/2 for each end stage."""
    return _traced(tables, family, _hop_cases(tables.num_virtual_stages - 1, _mean_hop_s(tables)))


def _traced(tables: CostTables, family: int, hops: Array) -> list[PathCut]:
    """Distinct cuts of all end stages for hops [cases, V-1] in either direction."""
    graph = graph_of(tables)
    layers = np.array(tables.configuration.layers_per_stage)
    cases, boundaries = hops.shape

    def repeated(per_layer_s: float, extra_s: Array) -> Array:
        return np.broadcast_to(per_layer_s * layers + extra_s, (cases, boundaries + 1))

    weight = None
    if graph.separates_weight_gradient:
        weight = repeated(tables.weight_gradient_layer_s, tables.weight_gradient_extra_s)
    counts = path_counts_batch(
        graph,
        repeated(tables.forward_layer_s, tables.forward_extra_s),
        repeated(tables.backward_layer_s, tables.backward_extra_s),
        hops,
        hops,
        list(range(tables.pipeline)),
        weight,
    )
    found = (
        path_cut(counts, (case, stage), family, stage)
        for case in range(cases)
        for stage in range(tables.pipeline)
    )
    return list(dict.fromkeys(found))


def path_cut(counts: PathCounts, index: tuple[int, ...], family: int, end_stage: int) -> PathCut:
    """One cut out of counts with leading axes."""

    def row(values: np.ndarray) -> tuple[int, ...]:
        return tuple(int(value) for value in values[index])

    return PathCut(
        family,
        end_stage,
        row(counts.forward),
        row(counts.backward),
        row(counts.weight_gradient),
        row(counts.hop_forward),
        row(counts.hop_backward),
    )


def _hop_cases(boundaries: int, hop_s: float) -> Array:
    """[cases, V-1]: no communication, then every interval at one and at thirty mean hops."""
    cases = [np.zeros(boundaries)]
    lengths: Iterable[int] = range(1, boundaries + 1)
    if boundaries >= MANY_STAGES:
        lengths = [2**power for power in range(boundaries.bit_length())]
    for first in range(boundaries):
        for beyond in (first + length for length in lengths if first + length <= boundaries):
            for factor in (1.0, SLOW_HOP_FACTOR):
                case = np.zeros(boundaries)
                case[first:beyond] = factor * hop_s
                cases.append(case)
    return np.array(cases)


def _mean_hop_s(tables: CostTables) -> float:
    """Mean over all node pairs, or the hop inside the only node."""
    family = Family(tables)
    hosts = list(family.hosts)
    hops = family.hop_s[np.ix_(hosts, hosts)]
    if len(hosts) > 1:
        hops = hops[~np.eye(len(hosts), dtype=bool)]
    return float(hops.mean())
