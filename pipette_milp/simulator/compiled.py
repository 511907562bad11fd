"""The compiled twin of :func:`pipette_milp.simulator.longest_path.node_ends`, for finish times only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipette_milp.accelerate import compiled
from pipette_milp.simulator.graph import EventGraph

Array = NDArray[np.float64]

LANES = 32
"""Lanes a block: its ends stay in the second-level cache (p = 16, M = 64: 4,096 nodes, 1 MB)."""


def last_ends(graph: EventGraph, stacked: Array) -> Array:
    """End of the last task of every stage [p, lanes] from durations [rows, lanes]."""
    finish = np.empty((graph.pipeline, stacked.shape[1]))
    _last_ends(graph.predecessors, graph.duration_row, graph.last_node, stacked, finish, LANES)
    return finish


@compiled
def _last_ends(
    predecessors: NDArray[np.int64],
    duration_row: NDArray[np.int64],
    last_node: NDArray[np.int64],
    stacked: Array,
    finish: Array,
    block: int,
) -> None:
    nodes, most = predecessors.shape
    lanes = stacked.shape[1]
    ends = np.zeros((nodes + 1, block))
    for first in range(0, lanes, block):
        width = min(block, lanes - first)
        for node in range(nodes):
            row = duration_row[node]
            for lane in range(width):
                ends[node, lane] = ends[predecessors[node, 0], lane]
            for column in range(1, most):
                other = predecessors[node, column]
                if other == nodes:
                    break
                for lane in range(width):
                    end = ends[other, lane]
                    if end > ends[node, lane]:
                        ends[node, lane] = end
            for lane in range(width):
                ends[node, lane] += stacked[row, first + lane]
        for stage in range(len(last_node)):
            for lane in range(width):
                finish[stage, first + lane] = ends[last_node[stage], lane]
