"""Path cuts: how often each duration lies on a longest path.

Any path through the graph gives a lower bound that is linear in the durations (formulation, section 3):
``finish >= counts . durations`` for every durations, with equality at those that the path was traced from
(up to the rounding of a different order of addition).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pipette_milp.arrays import Array, IntArray
from pipette_milp.errors import InputError, Problem
from pipette_milp.simulator.graph import EventGraph
from pipette_milp.simulator.longest_path import (
    Engine,
    lane_blocks,
    node_ends,
    stack_durations,
    takes_compiled,
)


@dataclass(frozen=True)
class PathCounts:
    """How often each duration lies on a path; leading axes as stated by the function that made it."""

    forward: IntArray
    """[..., V]"""
    backward: IntArray
    """[..., V]"""
    weight_gradient: IntArray
    """[..., V], all 0 where the schedule does not separate it"""
    hop_forward: IntArray
    """[..., V-1]"""
    hop_backward: IntArray
    """[..., V-1]"""

    def key(self, end_stage: int) -> bytes:
        """Equal for equal counts of paths to one end."""
        parts = (self.forward, self.backward, self.weight_gradient, self.hop_forward, self.hop_backward)
        counts = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
        return end_stage.to_bytes(4, "little") + counts

    def length_s(
        self, forward_s: Array, backward_s: Array, weight_s: Array | None, hop_f_s: Array, hop_b_s: Array
    ) -> float:
        """Seconds along one path; the counts without leading axes, durations [V] and [V-1]."""
        length = float(
            self.forward @ forward_s
            + self.backward @ backward_s
            + self.hop_forward @ hop_f_s
            + self.hop_backward @ hop_b_s
        )
        return length if weight_s is None else length + float(self.weight_gradient @ weight_s)


def path_counts(
    graph: EventGraph,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    hop_forward_s: ArrayLike,
    hop_backward_s: ArrayLike,
    end_stage: int,
    weight_gradient_s: ArrayLike | None = None,
) -> PathCounts:
    """One longest path of one replica from the start to the end of a stage's last task.

    forward_s, backward_s, weight_gradient_s are [V], hop_forward_s and hop_backward_s [V-1]. Ties go to
    the earlier node of the graph.

    Raises:
        InputError: malformed durations or no such stage.
    """
    one = [
        None if values is None else np.asarray(values, dtype=np.float64)[np.newaxis]
        for values in (forward_s, backward_s, hop_forward_s, hop_backward_s, weight_gradient_s)
    ]
    batch = path_counts_batch(graph, one[0], one[1], one[2], one[3], end_stage, one[4])  # type: ignore[arg-type]
    return PathCounts(
        batch.forward[0],
        batch.backward[0],
        batch.weight_gradient[0],
        batch.hop_forward[0],
        batch.hop_backward[0],
    )


def path_counts_batch(
    graph: EventGraph,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    hop_forward_s: ArrayLike,
    hop_backward_s: ArrayLike,
    end_stage: ArrayLike,
    weight_gradient_s: ArrayLike | None = None,
    *,
    engine: Engine = "auto",
) -> PathCounts:
    """:func:`path_counts` for K duration vectors at once.

    Args:
        forward_s, backward_s, weight_gradient_s: [K, V] seconds
        hop_forward_s, hop_backward_s: [K, V-1] seconds
        end_stage: one stage, or a list of E stages.

    Returns:
        Counts [K, V] and [K, V-1] for one stage, [K, E, V] and [K, E, V-1] for a list.
    """
    stages = np.asarray(end_stage, dtype=np.int64)
    if stages.ndim > 1 or stages.size == 0 or stages.min() < 0 or stages.max() >= graph.pipeline:
        message = f"{stages.tolist()}: expected one or a list of the stages 0 to {graph.pipeline - 1}"
        raise InputError(Problem("end_stage", message))
    durations = (forward_s, backward_s, weight_gradient_s, hop_forward_s, hop_backward_s)
    columns = tuple(
        None if values is None else np.asarray(values, dtype=np.float64)[..., np.newaxis]
        for values in durations
    )
    stacked, lead, _ = stack_durations(graph, columns)
    if len(lead) != 1:
        raise InputError(Problem("durations", f"leading shape {lead}: expected [K, V] and [K, V-1]"))
    walk, ends_of = trace, node_ends
    if takes_compiled(engine):
        from pipette_milp.simulator import compiled

        walk, ends_of = compiled.walk_back, compiled.node_ends
    counts = np.concatenate(
        [
            walk(graph, ends_of(graph, block), np.atleast_1d(stages), len(stacked))
            for block in (np.ascontiguousarray(stacked[:, lanes]) for lanes in lane_blocks(graph, stacked))
        ]
    )
    counts = counts.reshape(*lead, *stages.shape, len(stacked))
    by_kind = [counts[..., rows] for rows in graph.rows]
    if not graph.separates_weight_gradient:
        by_kind[2] = np.zeros_like(by_kind[0])
    forward, backward, weight_gradient, hop_forward, hop_backward = by_kind
    return PathCounts(forward, backward, weight_gradient, hop_forward, hop_backward)


def trace(graph: EventGraph, ends: Array, stages: IntArray, num_rows: int) -> IntArray:
    """Walk back from the last task of each stage, all lanes and stages in step: counts [lanes * E, rows].

    Of the predecessors the one that ends last was waited for; ties go to the first.
    """
    num_lanes = ends.shape[1]
    start = graph.num_nodes
    lane = np.repeat(np.arange(num_lanes), len(stages))
    node = np.tile(graph.last_node[stages], num_lanes)
    walker = np.arange(len(node))
    counts = np.zeros((len(node), num_rows), dtype=np.int64)
    while len(walker):
        counts[walker, graph.duration_row[node]] += 1
        candidates = graph.predecessors[node]
        latest = np.argmax(ends[candidates, lane[walker, np.newaxis]], axis=1)
        node = candidates[np.arange(len(node)), latest]
        going = node != start
        walker, node = walker[going], node[going]
    return counts
