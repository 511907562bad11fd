"""Compiled twins of the inner loops: finish times, ends of all nodes, the walk back along longest paths."""

from __future__ import annotations

import numpy as np

from pipette_milp.accelerate import compiled
from pipette_milp.arrays import Array, IntArray
from pipette_milp.simulator.graph import EventGraph

LANES = 32
"""Most lanes a block: its ends stay in the second-level cache (p = 16, M = 64: 4,000 nodes, 1 MB).
Measured there: 0.12 ms for 32 lanes (16 a block: 0.14, 64: 0.17), 0.42 for 128 (0.55, 0.42)."""


def last_ends(graph: EventGraph, stacked: Array) -> Array:
    """End of the last task of every stage [p, lanes] from durations [rows, lanes]."""
    finish = np.empty((graph.pipeline, stacked.shape[1]))
    _last_ends(
        graph.predecessors,
        graph.duration_row,
        graph.last_node,
        stacked,
        finish,
        min(LANES, stacked.shape[1]),
    )
    return finish


@compiled
def _last_ends(
    predecessors: IntArray,
    duration_row: IntArray,
    last_node: IntArray,
    stacked: Array,
    finish: Array,
    block: int,
) -> None:
    """Nodes in topological order, lanes inside; unused predecessors name the start, whose end is 0."""
    nodes, most = predecessors.shape
    lanes = stacked.shape[1]
    ends = np.zeros((nodes + 1, block))
    for first in range(0, lanes, block):
        width = min(block, lanes - first)
        for node in range(nodes):
            row = duration_row[node]
            one = predecessors[node, 0]
            other = predecessors[node, most - 1]
            for lane in range(width):
                start = max(ends[one, lane], ends[other, lane])
                ends[node, lane] = start + stacked[row, first + lane]
            for column in range(1, most - 1):  # rare; rounding is monotone, so adding before max is the same
                another = predecessors[node, column]
                for lane in range(width):
                    end = ends[another, lane] + stacked[row, first + lane]
                    ends[node, lane] = max(ends[node, lane], end)
        for stage in range(len(last_node)):
            for lane in range(width):
                finish[stage, first + lane] = ends[last_node[stage], lane]


def node_ends(graph: EventGraph, stacked: Array) -> Array:
    """The twin of :func:`pipette_milp.simulator.longest_path.node_ends`."""
    ends = np.zeros((graph.num_nodes + 1, stacked.shape[1]))
    _node_ends(graph.predecessors, graph.duration_row, stacked, ends)
    return ends


@compiled
def _node_ends(predecessors: IntArray, duration_row: IntArray, stacked: Array, ends: Array) -> None:
    nodes, most = predecessors.shape
    for node in range(nodes):
        for lane in range(stacked.shape[1]):
            start = ends[predecessors[node, 0], lane]
            for column in range(1, most):
                start = max(start, ends[predecessors[node, column], lane])
            ends[node, lane] = start + stacked[duration_row[node], lane]


def walk_back(graph: EventGraph, ends: Array, stages: IntArray, num_rows: int) -> IntArray:
    """The twin of :func:`pipette_milp.simulator.path_counts.trace`."""
    counts = np.zeros((ends.shape[1] * len(stages), num_rows), dtype=np.int64)
    _walk_back(graph.predecessors, graph.duration_row, graph.last_node[stages], ends, counts)
    return counts


@compiled
def _walk_back(
    predecessors: IntArray,
    duration_row: IntArray,
    last_node: IntArray,
    ends: Array,
    counts: IntArray,
) -> None:
    nodes, most = predecessors.shape
    for lane in range(ends.shape[1]):
        for stage in range(len(last_node)):
            walker = lane * len(last_node) + stage
            node = last_node[stage]
            while node != nodes:
                counts[walker, duration_row[node]] += 1
                latest = predecessors[node, 0]
                for column in range(1, most):
                    if ends[predecessors[node, column], lane] > ends[latest, lane]:
                        latest = predecessors[node, column]
                node = latest
