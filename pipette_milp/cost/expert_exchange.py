"""All-to-all between the ranks that share the experts of a layer, by placement.

An expert group is ``cells`` cells of a stage in a row, replica index first; every rank of it sends an equal
part of its tokens' copies to every rank with the same tensor index. NCCL makes an all-to-all of sends and
receives, all at once; those inside a node use the scale-up ports, the others the network. All groups of all
stages on a node exchange together: concurrency group ``cell(n)`` of the formulation, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.uplinks import Uplinks


@dataclass(frozen=True)
class ExpertExchange:
    """Experts of a family that are spread over ``cells`` cells."""

    cells: int
    """Cells of an expert group; 1: inside a cell."""
    peers: int
    """Ranks of an exchange, the expert degree."""
    peers_per_cell: int
    """Of them inside one cell: the context degree."""
    sent_bytes: float
    """What one rank hands to one exchange, the part it keeps included."""
    passes: tuple[float, float, float]
    """Exchanges of one layer in forward, backward and weight gradient, recompute included."""
    layer_kinds: tuple[bool, ...]
    """[K] whether layers of a kind have experts."""
    latency_s: float
    """Start of an exchange."""
    node_step_s: float
    """Added where an exchange leaves a node."""
    sync_layer_bytes: Array
    """[K] bytes that a ring over the replicas of the experts sends per layer, reduction of the gradients."""
    gather_layer_bytes: Array
    """[K] the same for the gather of the parameters."""

    def seconds(
        self,
        node_of_cell: IntArray,
        ranks: int,
        pair: Array,
        egress: Array,
        ingress: Array,
        port: float,
        local: Array,
        uplinks: Uplinks | None = None,
    ) -> Array:
        """[p, d] seconds of one exchange of every cell.

        Args:
            ranks: GPUs of a cell; other arguments as in `CostTables`.
        """
        stages, data = node_of_cell.shape
        groups = node_of_cell.reshape(-1, self.cells)
        members = np.stack([np.bincount(group, minlength=len(egress)) for group in groups])
        part = self.sent_bytes / self.peers  # to each peer
        own = members * self.peers_per_cell  # [groups, N] peers of a rank on its own node, itself included
        lanes = members * ranks  # ranks of the group on the node
        leaving = part * (lanes * (self.peers - own)).sum(axis=0)  # as much enters
        load = part * np.einsum("gn,gm->nm", lanes, own)
        held_by = uplinks.holds() if uplinks is not None else np.zeros((0, len(egress)), dtype=bool)
        times = np.empty(len(groups))
        for g, held in enumerate(members):
            nodes = np.flatnonzero(held)
            inside = (own[g, nodes] - 1) * part / local[nodes]
            times[g] = inside.max() + self.latency_s
            if len(nodes) > 1:
                network = (self.peers - own[g, nodes]) * part / port
                network = np.maximum(network, leaving[nodes] / np.minimum(egress[nodes], ingress[nodes]))
                links = np.ix_(nodes, nodes)
                over_pair = (load[links] / pair[links])[~np.eye(len(nodes), dtype=bool)].max()
                slowest = max(inside.max(), network.max(), over_pair)
                for u, inside_group in enumerate(held_by):
                    if uplinks is not None and inside_group[nodes].any() and not inside_group[nodes].all():
                        passing = load[np.ix_(inside_group, ~inside_group)].sum()
                        slowest = max(slowest, passing / uplinks.bytes_per_s[u])
                times[g] = slowest + self.latency_s + self.node_step_s
        return np.repeat(times, self.cells).reshape(stages, data)

    def least_seconds(self, most_cells: int, ranks: int, egress: float, port: float, local: float) -> float:
        """What no placement undercuts; a node has room for ``most_cells`` cells."""
        part = self.sent_bytes / self.peers
        best = np.inf
        for cells in range(1, min(most_cells, self.cells) + 1):
            own = cells * self.peers_per_cell
            inside, away = (own - 1) * part / local, self.peers - own
            network = max(away * part / port, cells * ranks * away * part / egress) if away else 0.0
            best = min(best, max(inside, network))
        return float(best) + self.latency_s

    def replica_cells(self, node_of_cell: IntArray) -> IntArray:
        """[p * cells, d / cells] cells that hold the same experts, one row a ring."""
        stages, data = node_of_cell.shape
        grouped = node_of_cell.reshape(stages, data // self.cells, self.cells)
        return np.ascontiguousarray(grouped.transpose(0, 2, 1).reshape(-1, data // self.cells))
