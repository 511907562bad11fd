"""What flows and ring collectives attain inside a node, by the GPUs that take part.

A switch gives every GPU its own port, so all sets of GPUs are alike. In a mesh they are not:

* a flow from one GPU to another has the link of that pair, or the bus where there is none;
* a ring collective runs several rings at once, each through every GPU of the set (costs, section 4; NCCL
  calls them channels). It attains the most that rings carry together: ``max sum of x_c`` over all directed
  Hamiltonian cycles ``c`` with ``sum of x_c over the c through a link <= its bandwidth``, a linear program.
  Rings keep to the pairs' own links where these close a ring, as NCCL's search does; else pairs without a
  link use the bus, of which every GPU has one port in each direction.

Not modelled: flows that reach a GPU through another GPU, and PCIe switches that several GPUs share.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cluster import Mesh

DIGITS = 9
"""Significant digits of an attained bandwidth: an LP solver's last digits would tell equal sets of GPUs
apart."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """One kind of node: what sets of its usable GPUs (local numbers 0 to ``gpus - 1``) attain.

    Nodes of one kind share the object: it is compared by identity.
    """

    gpus: int
    port_bytes_per_s: float | None
    """Scale-up port of every GPU where a switch joins them, None in a mesh."""
    pair_bytes_per_s: Array | None = None
    """[G, G] of a mesh: one flow from GPU to GPU; inf on the diagonal."""
    ring_bytes_per_s: Array | None = None
    """[2**G] of a mesh: a ring collective over the GPUs of a bit mask; inf for one GPU, nan for sizes that
    were not asked for."""

    @property
    def uniform(self) -> bool:
        """Whether all sets of equally many GPUs are alike."""
        return self.port_bytes_per_s is not None

    def flow_bytes_per_s(self, sender: int, receiver: int) -> float:
        """What one flow attains."""
        if self.pair_bytes_per_s is None:
            return float(self.port_bytes_per_s or 0.0)
        return float(self.pair_bytes_per_s[sender, receiver])

    def collective_bytes_per_s(self, gpus: Sequence[int] | IntArray) -> float:
        """What each of these GPUs sends, and receives, in a ring collective over them; inf for one GPU."""
        if len(gpus) == 1:
            return float("inf")
        if self.ring_bytes_per_s is None:
            return float(self.port_bytes_per_s or 0.0)
        return float(self.ring_bytes_per_s[sum(1 << int(gpu) for gpu in gpus)])


@lru_cache(maxsize=256)
def switch_wiring(gpus: int, port_bytes_per_s: float) -> Wiring:
    """A node whose GPUs are joined by a switch."""
    return Wiring(gpus, port_bytes_per_s)


@lru_cache(maxsize=256)
def mesh_wiring(gpus: int, links: bytes, bus_bytes_per_s: float, sizes: frozenset[int]) -> Wiring:
    """A node wired as a mesh.

    Args:
        links: the bytes of ``Mesh.link_bytes_per_s``.
        sizes: numbers of GPUs for which ring collectives are worked out.
    """
    mesh = Mesh(np.frombuffer(links).reshape(gpus, gpus), bus_bytes_per_s)
    rates = np.full(1 << gpus, np.nan)
    for gpu in range(gpus):
        rates[1 << gpu] = np.inf
    for size in sorted(sizes):
        for members in itertools.combinations(range(gpus), size) if size > 1 else ():
            among = np.ascontiguousarray(mesh.link_bytes_per_s[np.ix_(members, members)])
            rates[sum(1 << gpu for gpu in members)] = _ring_rate(among.tobytes(), size, bus_bytes_per_s)
    return Wiring(gpus, None, mesh.pair_bytes_per_s, rates)


@lru_cache(maxsize=4096)
def _ring_rate(links: bytes, size: int, bus_bytes_per_s: float) -> float:
    """bytes/s of rings over all of ``size`` GPUs; 0 where no ring closes."""
    link_bytes_per_s = np.frombuffer(links).reshape(size, size)
    on_links = packed_rings(link_bytes_per_s, 0.0)
    attained = on_links if on_links > 0 else packed_rings(link_bytes_per_s, bus_bytes_per_s)
    return float(f"{attained:.{DIGITS}g}")


def packed_rings(link_bytes_per_s: Array, bus_bytes_per_s: float) -> float:
    """The most that directed rings over all GPUs carry at once, bytes/s.

    Args:
        link_bytes_per_s: [G, G] row = sender; 0 where a pair has no link.
        bus_bytes_per_s: what each GPU sends, and receives, to and from GPUs it has no link with; 0: nothing.
    """
    size = len(link_bytes_per_s)
    if size == 2:
        both = np.where(link_bytes_per_s > 0, link_bytes_per_s, bus_bytes_per_s)
        return float(min(both[0, 1], both[1, 0]))
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    unit = max(float(link_bytes_per_s.max()), bus_bytes_per_s)
    if unit <= 0:
        return 0.0
    solver.Objective().SetMaximization()
    links = {
        (a, b): solver.Constraint(0.0, float(link_bytes_per_s[a, b]) / unit)
        for a, b in itertools.permutations(range(size), 2)
        if link_bytes_per_s[a, b] > 0
    }
    sent = [solver.Constraint(0.0, bus_bytes_per_s / unit) for _ in range(size)]
    received = [solver.Constraint(0.0, bus_bytes_per_s / unit) for _ in range(size)]
    for cycle in _rings(link_bytes_per_s > 0, over_the_bus=bus_bytes_per_s > 0):
        ring = solver.NumVar(0.0, solver.infinity(), "")
        solver.Objective().SetCoefficient(ring, 1.0)
        on_bus = [edge for edge in cycle if edge not in links]
        for edge in cycle:
            if edge in links:
                links[edge].SetCoefficient(ring, 1.0)
        for a, b in on_bus:
            sent[a].SetCoefficient(ring, 1.0)
            received[b].SetCoefficient(ring, 1.0)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        raise RuntimeError("the linear program of rings inside a node was not solved")
    return float(solver.Objective().Value()) * unit


def _rings(linked: np.ndarray, *, over_the_bus: bool) -> Iterator[list[tuple[int, int]]]:
    """Edges of every directed Hamiltonian cycle; pairs without a link only where the bus may carry them."""
    size = len(linked)
    for order in itertools.permutations(range(1, size)):
        stops = (0, *order, 0)
        edges = list(itertools.pairwise(stops))
        if over_the_bus or all(linked[a, b] for a, b in edges):
            yield edges
