"""One node as the driver sees it: how its GPUs and network cards are joined, and what follows from that."""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.errors import Problem

PATHS = ("NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Classes of a path, near to far, as nvidia-smi's legend has them; SOC of old drivers is SYS."""


@dataclass(frozen=True)
class Link:
    """How two devices of a node are joined: a class of `PATHS`, and for NVLINK the number of links."""

    path: str
    nvlinks: int = 0

    @property
    def distance(self) -> int:
        """Position in `PATHS`: smaller is nearer."""
        return PATHS.index(self.path)


@dataclass(frozen=True)
class NodeTopology:
    """One node as nvidia-smi sees it."""

    source: str
    gpus: tuple[int, ...]
    """nvidia-smi indices, ascending; position in this tuple = local index."""
    gpu_links: tuple[tuple[Link | None, ...], ...]
    """[g][g], None on the diagonal."""
    nics: tuple[str, ...]
    """Device name where the file has one (legend or header), else NIC<i>."""
    nic_columns: tuple[str, ...]
    """As in the header."""
    nic_links: tuple[tuple[Link, ...], ...]
    """[g][c]"""
    nic_nic_links: tuple[tuple[Link | None, ...], ...]
    """[c][c], None on the diagonal and where the row of the card is missing."""
    cpu_affinity: tuple[str | None, ...]
    numa_affinity: tuple[str | None, ...]
    """[g], None = the driver does not know (N/A) or the column is absent."""
    peer_access: tuple[tuple[bool | None, ...], ...] | None
    """[g][g] from a matrix of ``topo -p2p`` in the same text: whether a GPU may copy to another. None =
    not in it."""
    warnings: tuple[Problem, ...] = ()

    def nvlinks_of(self, gpu: int) -> int:
        """Links of local GPU ``gpu`` to all others, counted as the matrix shows them."""
        return sum(link.nvlinks for link in self.gpu_links[gpu] if link is not None)

    def fully_linked(self, gpus: tuple[int, ...]) -> bool:
        """Whether every pair of these local GPUs is joined by NVLink."""
        return all(self._joined(a, b) for a in gpus for b in gpus if a != b)

    def _joined(self, a: int, b: int) -> bool:
        link = self.gpu_links[a][b]
        return link is not None and link.path == "NVLINK"

    def slowest_link(self, gpus: tuple[int, ...]) -> Link:
        """The farthest pair among at least two local GPUs; among NVLinks the one with fewest links."""
        links = [self.gpu_links[a][b] for a in gpus for b in gpus if a < b]
        return max(
            (link for link in links if link is not None), key=lambda link: (link.distance, -link.nvlinks)
        )

    def nearest_nics(self, gpu: int) -> tuple[int, ...]:
        """Cards (positions in `nics`) nearest to a GPU; empty when all are across the sockets."""
        row = self.nic_links[gpu]
        if not row:
            return ()
        least = min(link.distance for link in row)
        if PATHS[least] == "SYS":
            return ()
        return tuple(index for index, link in enumerate(row) if link.distance == least)

    def compute_nics(self) -> tuple[int, ...]:
        """Cards that some GPU has as its nearest, behind a PCIe switch where any GPU has such a card.

        The rest (storage, management, bonds) is not part of the training network.
        """
        near = {nic for gpu in range(len(self.gpus)) for nic in self.nearest_nics(gpu)}
        behind_switch = {
            nic
            for gpu in range(len(self.gpus))
            for nic in self.nearest_nics(gpu)
            if self.nic_links[gpu][nic].path in ("PIX", "PXB")
        }
        chosen = behind_switch or near
        return tuple(sorted(nic for nic in chosen if "bond" not in self.nics[nic]))

    def cliques(self) -> tuple[tuple[int, ...], ...]:
        """Maximal groups of two or more local GPUs with NVLink between every pair, largest first."""
        found: list[tuple[int, ...]] = []

        def extend(group: tuple[int, ...], candidates: list[int], done: list[int]) -> None:
            if not candidates and not done and len(group) > 1:
                found.append(group)
            for gpu in list(candidates):
                near = [other for other in candidates if other != gpu and self._joined(gpu, other)]
                extend((*group, gpu), near, [other for other in done if self._joined(gpu, other)])
                candidates.remove(gpu)
                done.append(gpu)

        extend((), list(range(len(self.gpus))), [])
        return tuple(
            sorted((tuple(sorted(group)) for group in found), key=lambda group: (-len(group), group))
        )
