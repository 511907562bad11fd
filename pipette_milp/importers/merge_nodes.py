"""Nominal figures of a node from its topology: what joins its GPUs, and which cards it has."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.node_topology import NodeTopology
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
}


@dataclass(frozen=True)
class ScaleUpFigure:
    """Bandwidth of one GPU inside its node, with where it comes from."""

    bytes_per_s: float
    latency_s: float
    source: str
    warnings: tuple[Problem, ...] = ()


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
    """What one GPU attains to the farthest other GPU of its node, by class of the path.

    All pairs with the same number of NVLinks, and more of them in all than a GPU has ports, means a
    switch: every GPU has its full bandwidth. Otherwise the slowest pair counts, because links of a mesh
        are not modelled one by one.

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
                f"the GPUs of a node are not joined alike, which is not modelled: the slowest pair counts "
                f"for all "
                f"({bandwidth / GB:g} GB/s); groups with NVLink between all: {cliques or 'none'}",
            )
        )
    return ScaleUpFigure(bandwidth, latency, what, tuple(warnings))


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
