"""The usable part of the cluster as arrays: nodes, GPUs, directed link capacities.

Indices ``n`` run over *usable* nodes (not excluded, at least one usable GPU) in the order of the file; global
GPU ids count all declared GPUs, excluded ones too (contract, "placement").
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.errors import InputError, Problem
from pipette_milp.schema.cluster import GpuType as DeclaredGpuType
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.link_groups import LinkGroups
from pipette_milp.schema.link_matrix import Matrix
from pipette_milp.schema.scale_up import ScaleUp
from pipette_milp.uplinks import Uplinks


@dataclass(frozen=True)
class GpuType:
    """One kind of GPU, in SI units."""

    name: str
    memory_bytes: float
    peak_flop_per_s: dict[str, float]
    memory_bytes_per_s: float


@dataclass(frozen=True)
class Mesh:
    """Links between the usable GPUs of a node that no switch joins. Row = sender."""

    link_bytes_per_s: Array
    """[G, G] link of a pair's own in one direction; 0 where it has none, and on the diagonal."""
    bus_bytes_per_s: float
    """What one GPU sends, and what it receives, over the bus that joins pairs without a link; 0: there is
    none."""

    @property
    def pair_bytes_per_s(self) -> Array:
        """[G, G] what one flow attains from GPU to GPU; inf on the diagonal."""
        pair = np.where(self.link_bytes_per_s > 0, self.link_bytes_per_s, self.bus_bytes_per_s)
        return np.where(np.eye(len(pair), dtype=bool), np.inf, pair)

    @property
    def fastest_bytes_per_s(self) -> float:
        """The best of all pairs; inf with a single GPU."""
        pair = self.pair_bytes_per_s
        return float(pair[np.isfinite(pair)].max()) if len(pair) > 1 else float("inf")


@dataclass(frozen=True)
class Cluster:
    """Nodes and links. All bandwidths are one direction; row = sender."""

    gpu_types: tuple[GpuType, ...]
    """Kinds in use, in the order of the first node of each."""
    type_of_node: IntArray
    """[N] index into ``gpu_types``; the GPUs of a node are of one kind."""
    node_names: tuple[str, ...]
    gpu_ids: tuple[tuple[int, ...], ...]
    """Global ids of the usable GPUs of each node."""
    latency_s: Array
    """[N, N]"""
    pair_bytes_per_s: Array
    """[N, N] all cards of a node pair together; inf on the diagonal."""
    egress_bytes_per_s: Array
    """[N]"""
    ingress_bytes_per_s: Array
    """[N]"""
    port_bytes_per_s: float
    """Network ceiling of one GPU; inf where nothing says otherwise."""
    local_bytes_per_s: Array
    """[N] scale-up port of one GPU; in a mesh the fastest pair."""
    local_latency_s: Array
    """[N]"""
    measured: bool
    """False when the link figures are nominal."""
    uplinks: Uplinks = field(default_factory=Uplinks)
    """Groups of nodes with a shared way out."""
    meshes: tuple[Mesh | None, ...] = ()
    """Per node, None where a switch joins its GPUs; empty where that holds for all nodes."""
    joined: int = 1
    """Nodes of the file that one node here stands for, see `for_cells`; figures are those of all together."""
    joining_bytes_per_s: float = np.inf
    """Slowest link between nodes that are joined, in the order of the file."""

    @classmethod
    def of(cls, instance: Instance) -> Cluster:
        """The usable cluster of an instance; defaults of the capacities after the contract.

        Raises:
            InputError: a link between two usable nodes was not measured.
        """
        section = instance.cluster
        network = section.network
        excluded = section.excluded_gpu_ids()
        kept: list[int] = []
        gpu_ids: list[tuple[int, ...]] = []
        first = 0
        for index, node in enumerate(section.nodes):
            ids = tuple(i for i in range(first, first + node.gpus) if i not in excluded)
            first += node.gpus
            if ids:
                kept.append(index)
                gpu_ids.append(ids)
        nodes = [section.nodes[index] for index in kept]
        pair, flow_ceiling = _pair_bandwidth(instance, kept)
        size = len(nodes)
        off_diagonal = np.where(np.eye(size, dtype=bool), 0.0, pair)
        cards = [section.nics_of(node) for node in nodes]

        def node_capacity(best_link: Array) -> Array:
            if network.node_bandwidth is not None:
                return np.full(size, network.node_bandwidth)
            return np.array(
                [
                    card.count * card.bandwidth if card is not None else best
                    for card, best in zip(cards, best_link, strict=True)
                ]
            )

        port = network.per_gpu_bandwidth
        if port is None:
            # one card serves a GPU; the slowest kind of card holds for all, so that no plan is flattered
            bandwidths = [card.bandwidth for card in cards if card is not None]
            port = min(bandwidths) if len(bandwidths) == size else flow_ceiling
        scale_up = [section.scale_up_of(node) for node in nodes]
        kinds = list(dict.fromkeys(node.gpu_type for node in nodes))
        firsts = np.cumsum([0, *(node.gpus for node in section.nodes)])
        meshes = [
            _mesh(item, [gpu - int(firsts[index]) for gpu in ids])
            for item, index, ids in zip(scale_up, kept, gpu_ids, strict=True)
        ]
        return cls(
            gpu_types=tuple(_gpu_type(name, section.gpu_types[name]) for name in kinds),
            type_of_node=np.array([kinds.index(node.gpu_type) for node in nodes], dtype=np.int64),
            node_names=tuple(node.name for node in nodes),
            gpu_ids=tuple(gpu_ids),
            latency_s=np.full(
                (size, size), 0.0 if network.inter_node is None else network.inter_node.latency
            ),
            pair_bytes_per_s=pair,
            egress_bytes_per_s=node_capacity(off_diagonal.max(axis=1) if size > 1 else np.array([np.inf])),
            ingress_bytes_per_s=node_capacity(off_diagonal.max(axis=0) if size > 1 else np.array([np.inf])),
            port_bytes_per_s=port,
            local_bytes_per_s=np.array(
                [
                    item.per_gpu_bandwidth if mesh is None else mesh.fastest_bytes_per_s
                    for item, mesh in zip(scale_up, meshes, strict=True)
                ]
            ),
            local_latency_s=np.array([item.latency for item in scale_up]),
            measured=network.inter_node is not None and network.inter_node.source == "measured",
            uplinks=_uplinks(instance, [node.name for node in nodes]),
            meshes=tuple(meshes) if any(mesh is not None for mesh in meshes) else (),
        )

    @property
    def gpu(self) -> GpuType:
        """The first kind of GPU, the only one of most clusters."""
        return self.gpu_types[0]

    @property
    def gpu_type_of_id(self) -> dict[int, GpuType]:
        """Kind of every usable GPU by global id."""
        return {
            gpu: self.gpu_types[kind]
            for kind, ids in zip(self.type_of_node.tolist(), self.gpu_ids, strict=True)
            for gpu in ids
        }

    @property
    def num_nodes(self) -> int:
        return len(self.node_names)

    @property
    def gpus_per_node(self) -> IntArray:
        """[N] usable GPUs."""
        return np.array([len(ids) for ids in self.gpu_ids], dtype=np.int64)

    @property
    def num_gpus(self) -> int:
        return int(self.gpus_per_node.sum())

    def for_cells(self, size: int) -> Cluster | None:
        """The cluster as cells of ``size`` GPUs see it; None where they do not come out even.

        Cells that fit into a node see it as it is. Larger ones take whole nodes in the order of the file,
        which are joined into one place here: its links to another place are those of its nodes one by one.
        """
        gpus = self.gpus_per_node
        if size <= int(gpus.max()):
            return self
        each = int(gpus[0])
        several = size // each
        if (
            np.any(gpus != each)
            or size % each
            or several > self.num_nodes
            or self.meshes
            or len(self.uplinks)
        ):
            return None
        groups = [list(range(a, a + several)) for a in range(0, self.num_nodes - several + 1, several)]
        if any(len(set(self.type_of_node[group].tolist())) > 1 for group in groups):
            return None
        members = np.array(groups)  # [places, nodes of one]
        pairs = self.pair_bytes_per_s[members[:, None, :], members[None, :, :]].min(axis=2) * several
        return Cluster(
            gpu_types=self.gpu_types,
            type_of_node=self.type_of_node[members[:, 0]],
            node_names=tuple("+".join(self.node_names[n] for n in group) for group in groups),
            gpu_ids=tuple(tuple(gpu for n in group for gpu in self.gpu_ids[n]) for group in groups),
            latency_s=self.latency_s[members[:, None, :], members[None, :, :]].max(axis=2),
            pair_bytes_per_s=pairs,
            egress_bytes_per_s=several * self.egress_bytes_per_s[members].min(axis=1),
            ingress_bytes_per_s=several * self.ingress_bytes_per_s[members].min(axis=1),
            port_bytes_per_s=self.port_bytes_per_s,
            local_bytes_per_s=self.local_bytes_per_s[members].min(axis=1),
            local_latency_s=self.local_latency_s[members].max(axis=1),
            measured=self.measured,
            joined=several,
            joining_bytes_per_s=float(self.pair_bytes_per_s[members, np.roll(members, -1, axis=1)].min()),
        )

    @property
    def link_spread(self) -> float:
        """Coefficient of variation of the node-pair bandwidths; 0 with fewer than three nodes."""
        if self.num_nodes < 3:
            return 0.0
        values = self.pair_bytes_per_s[~np.eye(self.num_nodes, dtype=bool)]
        return float(values.std() / values.mean())


def _uplinks(instance: Instance, names: list[str]) -> Uplinks:
    """The uplinks of the usable nodes."""
    index = {name: n for n, name in enumerate(names)}
    groups = [
        ([index[name] for name in uplink.nodes if name in index], uplink.bandwidth)
        for uplink in instance.cluster.network.uplinks
    ]
    return Uplinks.of(groups, len(names))


def _gpu_type(name: str, declared: DeclaredGpuType) -> GpuType:
    return GpuType(
        name,
        declared.memory,
        {str(precision): peak for precision, peak in declared.peak_flops.items()},
        declared.memory_bandwidth,
    )


def _mesh(scale_up: ScaleUp, usable: list[int]) -> Mesh | None:
    """The links among the usable GPUs of a node (local indices); None with a switch."""
    if scale_up.pairs is None:
        return None
    size = len(usable)
    links = np.zeros((size, size))
    for a, sender in enumerate(usable):
        for b, receiver in enumerate(usable):
            if a != b:
                given = scale_up.pairs
                value = given[sender][receiver] if isinstance(given, tuple) else given
                links[a, b] = 0.0 if value is None else value
    return Mesh(links, scale_up.per_gpu_bandwidth or 0.0)


def _pair_bandwidth(instance: Instance, kept: list[int]) -> tuple[Array, float]:
    """[N, N] bytes/s of each node pair (inf on the diagonal) and the ceiling of one flow."""
    inter_node = instance.cluster.network.inter_node
    size = len(kept)
    pair = np.full((size, size), np.inf)
    if inter_node is None or size == 1:
        return pair, float("inf")
    if isinstance(inter_node.bandwidth, float):
        pair[~np.eye(size, dtype=bool)] = inter_node.bandwidth
        return pair, float("inf")
    if isinstance(inter_node.bandwidth, LinkGroups):
        figures = _grouped_bandwidth(inter_node.bandwidth, [instance.cluster.nodes[k].name for k in kept])
    else:
        figures = _measured_bandwidth(instance, inter_node.bandwidth, kept)
    off_diagonal = ~np.eye(size, dtype=bool)
    pair[off_diagonal] = figures[off_diagonal]
    if inter_node.measures == "flow":
        ceiling = float(pair[np.isfinite(pair)].max())
        return pair * inter_node.flows_per_pair, ceiling
    return pair, float("inf")


def _measured_bandwidth(instance: Instance, matrix: Matrix, kept: list[int]) -> Array:
    """[N, N] figures of a matrix as they stand.

    Raises:
        InputError: a pair off the diagonal has none.
    """
    figures = np.array(matrix, dtype=float)[np.ix_(kept, kept)]  # None becomes nan
    names = [node.name for node in instance.cluster.nodes]
    missing = [
        Problem(
            f"cluster.network.inter_node.bandwidth.values[{kept[row]}][{kept[column]}]",
            f"the link from {names[kept[row]]} to {names[kept[column]]} was not measured",
        )
        for row, column in np.argwhere(np.isnan(figures))
        if row != column
    ]
    if missing:
        raise InputError(missing)
    return np.asarray(figures)


def _grouped_bandwidth(links: LinkGroups, names: list[str]) -> Array:
    """[N, N] figures of the groups' links as they stand."""
    size = len(links.groups)
    between = np.array([[links.bytes_per_s(g, h) for h in range(size)] for g in range(size)])
    group_of = links.group_of()
    member = np.array([group_of[name] for name in names])
    return np.asarray(between[np.ix_(member, member)])
