"""What rings and flows attain inside a node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipette_milp.arrays import Array
from pipette_milp.cluster import Cluster, Mesh
from pipette_milp.cost.gpu_level import best_local_bytes_per_s, group_rates
from pipette_milp.cost.wiring import Wiring, mesh_wiring, packed_rings, switch_wiring
from pipette_milp.solvers.highs import SAFETY, Model
from tests.mesh_cases import BRIDGES, CUBE_MESH, link_matrix, mesh_instance

GB = 1e9
PCIE = 12 * GB


def wiring(links: Array, *sizes: int, bus: float = PCIE) -> Wiring:
    return mesh_wiring(len(links), links.tobytes(), bus, frozenset(sizes))


def test_the_cube_mesh() -> None:
    """Six rings through all eight GPUs, four through a quad, one or two links per pair: what NCCL finds."""
    found = wiring(link_matrix(CUBE_MESH, 8), 2, 3, 4, 8)
    assert found.collective_bytes_per_s(range(8)) == 120 * GB
    assert found.collective_bytes_per_s((0, 1, 2, 3)) == 80 * GB
    assert found.collective_bytes_per_s((4, 5, 6, 7)) == 80 * GB
    assert found.collective_bytes_per_s((0, 3)) == 40 * GB
    assert found.collective_bytes_per_s((0, 1)) == 20 * GB
    assert found.collective_bytes_per_s((0, 5)) == PCIE
    assert found.flow_bytes_per_s(0, 4) == 40 * GB
    assert found.flow_bytes_per_s(0, 7) == PCIE
    # 1-5 and 0-1 have links, 0-5 has none: a ring over PCIe closes it, one in each direction
    assert found.collective_bytes_per_s((0, 1, 5)) == 2 * PCIE
    quads = [m for m in itertools.combinations(range(8), 4) if found.collective_bytes_per_s(m) == 80 * GB]
    assert quads == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_one_gpu_needs_no_ring() -> None:
    assert wiring(link_matrix(BRIDGES, 4), 2).collective_bytes_per_s((1,)) == np.inf


def test_all_pairs_alike_is_better_for_larger_groups() -> None:
    """Every GPU has a link to every other: n - 1 rings."""
    links = np.full((5, 5), 48 * GB) - 48 * GB * np.eye(5)
    found = wiring(links, 2, 3, 5, bus=0.0)
    rates = [found.collective_bytes_per_s(range(n)) for n in (2, 3, 5)]
    assert rates == [48 * GB, 96 * GB, 192 * GB]


def test_links_close_rings_before_the_bus_does() -> None:
    square = np.zeros((4, 4))
    for a in range(4):
        square[a, (a + 1) % 4] = square[(a + 1) % 4, a] = 10 * GB
    assert packed_rings(square, 0.0) == pytest.approx(20 * GB)
    # the pairs across the square have no link; with a fast bus more rings would close, but none is needed
    assert wiring(square, 4, bus=100 * GB).collective_bytes_per_s(range(4)) == 20 * GB


def test_no_ring_closes() -> None:
    path = np.zeros((3, 3))
    path[0, 1] = path[1, 0] = path[1, 2] = path[2, 1] = 10 * GB
    assert packed_rings(path, 0.0) == 0.0
    assert packed_rings(np.zeros((3, 3)), 0.0) == 0.0


def test_directions_differ() -> None:
    links = np.array([[0.0, 5.0], [2.0, 0.0]]) * GB
    assert packed_rings(links, 0.0) == 2 * GB


def test_the_linear_program_against_another_solver() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        size = int(rng.integers(3, 6))
        links = rng.uniform(1.0, 9.0, (size, size)) * (rng.random((size, size)) < 0.8)
        np.fill_diagonal(links, 0.0)
        bus = float(rng.choice([0.0, 3.0]))
        assert packed_rings(links, bus) == pytest.approx(rings_by_highs(links, bus), rel=2 * SAFETY)


def rings_by_highs(links: Array, bus: float) -> float:
    size = len(links)
    cycles = [list(itertools.pairwise((0, *order, 0))) for order in itertools.permutations(range(1, size))]
    cycles = [c for c in cycles if bus > 0 or all(links[e] > 0 for e in c)]
    if not cycles:
        return 0.0
    model = Model()
    x = [model.column(0.0, 100.0, cost=-1.0) for _ in cycles]

    def load(uses: list[bool], limit: float) -> None:
        model.row([(i, 1.0) for i, use in zip(x, uses, strict=True) if use], at_most=limit)

    for edge in itertools.permutations(range(size), 2):
        if links[edge] > 0:
            load([edge in c for c in cycles], float(links[edge]))
    for gpu in range(size):
        load([any(e[0] == gpu and links[e] == 0 for e in c) for c in cycles], bus)
        load([any(e[1] == gpu and links[e] == 0 for e in c) for c in cycles], bus)
    return -model.relax(time_limit_s=10.0).bound


def test_classes_of_groups() -> None:
    cube = wiring(link_matrix(CUBE_MESH, 8), 2)
    assert (group_rates((cube,), 2) / GB).tolist() == [40, 20, 12]
    assert group_rates((cube,), 1).tolist() == [np.inf]
    assert (group_rates((cube, switch_wiring(4, 100 * GB)), 2) / GB).tolist() == [100, 40, 20, 12]


def test_the_best_case_of_flows_and_rings_inside_a_node() -> None:
    """The t ranks use different pairs, so the t-th best pair limits a hop."""
    links = np.zeros((4, 4))
    links[0, 1] = links[1, 0] = 50 * GB
    links[2, 3] = links[3, 2] = 10 * GB
    found = wiring(links, 2, 3, 4)
    assert best_local_bytes_per_s(found, 1, 1) == 50 * GB
    assert best_local_bytes_per_s(found, 2, 1) == PCIE
    assert best_local_bytes_per_s(found, 4, 1) == np.inf
    cube = wiring(link_matrix(CUBE_MESH, 8), *range(1, 9))
    assert best_local_bytes_per_s(cube, 1, 8) == 120 * GB
    assert best_local_bytes_per_s(switch_wiring(8, 7 * GB), 2, 2) == 7 * GB


def test_excluded_gpus_leave_the_mesh() -> None:
    changes = {"cluster/exclude": {"gpus": ["node-000:1"]}}
    cluster = Cluster.of(mesh_instance(BRIDGES, 4, 1, changes))
    (mesh,) = cluster.meshes
    assert mesh is not None
    assert cluster.gpu_ids == ((0, 2, 3),)
    assert np.count_nonzero(mesh.link_bytes_per_s) == 2
    assert mesh.link_bytes_per_s[1, 2] == 240 * GB


def test_a_pair_without_a_link_uses_the_bus() -> None:
    mesh = Mesh(link_matrix(BRIDGES, 4), PCIE)
    assert mesh.pair_bytes_per_s[0, 2] == PCIE
    assert mesh.fastest_bytes_per_s == 240 * GB
