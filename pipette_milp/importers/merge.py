"""The ``cluster`` section of an instance from topologies, fabrics, schedulers, measured links and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp import presets
from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.diagnose import Diagnosis, diagnose
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.facts import PairwiseBandwidth
from pipette_milp.importers.merge_cards import Cards, cards_of_cluster
from pipette_milp.importers.merge_fabric import add_uplinks, default_topologies, names_by_group
from pipette_milp.importers.merge_links import Links, links_of_run, merge_links
from pipette_milp.importers.merge_node_type import (
    add_cards,
    add_scale_up,
    common_topology,
    gpu_type_of,
    gpus_per_node,
)
from pipette_milp.importers.merge_options import ClusterOptions, Draft
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.nccl_xml import NcclTopology
from pipette_milp.importers.node_topology import NodeTopology
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.importers.scheduler_topology import SchedulerTopology
from pipette_milp.units import GB

ClusterFact = (
    NodeTopology
    | PairwiseBandwidth
    | MpiGraph
    | CollectiveRun
    | Fabric
    | SchedulerTopology
    | NcclTopology
    | PointToPoint
)
CLUSTER_FACTS = (
    NodeTopology,
    PairwiseBandwidth,
    MpiGraph,
    CollectiveRun,
    Fabric,
    SchedulerTopology,
    NcclTopology,
    PointToPoint,
)


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


def merge_cluster(facts: Sequence[ClusterFact], options: ClusterOptions | None = None) -> ClusterImport:
    """Joins facts about one cluster.

    Raises:
        InputError: facts that contradict each other, a figure without unit or meaning; all of it at once.
    """
    options = options or ClusterOptions()
    draft = Draft()
    dumps = [fact for fact in facts if isinstance(fact, NcclTopology)]
    fabrics = [fact for fact in facts if isinstance(fact, Fabric)]
    tests = [fact for fact in facts if isinstance(fact, PointToPoint)]
    schedulers = default_topologies([fact for fact in facts if isinstance(fact, SchedulerTopology)], draft)
    topologies = [fact for fact in facts if isinstance(fact, NodeTopology)]
    topologies += [node for dump in dumps for node in dump.nodes]
    runs = [fact for fact in facts if isinstance(fact, CollectiveRun)]
    links = _links(facts, runs, options, draft)
    for sources in (topologies, dumps, fabrics, tests, schedulers):
        draft.warnings += [warning for item in sources for warning in item.warnings]
    gpu_name = gpu_type_of(runs, options, draft)
    gpus = gpus_per_node(topologies, runs, options, draft)
    cards = cards_of_cluster(fabrics, dumps, tests, options, draft)
    names = _names(links, topologies, runs, names_by_group(fabrics, schedulers), options, draft)
    topology = common_topology(topologies, draft)
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
        add_scale_up(node_type, gpus, topology, runs, tests, preset, options, draft)
        add_cards(node_type, topology, cards, draft)
    section["nodes"] = _nodes(names, section.get("node_types"), cards, draft)
    if links is not None:
        section["network"]["inter_node"] = _inter_node(links, runs, tests, options, draft)
    elif len(names) > 1 and cards.bytes_per_s is not None and cards.of_host:
        section["network"]["inter_node"] = _nominal(cards, runs, tests, options, draft)
    elif len(names) > 1:
        draft.missing.append(
            Problem(
                "cluster.network.inter_node",
                "no file has bandwidths between nodes: give a pairwise log, a matrix or a list of pairs",
            )
        )
    add_uplinks(section, names, fabrics, schedulers, cards, links, options, draft)
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
    facts: Sequence[ClusterFact], runs: list[CollectiveRun], options: ClusterOptions, draft: Draft
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


def _names(
    links: Links | None,
    topologies: list[NodeTopology],
    runs: list[CollectiveRun],
    in_fabric: list[str],
    options: ClusterOptions,
    draft: Draft,
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
    return list(dict.fromkeys(measured)) or in_fabric or (["node-000"] if topologies else [])


def _nodes(
    names: list[str], node_types: dict[str, Any] | None, cards: Cards, draft: Draft
) -> list[dict[str, Any]]:
    """Entries of ``nodes``; nodes with other numbers of cards than most get a type of their own."""
    if node_types is None:
        return [{"name": name} for name in names]
    usual = node_types["node"]
    nodes: list[dict[str, Any]] = []
    odd: dict[int, list[str]] = {}
    for name in names:
        count = cards.of_host.get(name, cards.usual)
        kind = "node"
        if count is not None and "nics" in usual and count != usual["nics"]["count"]:
            kind = f"node-{count}-cards"
            nics = {key: value for key, value in usual["nics"].items() if key != "of_gpu"}
            node_types[kind] = {**usual, "nics": {**nics, "count": count}}
            odd.setdefault(count, []).append(name)
        nodes.append({"name": name, "type": kind})
    for count, hosts in odd.items():
        draft.warnings.append(
            Problem(
                "cluster.nodes",
                f"{len(hosts)} nodes have {count} ports in the fabric, most have {usual['nics']['count']}: "
                f"{', '.join(hosts[:6])}{' and more' if len(hosts) > 6 else ''}",
            )
        )
    return nodes


def _nominal(
    cards: Cards,
    runs: list[CollectiveRun],
    tests: list[PointToPoint],
    options: ClusterOptions,
    draft: Draft,
) -> dict[str, Any]:
    """One figure for all pairs: all cards of a node with most of them; fewer cards limit their own node."""
    most = max(cards.of_host.values())
    bandwidth = most * (cards.bytes_per_s or 0.0)
    draft.provenance["cluster.network.inter_node.bandwidth"] = f"{most} cards a node, {cards.source}"
    return {
        "bandwidth": f"{bandwidth / GB:.12g} GB/s",
        "latency": _latency(runs, tests, options, draft),
        "source": "nominal",
    }


def _inter_node(
    links: Links,
    runs: list[CollectiveRun],
    tests: list[PointToPoint],
    options: ClusterOptions,
    draft: Draft,
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
        "latency": _latency(runs, tests, options, draft),
        "source": "measured",
    }
    if measured.simultaneous_flows is not None:
        section["simultaneous_flows"] = measured.simultaneous_flows
    draft.provenance["cluster.network.inter_node.bandwidth"] = f"measured: {measured.source}"
    return section


def _latency(
    runs: list[CollectiveRun], tests: list[PointToPoint], options: ClusterOptions, draft: Draft
) -> str:
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
    between = [
        value
        for test in tests
        if len(test.hosts) == 2 and test.on_gpu and (value := test.small_message_latency_s)
    ]
    if between:
        draft.provenance[place] = (
            "measured: smallest message of an OSU latency test between GPUs of two hosts"
        )
        return f"{min(between) * 1e6:.6g} us"
    rule = presets.network_rule()
    draft.provenance[place] = f"nominal: {rule['source']}"
    draft.warnings.append(Problem(place, f"was not measured: {rule['latency']}, NCCL's own figure, is taken"))
    return str(rule["latency"])
