"""Network measurements over time, and into an instance. Needs no torch."""

from __future__ import annotations

import copy
import statistics
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.measure.assignment import same_host
from pipette_milp.schema.instance import Instance

KIND = "network measurement"

Matrix = list[list[float | None]]


def check_document(value: Any, source: str) -> dict[str, Any]:
    """A document of `measure network`.

    Raises:
        InputError: something else.
    """
    if not isinstance(value, dict) or value.get("kind") != KIND:
        raise InputError("is no file of `measure network`", source=source)
    inter_node = value.get("network", {}).get("inter_node")
    if not isinstance(inter_node, dict) or not isinstance(value.get("nodes"), list):
        raise InputError("has no links between nodes", source=source)
    return value


def appended(earlier: dict[str, Any], document: dict[str, Any], source: str = "") -> dict[str, Any]:
    """The newer document with the matrices of both as snapshots, oldest first.

    Raises:
        InputError: they are not of the same nodes.
    """
    if earlier["nodes"] != document["nodes"]:
        raise InputError(
            f"measured {', '.join(earlier['nodes'])}, now it is {', '.join(document['nodes'])}: snapshots "
            "need the same nodes in the same order",
            source=source,
        )
    result = copy.deepcopy(document)
    listed = [*snapshots(earlier), *snapshots(document)]
    for number, snapshot in enumerate(listed):
        snapshot["name"] = f"snapshot-{number}"
    result["network"]["inter_node"]["bandwidth"] = {"unit": "B/s", "snapshots": listed}
    return result


def snapshots(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Matrices of a document as ``{name, time, values}``, bytes/s, row = sender."""
    bandwidth = document["network"]["inter_node"]["bandwidth"]
    if "snapshots" in bandwidth:
        return [dict(item) for item in bandwidth["snapshots"]]
    return [{"name": "snapshot-0", "time": document["time"], "values": bandwidth["values"]}]


def median_matrix(document: dict[str, Any]) -> Matrix:
    """[N][N] bytes/s; of several snapshots the median of those that measured a link."""
    matrices = [item["values"] for item in snapshots(document)]
    size = len(document["nodes"])

    def entry(a: int, b: int) -> float | None:
        known = [matrix[a][b] for matrix in matrices if matrix[a][b] is not None]
        return statistics.median(known) if known else None

    return [[entry(a, b) for b in range(size)] for a in range(size)]


def with_network(
    value: dict[str, Any], instance: Instance, document: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The instance's file with the measured network, and what a reader should know about it.

    Args:
        value: the parsed file; its other sections stay as they are written.
        instance: the same, loaded.

    Raises:
        InputError: the hosts measured are not nodes of the instance.
    """
    names = [node.name for node in instance.cluster.nodes]
    notes: list[str] = []
    place = _places(names, document["nodes"], notes)
    measured = median_matrix(document)
    matrix: Matrix = [[None] * len(names) for _ in names]
    for a, row in enumerate(measured):
        for b, rate in enumerate(row):
            matrix[place[a]][place[b]] = rate
    absent = [name for index, name in enumerate(names) if index not in place]
    if absent:
        notes.append(f"not measured, null in the matrix: {', '.join(absent)}")
    result = copy.deepcopy(value)
    network = result["cluster"]["network"]
    found = document["network"]
    network["inter_node"] = {
        **found["inter_node"],
        "bandwidth": {"unit": "B/s", "values": matrix},
    }
    for name in ("node_bandwidth", "per_gpu_bandwidth"):
        if found.get(name) is not None:
            network[name] = found[name]
    if found.get("intra_node") is not None:
        if any(node_type.scale_up is not None for node_type in instance.cluster.node_types.values()):
            notes.append("node types with scale_up keep it: the figure measured inside nodes is not used")
        else:
            network["intra_node"] = found["intra_node"]
    said = f"measured with {document['transport']} at {document['time']}"
    provenance = result.get("provenance", "")
    if isinstance(provenance, dict):
        result["provenance"] = {**provenance, "cluster.network": said}
    else:
        result["provenance"] = f"{provenance}; network {said}" if provenance else f"network {said}"
    return result, notes


def _places(names: list[str], hosts: list[str], notes: list[str]) -> list[int]:
    """Index in the instance of every host measured."""
    found = {host: index for host in hosts for index, name in enumerate(names) if same_host(name, host)}
    if not found and len(hosts) == len(names):
        notes.append("hosts do not have the names of the instance's nodes: taken in their order")
        return list(range(len(names)))
    unknown = [host for host in hosts if host not in found]
    if unknown:
        raise InputError(
            [Problem("cluster.nodes", f"has no node named {host}, which was measured") for host in unknown]
        )
    return [found[host] for host in hosts]
