"""Section ``cluster`` of a measured run: GPUs, nodes, links."""

from __future__ import annotations

import re
from typing import Any

from pipette_milp import presets
from pipette_milp.calibration.facts import (
    ATTAINED_FRACTIONS,
    CARDS_OF_GPU,
    CLUSTERS,
    GPU_OF_MODEL,
    HOSTS,
    SCALE_UP_DOMAINS,
    ClusterFacts,
    Refused,
)
from pipette_milp.calibration.runs import Run
from pipette_milp.errors import InputError
from pipette_milp.units import Dimension, parse_quantity


def cluster_section(run: Run) -> dict[str, Any]:
    """The section as an instance file has it.

    Raises:
        Refused: an unknown GPU, a number of GPUs that no whole nodes make, an unknown network.
    """
    if "+" in run.text("gpu_model"):
        return _mixed(run)
    gpu = gpu_preset(run.text("gpu_model"), run.number("gpu_mem_gb"))
    gpus = run.count("num_gpus")
    # GPUs of an NVLink domain talk like those of a node, also across its trays
    per_node = SCALE_UP_DOMAINS.get(run.text("gpu_model").upper(), run.count("gpus_per_node", 8))
    per_node = min(per_node, gpus)
    if gpus % per_node:
        raise Refused(f"{gpus} GPUs are no multiple of {per_node} per node")
    nodes = gpus // per_node
    node_type = _node_type(gpu, per_node, run.number("intra_node_bw_GBps"))
    network: dict[str, Any] = {}
    if nodes > 1:
        cards, card = _cards(run, nodes, per_node)
        node_type["nics"] = {"count": cards, "bandwidth": card}
        network["inter_node"] = _inter_node(cards * card)
    return {
        "gpu_types": {gpu["name"]: _declared(gpu)},
        "node_types": {"node": node_type},
        "nodes": [{"name": "node-{:04d}", "count": nodes, "type": "node"}],
        "network": network,
    }


def gpu_preset(name: str, memory_gb: float | None) -> dict[str, Any]:
    """GPU preset by the name a table uses and, where that is not enough, the memory.

    Raises:
        Refused: none.
    """
    for beginning, canonical in GPU_OF_MODEL:
        if name.upper().startswith(beginning.upper()):
            if canonical == "a100-80gb" and memory_gb is not None and memory_gb <= 40:
                canonical = "a100-40gb"
            if canonical == "v100-16gb" and memory_gb is not None and memory_gb >= 32:
                canonical = "v100-32gb"
            return presets.find_preset("gpu", canonical)[1]
    try:
        return presets.find_preset("gpu", name)[1]
    except InputError as error:
        raise Refused(str(error)) from None


def _mixed(run: Run) -> dict[str, Any]:
    """``A x12 + B x4``: nodes of A first, then those of B, with the hosts' own links."""
    size = run.count("gpus_per_node", 8)
    section: dict[str, Any] = {"gpu_types": {}, "node_types": {}, "nodes": [], "network": {}}
    slowest = float("inf")
    for index, part in enumerate(run.text("gpu_model").split("+")):
        found = re.fullmatch(r"\s*(\S+)\s+x(\d+)\s*", part)
        if found is None or int(found[2]) % size:
            raise Refused(f"cannot read the mixed GPUs {run.text('gpu_model')!r}")
        gpu = gpu_preset(found[1], run.number("gpu_mem_gb"))
        host = next((facts for name, facts in HOSTS if found[1].upper().startswith(name)), None)
        if host is None:
            raise Refused(f"the hosts of {found[1]} in a mixed cluster are not known")
        name = f"type-{index}"
        section["gpu_types"][gpu["name"]] = _declared(gpu)
        section["node_types"][name] = {
            **_node_type(gpu, size, host.scale_up_bytes_per_s / 1e9),
            "nics": {"count": 1, "bandwidth": host.attained_bytes_per_s},
        }
        section["nodes"].append({"name": f"{name}-{{:02d}}", "count": int(found[2]) // size, "type": name})
        slowest = min(slowest, host.attained_bytes_per_s)
    section["network"]["inter_node"] = _inter_node(slowest)
    return section


def _declared(gpu: dict[str, Any]) -> dict[str, Any]:
    return {key: gpu[key] for key in ("memory", "peak_flops", "memory_bandwidth")}


def _inter_node(bytes_per_s: float) -> dict[str, Any]:
    latency = presets.network_rule()["latency"]
    return {"bandwidth": bytes_per_s, "latency": latency, "source": "nominal"}


def _node_type(gpu: dict[str, Any], gpus: int, stated_gb_per_s: float | None) -> dict[str, Any]:
    """GPUs of a node and what joins them."""
    node_type: dict[str, Any] = {"gpus": [gpu["name"], gpus]}
    if gpus == 1:
        return node_type
    links = presets.scale_up(gpu["scale_up"])
    attained = parse_quantity(links["attained"], Dimension.BANDWIDTH)
    if stated_gb_per_s is not None and not gpu["scale_up"].startswith("nvlink"):
        # tables give NVLink in one direction, in both, or half of it: there the data sheet counts
        attained *= stated_gb_per_s * 1e9 / parse_quantity(links["nominal"], Dimension.BANDWIDTH)
    node_type["scale_up"] = {"kind": "switch", "per_gpu_bandwidth": attained, "latency": links["latency"]}
    return node_type


def _cards(run: Run, nodes: int, per_node: int) -> tuple[int, float]:
    """Number of network cards of a node and what each attains, bytes/s."""
    attained: float = presets.network_rule()["attained_fraction"]
    stated = run.number("inter_node_bw_Gbps")
    if stated is not None:
        total = stated * 1e9 / 8
        cards = max(1, min(8, round(total / 25e9)))
        return cards, attained * total / cards
    facts = dict(CLUSTERS).get(run.source)
    if facts is not None:
        if facts.all_reduce_bytes_per_s:
            return facts.cards, _measured(facts, nodes) / facts.cards
        attained = ATTAINED_FRACTIONS.get(facts.technology, attained)
        return facts.cards, attained * facts.bytes_per_s_per_card
    for beginning, (gpus, cards, nominal) in CARDS_OF_GPU:
        if run.text("gpu_model").upper().startswith(beginning):
            return max(1, cards * per_node // gpus), attained * nominal
    raise Refused("the network between nodes is not known: give inter_node_bw_Gbps")


def _measured(facts: ClusterFacts, nodes: int) -> float:
    """Measured all-reduce bandwidth of the smallest measured cluster that is at least as large."""
    for size, value in facts.all_reduce_bytes_per_s:
        if size >= nodes:
            return value
    return facts.all_reduce_bytes_per_s[-1][1]
