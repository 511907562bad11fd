"""Nominal figures of a node from its topology: what joins its GPUs, and which cards it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.node_topology import NodeTopology
from pipette_milp.schema.cluster import MOST_MESH_GPUS
from pipette_milp.units import GB, Dimension, parse_quantity

# bytes/s of one NVLink in one direction, and of a PCIe x16 path of the same GPU generation, as NCCL counts
# them
# (src/graph/topo.h; PCIe 3.0 x16 = 12 GB/s, doubled for each generation).
_OF_GENERATION: dict[str, tuple[float, float]] = {
    "nvlink2": (20.0 * GB, 12.0 * GB),
    "nvlink3": (20.0 * GB, 24.0 * GB),
    "nvlink3-8": (20.0 * GB, 24.0 * GB),
    "nvlink4": (20.6 * GB, 48.0 * GB),
    "nvlink4-8": (20.6 * GB, 48.0 * GB),
    "nvlink5": (40.1 * GB, 48.0 * GB),
    # cards joined in pairs by NVLink bridges: A100 and H100 for PCIe have the links of their generation
    "pcie4": (20.0 * GB, 24.0 * GB),
    "pcie5": (20.6 * GB, 48.0 * GB),
}


@dataclass(frozen=True)
class ScaleUpFigure:
    """Bandwidth of one GPU inside its node, or of pairs of GPUs, with where it comes from."""

    bytes_per_s: float
    """With ``pairs``: over the bus that joins those without NVLink."""
    latency_s: float
    source: str
    warnings: tuple[Problem, ...] = ()
    pairs: tuple[tuple[float | None, ...], ...] | None = None
    """bytes/s of the NVLinks between two GPUs, None where there are none; None where a switch, or PCIe alone,
    joins the GPUs."""

    def scale_up(self) -> dict[str, Any]:
        """As an instance holds it."""
        latency = f"{self.latency_s * 1e6:.6g} us"
        if self.pairs is None:
            return {"kind": "switch", "per_gpu_bandwidth": _gb_per_s(self.bytes_per_s), "latency": latency}
        values = [[None if rate is None else rate / GB for rate in row] for row in self.pairs]
        mesh: dict[str, Any] = {"kind": "mesh", "pairs": {"unit": "GB/s", "values": values}}
        if any(rate is None for a, row in enumerate(self.pairs) for b, rate in enumerate(row) if a != b):
            mesh["per_gpu_bandwidth"] = _gb_per_s(self.bytes_per_s)
        return {**mesh, "latency": latency}


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:.12g} GB/s"


def gpu_preset_of_device(name: str) -> str | None:
    """The one preset for a device name as the driver prints it ("NVIDIA H100 80GB HBM3"), or None."""
    text = name.lower()
    model = re.search(r"\b([vahbl]\d{2,3}s?)\b", text)
    memory = re.search(r"(\d+)\s?gb", text)
    if model is None:
        return None
    fitting = [
        key
        for key in presets.presets("gpu")
        if key.split("-")[0] == model[1]
        and (memory is None or f"-{memory[1]}gb" in key)
        and ("pcie" in key) == ("pcie" in text)
    ]
    return fitting[0] if len(fitting) == 1 else None


def nominal_scale_up(topology: NodeTopology, gpu: dict[str, Any]) -> ScaleUpFigure:
    """What joins the GPUs of a node, by class of the paths.

    All pairs with the same number of NVLinks, and more of them in all than a GPU has ports, means a switch:
    every GPU has its full bandwidth. Other NVLinks are a mesh, pair by pair; pairs without any share PCIe.
    Without NVLink, and in a mesh of more GPUs than are modelled, the slowest pair counts for all.

    Raises:
        InputError: GPUs that may not copy to each other, where the driver's figures do not apply.
    """
    generation = gpu["scale_up"]
    links = presets.scale_up(generation)
    latency = parse_quantity(links["latency"], Dimension.TIME)
    attained = parse_quantity(links["attained"], Dimension.BANDWIDTH)
    everyone = tuple(range(len(topology.gpus)))
    if len(everyone) == 1:
        return ScaleUpFigure(attained, latency, "a node of one GPU")
    blocked = [
        f"GPU{topology.gpus[a]} and GPU{topology.gpus[b]}"
        for a in everyone
        for b in everyone
        if a < b and topology.peer_access is not None and topology.peer_access[a][b] is False
    ]
    if blocked:
        raise InputError(
            Problem(
                topology.source,
                f"{', '.join(blocked[:3])} may not copy to each other (peer access is off), so copies go "
                f"through the "
                f"memory of the host and the bandwidth of the PCIe path does not apply: measure it "
                f"(all_reduce_perf "
                f"inside the node) or say --intra-node-bandwidth",
            )
        )
    per_link, pcie = _OF_GENERATION.get(generation, (attained, attained))
    slowest = topology.slowest_link(everyone)
    if slowest.path == "NVLINK":
        counts = {link.nvlinks for row in topology.gpu_links for link in row if link is not None}
        ports = round(attained / per_link)
        if len(counts) == 1 and slowest.nvlinks * (len(everyone) - 1) > ports:
            return ScaleUpFigure(
                slowest.nvlinks * per_link,
                latency,
                f"{slowest.nvlinks} NVLinks of {per_link / GB:g} GB/s to a switch, as NCCL counts them",
            )
    nvlinked = any(link is not None and link.path == "NVLINK" for row in topology.gpu_links for link in row)
    if nvlinked and 2 < len(everyone) <= MOST_MESH_GPUS:
        return _mesh(topology, per_link, pcie, latency)
    if slowest.path == "NVLINK":
        bandwidth = slowest.nvlinks * per_link
        what = (
            f"the slowest pair has {slowest.nvlinks} NVLinks of {per_link / GB:g} GB/s, as NCCL counts them"
        )
    else:
        bandwidth = pcie
        what = f"the slowest pair is joined by {slowest.path} (PCIe, {pcie / GB:g} GB/s as NCCL counts it)"
    warnings = []
    if any(link is not None and link != slowest for row in topology.gpu_links for link in row):
        cliques = "; ".join(
            "GPUs " + ",".join(str(topology.gpus[gpu]) for gpu in group) for group in topology.cliques()
        )
        warnings.append(
            Problem(
                topology.source,
                f"the GPUs of a node are not joined alike, which is modelled up to {MOST_MESH_GPUS} GPUs and "
                f"with NVLink: the slowest pair counts for all "
                f"({bandwidth / GB:g} GB/s); groups with NVLink between all: {cliques or 'none'}",
            )
        )
    return ScaleUpFigure(bandwidth, latency, what, tuple(warnings))


def _mesh(topology: NodeTopology, per_link: float, pcie: float, latency_s: float) -> ScaleUpFigure:
    """NVLinks pair by pair."""
    pairs = tuple(
        tuple(link.nvlinks * per_link if link is not None and link.path == "NVLINK" else None for link in row)
        for row in topology.gpu_links
    )
    size = len(pairs)
    unlinked = sum(pairs[a][b] is None for a in range(size) for b in range(a))
    source = f"NVLinks of {per_link / GB:g} GB/s between pairs, as NCCL counts them"
    warnings = []
    if unlinked:
        source += f", PCIe of {pcie / GB:g} GB/s for the {unlinked} pairs without"
        groups = "; ".join(
            "GPUs " + ",".join(str(topology.gpus[gpu]) for gpu in group) for group in topology.cliques()
        )
        warnings.append(
            Problem(
                topology.source,
                f"{unlinked} of {size * (size - 1) // 2} pairs of GPUs have no NVLink and share PCIe "
                f"({pcie / GB:g} GB/s per GPU); groups with NVLink between all: {groups}",
            )
        )
    return ScaleUpFigure(pcie, latency_s, source, tuple(warnings), pairs)


def cards_of(topology: NodeTopology, bytes_per_s: float) -> dict[str, Any] | None:
    """The ``nics`` of a node type, None where the topology shows no card of the training network."""
    cards = topology.compute_nics()
    if not cards:
        return None
    nics: dict[str, Any] = {"count": len(cards), "bandwidth": f"{bytes_per_s / GB:.12g} GB/s"}
    nearest = [
        next((card for card in topology.nearest_nics(gpu) if card in cards), None)
        for gpu in range(len(topology.gpus))
    ]
    if all(card is not None for card in nearest):
        nics["of_gpu"] = [cards.index(card) for card in nearest if card is not None]
    return nics
