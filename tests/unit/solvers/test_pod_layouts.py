"""Placements on pods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.arrays import IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.pod_layouts import leading, pod_layout
from tests.oracle.tiny_tables import random_tables


def on_pods(shape: tuple, nodes_per_pod: int, seed: int = 0) -> tuple[CostTables, IntArray]:
    """Long hops, ten times as slow between pods as inside."""
    tables = random_tables(np.random.default_rng(seed), shape)
    pod = np.arange(tables.num_nodes) // nodes_per_pod
    pair = np.where(pod[:, None] == pod[None, :], 20e9, 2e9)
    return replace(tables, pair_bytes_per_s=pair), pod


def pods_of_stage(cells: IntArray, pod: IntArray, stage: int) -> int:
    return len(np.unique(pod[cells[stage]]))


def crossings(cells: IntArray, pod: IntArray) -> IntArray:
    """[p - 1] pipelines that cross from pod to pod at each boundary."""
    return (pod[cells[1:]] != pod[cells[:-1]]).sum(axis=1)


@pytest.mark.parametrize(
    ("shape", "nodes_per_pod"),
    [
        ((4, 4, 1, 16, (1,) * 16), 4),
        ((4, 4, 1, 8, (2,) * 8), 2),
        ((6, 2, 1, 9, (1, 2, 1, 2, 1, 2, 1, 2, 1)), 3),
        ((3, 4, 1, 12, (1,) * 12), 5),
        ((2, 2, 2, 4, (1,) * 4), 2),
        ((1, 4, 1, 4, (1,) * 4), 2),
        ((4, 1, 1, 4, (1,) * 4), 2),
    ],
    ids=str,
)
def test_every_place_is_used_once_whatever_is_whole(shape: tuple, nodes_per_pod: int) -> None:
    for seed in range(5):
        tables, pod = on_pods(shape, nodes_per_pod, seed)
        rng = np.random.default_rng(seed)
        some = rng.random(tables.pipeline) < 0.5
        for whole in (*leading(tables), some):
            cells = pod_layout(tables, pod, tables.min_layers, whole)
            held = np.bincount(cells.ravel(), minlength=tables.num_nodes)
            assert cells.shape == (tables.pipeline, tables.data)
            assert np.all(held <= tables.slots)


def test_whole_stages_lie_in_one_pod_and_the_rest_by_pipelines() -> None:
    tables, pod = on_pods((6, 4, 1, 24, (1,) * 24), 4)
    cells = pod_layout(tables, pod, np.ones(6, dtype=np.int64), [True, True, False, False, False, False])
    assert [pods_of_stage(cells, pod, s) for s in range(6)] == [1, 1, 4, 4, 4, 4]
    assert crossings(cells, pod).tolist() == [4, 4, 0, 0, 0]


def test_two_stages_share_a_pod_with_room_for_both() -> None:
    tables, pod = on_pods((4, 2, 1, 8, (1,) * 8), 4)
    cells = pod_layout(tables, pod, np.ones(4, dtype=np.int64), [True] * 4)
    assert crossings(cells, pod).tolist() == [0, 2, 0]


def test_a_stage_that_fits_in_no_pod_is_laid_out_by_pipelines() -> None:
    tables, pod = on_pods((2, 4, 1, 8, (1,) * 8), 2)
    cells = pod_layout(tables, pod, np.ones(2, dtype=np.int64), [True, True])
    assert crossings(cells, pod).tolist() == [0]


def test_pipelines_go_on_in_another_pod_beside_stages_that_work_less() -> None:
    """Pods of four nodes, pipelines of six stages, two of which have twice the layers of the others."""
    tables, pod = on_pods((6, 4, 1, 24, (1,) * 24), 4)
    zero = np.zeros(6)
    tables = replace(
        tables,
        hop_bytes=1e4,
        forward_extra_s=zero,
        backward_extra_s=zero,
        weight_gradient_extra_s=zero,
    )
    heavy = np.array([2, 2, 1, 1, 1, 1])
    assert crossings(pod_layout(tables, pod, heavy, [False] * 6), pod)[:2].tolist() == [0, 0]
    late = np.array([1, 1, 1, 1, 2, 2])
    # a pod of four takes three stages; the last pipeline gets what is left in every one of them
    assert crossings(pod_layout(tables, pod, late, [False] * 6), pod).tolist() == [1, 1, 4, 1, 1]
