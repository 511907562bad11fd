"""The ``cluster`` section of an instance from everything that was imported: topologies, pairwise logs,
collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.diagnose import Diagnosis, diagnose
from pipette_milp.importers.facts import Measures, PairwiseBandwidth
from pipette_milp.importers.merge_links import Links, links_of_run, merge_links
from pipette_milp.importers.merge_nodes import cards_of, gpu_preset_of_device, nominal_scale_up
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.topology import NodeTopology
from pipette_milp.units import GB, Dimension, parse_quantity

# Measurements inside several nodes that differ by more are a contradiction.
_TOLERANCE = 0.05

ClusterFact = NodeTopology | PairwiseBandwidth | MpiGraph | CollectiveRun


@dataclass(frozen=True)
class ClusterOptions:
    """What the files do not say. SI units, None = not given."""

    gpu_type: str | None = None
    """Name of a GPU preset."""
    gpus_per_node: int | None = None
    hosts: tuple[str, ...] = ()
    """Names of the nodes where no file has them, in the order of GPU ids."""
    measures: Measures | None = None
    simultaneous_flows: int | None = None
    latency_s: float | None = None
    intra_node_bytes_per_s: float | None = None
    card_bytes_per_s: float | None = None
    """What one network card attains."""


@dataclass(frozen=True)
class ClusterImport:
    """A cluster section as people write it, and everything to say about it."""

    section: dict[str, Any]
    """May lack what ``missing`` names."""
    missing: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    provenance: dict[str, str]
    diagnosis: Diagnosis | None
    """None without pairwise measurements."""
    unknown_pairs: tuple[tuple[str, str], ...]


@dataclass
class _Draft:
    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)


def merge_cluster(facts: Sequence[ClusterFact], options: ClusterOptions | None = None) -> ClusterImport:
    """Joins facts about one cluster.

    Raises:
        InputError: facts that contradict each other, a figure without unit or meaning; all of it at once.
    """
    options = options or ClusterOptions()
    draft = _Draft()
    topologies = [fact for fact in facts if isinstance(fact, NodeTopology)]
    runs = [fact for fact in facts if isinstance(fact, CollectiveRun)]
    links = _links(facts, runs, options, draft)
    draft.warnings += [warning for item in topologies for warning in item.warnings]
    gpu_name = _gpu_type(runs, options, draft)
    gpus = _gpus_per_node(topologies, runs, options, draft)
    names = _names(links, topologies, runs, options, draft)
    topology = _common_topology(topologies, draft)
    section: dict[str, Any] = {"network": {}}
    preset = presets.find_preset("gpu", gpu_name)[1] if gpu_name is not None else None
    if preset is not None:
        key = preset["name"]
        section["gpu_types"] = {
            key: {name: preset[name] for name in ("memory", "peak_flops", "memory_bandwidth")}
        }
        draft.provenance[f"cluster.gpu_types.{key}"] = preset["source"]
    if gpus is not None:
        node_type: dict[str, Any] = {"gpus": [preset["name"] if preset is not None else "?", gpus]}
        section["node_types"] = {"node": node_type}
        _scale_up(node_type, gpus, topology, runs, preset, options, draft)
        if topology is not None and topology.compute_nics():
            _cards(node_type, topology, options, draft)
    kind = {"type": "node"} if gpus is not None else {}
    section["nodes"] = [{"name": name, **kind} for name in names]
    if links is not None:
        section["network"]["inter_node"] = _inter_node(links, runs, options, draft)
    elif len(names) > 1:
        draft.missing.append(
            Problem(
                "cluster.network.inter_node",
                "no file has bandwidths between nodes: give a pairwise log, a matrix or a list of pairs",
            )
        )
    if draft.problems:
        raise InputError(draft.problems)
    return ClusterImport(
        section=section,
        missing=tuple(dict.fromkeys(draft.missing)),
        warnings=tuple(dict.fromkeys(draft.warnings)),
        provenance=draft.provenance,
        diagnosis=diagnose(links.bandwidth) if links is not None else None,
        unknown_pairs=links.bandwidth.unknown_pairs if links is not None else (),
    )


def _links(
    facts: Sequence[ClusterFact], runs: list[CollectiveRun], options: ClusterOptions, draft: _Draft
) -> Links | None:
    sources = [fact for fact in facts if isinstance(fact, PairwiseBandwidth)]
    sources += [fact.pairwise() for fact in facts if isinstance(fact, MpiGraph)]
    # What the options say holds for files that do not say it themselves; logs of collectives always do.
    from_runs = []
    for run in runs:
        if not run.hosts:
            draft.warnings.append(
                Problem(run.place, "has no rank list, so it is not known which nodes were measured: left out")
            )
        try:
            found = links_of_run(run)
        except InputError as error:
            draft.problems += error.problems
            continue
        if found is not None:
            from_runs.append(found)
    sources += from_runs
    if not sources:
        return None
    try:
        links = merge_links(sources, options.measures, options.simultaneous_flows)
    except InputError as error:
        draft.problems += error.problems
        return None
    draft.warnings += links.warnings
    return links


def _gpu_type(runs: list[CollectiveRun], options: ClusterOptions, draft: _Draft) -> str | None:
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


def _gpus_per_node(
    topologies: list[NodeTopology], runs: list[CollectiveRun], options: ClusterOptions, draft: _Draft
) -> int | None:
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


def _names(
    links: Links | None,
    topologies: list[NodeTopology],
    runs: list[CollectiveRun],
    options: ClusterOptions,
    draft: _Draft,
) -> list[str]:
    measured = list(links.bandwidth.names) if links is not None else []
    measured += [host for run in runs for host in run.hosts if host not in measured]
    if options.hosts:
        unknown = [name for name in measured if name not in options.hosts]
        if unknown:
            draft.problems.append(
                Problem("--hosts", f"does not name {', '.join(unknown)}, which the measurements do")
            )
        return list(options.hosts)
    return list(dict.fromkeys(measured)) or (["node-000"] if topologies else [])


def _common_topology(topologies: list[NodeTopology], draft: _Draft) -> NodeTopology | None:
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


def _scale_up(
    node_type: dict[str, Any],
    gpus: int,
    topology: NodeTopology | None,
    runs: list[CollectiveRun],
    preset: dict[str, Any] | None,
    options: ClusterOptions,
    draft: _Draft,
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
        bandwidth, source, latency = figure.bytes_per_s, f"nominal: {figure.source}", figure.latency_s
    else:
        draft.missing.append(
            Problem(
                place,
                "nothing says what joins the GPUs of a node: give `nvidia-smi topo -m` with --gpu-type, or "
                "--intra-node-bandwidth",
            )
        )
        return
    node_type["scale_up"] = {
        "kind": "switch",
        "per_gpu_bandwidth": _gb_per_s(bandwidth),
        "latency": f"{latency * 1e6:.6g} us",
    }
    draft.provenance[place] = source


def _cards(node_type: dict[str, Any], topology: NodeTopology, options: ClusterOptions, draft: _Draft) -> None:
    if options.card_bytes_per_s is None:
        draft.warnings.append(
            Problem(
                topology.source,
                f"shows {len(topology.compute_nics())} cards of the training network, but not how "
                f"fast they are: say --card-bandwidth to have them as a limit",
            )
        )
        return
    nics = cards_of(topology, options.card_bytes_per_s)
    if nics is not None:
        node_type["nics"] = nics
        draft.provenance["cluster.node_types.node.nics"] = (
            f"{topology.source}; bandwidth from the command line"
        )


def _inter_node(
    links: Links, runs: list[CollectiveRun], options: ClusterOptions, draft: _Draft
) -> dict[str, Any]:
    measured = links.bandwidth
    names = list(options.hosts) or list(measured.names)
    position = {name: index for index, name in enumerate(measured.names)}
    values = [
        [
            None
            if a == b
            or a not in position
            or b not in position
            or np.isnan(measured.values[position[a], position[b]])
            # Written to the last digit: the figures have to come back as they were measured.
            else float(measured.values[position[a], position[b]]) / GB
            for b in names
        ]
        for a in names
    ]
    section: dict[str, Any] = {
        "bandwidth": {"unit": "GB/s", "values": values},
        "measures": measured.measures,
        "latency": _latency(runs, options, draft),
        "source": "measured",
    }
    if measured.simultaneous_flows is not None:
        section["simultaneous_flows"] = measured.simultaneous_flows
    draft.provenance["cluster.network.inter_node.bandwidth"] = f"measured: {measured.source}"
    return section


def _latency(runs: list[CollectiveRun], options: ClusterOptions, draft: _Draft) -> str:
    """Told, else the smallest message of a send-receive test between two hosts, else NCCL's own figure."""
    place = "cluster.network.inter_node.latency"
    if options.latency_s is not None:
        draft.provenance[place] = "command line"
        return f"{options.latency_s * 1e6:.6g} us"
    times = [
        value
        for run in runs
        if len(run.hosts) == 2 and run.collective == "sendrecv" and (value := run.small_message_latency_s)
    ]
    if times:
        draft.provenance[place] = "measured: smallest message of sendrecv_perf"
        return f"{min(times) * 1e6:.6g} us"
    rule = presets.network_rule()
    draft.provenance[place] = f"nominal: {rule['source']}"
    draft.warnings.append(Problem(place, f"was not measured: {rule['latency']}, NCCL's own figure, is taken"))
    return str(rule["latency"])


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{bytes_per_s / GB:.12g} GB/s"
