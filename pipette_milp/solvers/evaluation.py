"""The simulated time of a candidate: layer split and node of every cell of one family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.gpu_placement import gpu_placement_durations
from pipette_milp.cost.placement import placement_durations
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import EventGraph, compose_iteration, event_graph, finish_times


@dataclass(frozen=True)
class Candidate:
    """A plan as the solvers see it."""

    layers: IntArray
    """[V]"""
    node_of_cell: IntArray
    """[p, d]"""
    gpus_of_cell: IntArray | None = None
    """[p, d, t] local GPUs, rank by rank. None where the GPUs of a node are joined alike, or are not chosen
    yet: every duration is then at its best case (`pipette_milp.cost.gpu_level`)."""


class Evaluator:
    """Simulated seconds of candidates of one family."""

    def __init__(self, tables: CostTables) -> None:
        self.tables = tables

    @cached_property
    def graph(self) -> EventGraph:
        """The family's event graph; independent of split and placement."""
        configuration = self.tables.configuration
        return event_graph(
            configuration.schedule,
            configuration.pipeline,
            configuration.virtual_stages,
            configuration.num_micro_batches,
            configuration.pipeline_transfers,
        )

    def durations(self, candidate: Candidate) -> Durations:
        """All durations of a candidate."""
        if candidate.gpus_of_cell is not None and self.tables.gpu_level is not None:
            return gpu_placement_durations(
                self.tables, candidate.layers, candidate.node_of_cell, candidate.gpus_of_cell
            )
        return placement_durations(self.tables, candidate.layers, candidate.node_of_cell)

    def simulated_s(self, candidate: Candidate) -> float:
        """Longest path of the whole iteration."""
        return self.of_durations(self.durations(candidate))

    def of_durations(self, durations: Durations) -> float:
        """Longest path for given durations; replicas with equal durations are simulated once."""
        columns = [
            durations.forward_s,
            durations.backward_s,
            durations.hop_forward_s,
            durations.hop_backward_s,
        ]
        stacked = np.concatenate(columns, axis=0)
        distinct = np.unique(stacked, axis=1, return_index=True)[1] if stacked.shape[1] > 1 else np.array([0])
        finish = finish_times(
            self.graph,
            durations.forward_s[:, distinct],
            durations.backward_s[:, distinct],
            durations.hop_forward_s[:, distinct],
            durations.hop_backward_s[:, distinct],
            None if durations.weight_gradient_s is None else durations.weight_gradient_s[:, distinct],
        )
        return float(
            compose_iteration(
                finish,
                durations.gradient_sync_s,
                durations.embedding_sync_s,
                durations.optimizer_s,
                durations.parameter_gather_s,
                durations.fixed_s,
            )
        )

    def fits(self, layers: IntArray, node_of_cell: IntArray | None = None) -> bool:
        """Whether a layer split is within bounds and every stage within memory.

        Without a placement [p, d]: on the largest GPUs; with one, on those it uses.
        """
        tables = self.tables
        if np.any(layers < tables.min_layers) or np.any(layers > tables.max_layers):
            return False
        usable: float | Array = tables.memory_usable_bytes
        if tables.detail is not None and node_of_cell is not None:
            usable = tables.detail.usable_of_stage(node_of_cell)
        return bool(np.all(stage_memory_bytes(tables, layers) <= usable))

    @cached_property
    def memory_depends_on_placement(self) -> bool:
        """Whether GPUs of different sizes make a split fit here and not there."""
        detail = self.tables.detail
        return detail is not None and bool(np.ptp(detail.usable_bytes) > 0)


def stage_memory_bytes(tables: CostTables, layers: IntArray) -> Array:
    """[p] device memory of every pipeline stage."""
    if tables.detail is not None:
        return tables.detail.memory_bytes(layers)
    chunks = tables.configuration.virtual_stages
    per_layer = tables.memory_layer_bytes.reshape(chunks, tables.pipeline)
    held = (per_layer * layers.reshape(chunks, tables.pipeline)).sum(axis=0)
    return np.asarray(held + tables.memory_extra_bytes)


def balanced_split(tables: CostTables, *, memory: bool = True) -> IntArray | None:
    """[V] layer split whose busiest virtual stage is least busy, within all bounds; None if none fits.

    Layers are handed out one by one to the stage that would be least busy with it, the later stage on a tie
    (its warm-up is shorter), never over the memory of a pipeline stage, unless ``memory`` is false.
    """
    per_layer = tables.forward_layer_s + tables.backward_layer_s + tables.weight_gradient_layer_s
    busy = tables.forward_extra_s + tables.backward_extra_s + tables.weight_gradient_extra_s
    layers = tables.min_layers.copy()
    pipeline = tables.pipeline
    room = tables.memory_usable_bytes - stage_memory_bytes(tables, layers)
    if not memory:
        room = np.full(pipeline, np.inf)
    if np.any(room < 0) or layers.sum() > tables.total_layers:
        return None
    for _ in range(int(tables.total_layers - layers.sum())):
        open_stages = [
            j
            for j in range(tables.num_virtual_stages)
            if layers[j] < tables.max_layers[j] and room[j % pipeline] >= tables.memory_layer_bytes[j]
        ]
        if not open_stages:
            return None
        j = min(open_stages, key=lambda j: (busy[j] + per_layer * (layers[j] + 1), -j))
        layers[j] += 1
        room[j % pipeline] -= tables.memory_layer_bytes[j]
    return layers
