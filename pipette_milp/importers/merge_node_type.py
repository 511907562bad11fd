"""The node type of an imported cluster: GPUs, what joins them, cards; told, measured or nominal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.merge_cards import Cards
from pipette_milp.importers.merge_nodes import (
    ScaleUpFigure,
    cards_of,
    gpu_preset_of_device,
    nominal_scale_up,
)
from pipette_milp.importers.merge_options import ClusterOptions, Draft
from pipette_milp.importers.node_topology import NodeTopology
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.units import GB, Dimension, parse_quantity

# Measurements inside several nodes that differ by more are a contradiction.
_TOLERANCE = 0.05


def gpu_type_of(runs: list[CollectiveRun], options: ClusterOptions, draft: Draft) -> str | None:
    """Name of the GPU preset: as told, else from the device names of rank lists."""
    if options.gpu_type is not None:
        try:
            return presets.find_preset("gpu", options.gpu_type)[0]
        except InputError as error:
            draft.problems += error.problems
            return None
    names = dict.fromkeys(rank.name for run in runs for rank in run.ranks if rank.name)
    found = {gpu_preset_of_device(name) for name in names} - {None}
    if len(found) == 1:
        chosen = found.pop()
        draft.provenance["cluster.gpu_types"] = f"device name {', '.join(names)} in a rank list"
        return chosen
    what = f" (the logs name {', '.join(names)})" if names else ""
    draft.missing.append(
        Problem("cluster.gpu_types", f"no file says which GPU this is{what}: say --gpu-type")
    )
    return None


def gpus_per_node(
    topologies: list[NodeTopology], runs: list[CollectiveRun], options: ClusterOptions, draft: Draft
) -> int | None:
    """GPUs of a node, from topologies or as told; None, with a note, where it is not known."""
    said: dict[int, str] = {}
    for topology in topologies:
        said.setdefault(len(topology.gpus), topology.source)
    if options.gpus_per_node is not None:
        said.setdefault(options.gpus_per_node, "--gpus-per-node")
    if len(said) > 1:
        shown = ", ".join(f"{source} has {count} GPUs" for count, source in said.items())
        draft.problems.append(
            Problem("", f"contradiction: {shown} (nodes of different sizes: give one file per import)")
        )
        return None
    if said:
        return next(iter(said))
    # A test may use fewer GPUs than a node has, so a rank list only suggests a number.
    counts = {[rank.host for rank in run.ranks].count(host) for run in runs for host in run.hosts}
    hint = f" (the tests ran on {max(counts)} GPUs per node)" if counts else ""
    draft.missing.append(
        Problem("cluster.nodes", f"no topology says how many GPUs a node has{hint}: say --gpus-per-node")
    )
    return None


def common_topology(topologies: list[NodeTopology], draft: Draft) -> NodeTopology | None:
    """The topology that all nodes share; nodes wired differently are a problem."""
    if not topologies:
        return None
    first = topologies[0]
    for other in topologies[1:]:
        if other.gpu_links != first.gpu_links or other.nic_links != first.nic_links:
            draft.problems.append(
                Problem(
                    other.source,
                    f"contradicts {first.source}: the nodes are wired differently, which is not supported "
                    f"yet",
                )
            )
    return first


def add_scale_up(
    node_type: dict[str, Any],
    gpus: int,
    topology: NodeTopology | None,
    runs: list[CollectiveRun],
    tests: Sequence[PointToPoint],
    preset: dict[str, Any] | None,
    options: ClusterOptions,
    draft: Draft,
) -> None:
    """Inside a node: told, else measured, else nominal from the topology."""
    if gpus == 1:
        return
    place = "cluster.node_types.node.scale_up"
    latency = parse_quantity(
        presets.scale_up(preset["scale_up"] if preset else "nvlink3")["latency"], Dimension.TIME
    )
    inside = [
        (run.source, value)
        for run in runs
        if len(run.hosts) == 1 and (value := run.plateau_busbw_bytes_per_s)
    ]
    inside += [
        (test.source, value)
        for test in tests
        if len(test.hosts) == 1 and test.on_gpu and (value := test.plateau_bytes_per_s)
    ]
    if options.intra_node_bytes_per_s is not None:
        bandwidth, source = options.intra_node_bytes_per_s, "command line"
    elif inside:
        values = [value for _, value in inside]
        if min(values) < (1 - _TOLERANCE) * max(values):
            shown = ", ".join(f"{value / GB:.1f} GB/s in {name}" for name, value in inside)
            draft.problems.append(
                Problem(
                    place,
                    f"measurements inside nodes contradict each other: {shown}; say --intra-node-bandwidth",
                )
            )
            return
        bandwidth, source = sum(values) / len(values), "measured: bus bandwidth inside a node"
    elif topology is not None and preset is not None:
        try:
            figure = nominal_scale_up(topology, preset)
        except InputError as error:
            draft.missing += [Problem(place, str(problem)) for problem in error.problems]
            return
        draft.warnings += figure.warnings
        draft.warnings.append(Problem(place, f"is nominal: {figure.source}"))
        node_type["scale_up"] = figure.scale_up()
        draft.provenance[place] = f"nominal: {figure.source}"
        return
    else:
        draft.missing.append(
            Problem(
                place,
                "nothing says what joins the GPUs of a node: give `nvidia-smi topo -m` with --gpu-type, or "
                "--intra-node-bandwidth",
            )
        )
        return
    node_type["scale_up"] = ScaleUpFigure(bandwidth, latency, source).scale_up()
    draft.provenance[place] = source


def add_cards(node_type: dict[str, Any], topology: NodeTopology | None, cards: Cards, draft: Draft) -> None:
    """Network cards of a node, where a topology or the fabric shows them and their speed is known."""
    if topology is None or not topology.compute_nics():
        if cards.usual is not None and cards.bytes_per_s is not None:
            node_type["nics"] = {"count": cards.usual, "bandwidth": _gb_per_s(cards.bytes_per_s)}
            draft.provenance["cluster.node_types.node.nics"] = cards.source
        return
    if cards.bytes_per_s is None:
        draft.warnings.append(
            Problem(
                topology.source,
                f"shows {len(topology.compute_nics())} cards of the training network, but not how "
                f"fast they are: say --card-bandwidth to have them as a limit",
            )
        )
        return
    nics = cards_of(topology, cards.bytes_per_s)
    if nics is not None:
        if cards.usual is not None and cards.usual != nics["count"]:
            draft.warnings.append(
                Problem(
                    topology.source,
                    f"contradiction: shows {nics['count']} cards of the training network, the fabric has "
                    f"{cards.usual} ports of most nodes: the fabric counts",
                )
            )
            nics = {"count": cards.usual, "bandwidth": nics["bandwidth"]}
        node_type["nics"] = nics
        draft.provenance["cluster.node_types.node.nics"] = f"{topology.source}; bandwidth: {cards.source}"


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:.12g} GB/s"
