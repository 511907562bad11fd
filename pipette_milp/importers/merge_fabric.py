"""Fabric and scheduler topology joined with the nodes of a cluster: uplinks, and what contradicts what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipette_milp import presets
from pipette_milp.errors import Problem
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.merge_cards import Cards
from pipette_milp.importers.merge_links import Links
from pipette_milp.importers.merge_options import ClusterOptions, Draft
from pipette_milp.importers.scheduler_topology import SchedulerTopology
from pipette_milp.units import GB

_ABOVE_CARDS = 1.05
"""A node pair measured this many times faster than its cards allow is no noise."""
_SHOWN = 3
"""Contradictions of one kind that are spelled out."""
_PLACE = "cluster.network.uplinks"


def names_by_group(fabrics: Sequence[Fabric], topologies: Sequence[SchedulerTopology]) -> list[str]:
    """Nodes where nothing else names them: those of the fabric, else of the scheduler, group by group."""
    names: list[str] = []
    for fabric in fabrics:
        groups = sorted(fabric.groups(0), key=lambda group: natural(group.name))
        names += [node for group in groups for node in sorted(group.nodes, key=natural)]
    if not names:
        names = [node for topology in topologies for node in topology.nodes]
    return list(dict.fromkeys(names))


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which node2 comes before node10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def default_topologies(topologies: Sequence[SchedulerTopology], draft: Draft) -> list[SchedulerTopology]:
    """Of several topologies in one file the default one."""
    chosen = [topology for topology in topologies if topology.is_default]
    if topologies and not chosen:
        names = ", ".join(topology.name for topology in topologies)
        draft.problems.append(
            Problem(
                topologies[0].source, f"has several topologies ({names}) and no cluster_default: mark one"
            )
        )
    if len(chosen) > 1:
        shown = ", ".join(f"{topology.source} ({topology.name})" for topology in chosen)
        draft.problems.append(Problem("", f"several scheduler topologies: {shown}; give one"))
        chosen = chosen[:1]
    return chosen


def add_uplinks(
    section: dict[str, Any],
    names: Sequence[str],
    fabrics: Sequence[Fabric],
    topologies: Sequence[SchedulerTopology],
    cards: Cards,
    links: Links | None,
    options: ClusterOptions,
    draft: Draft,
) -> None:
    """Fill ``network.uplinks`` and report contradictions."""
    known = dict.fromkeys(names)
    uplinks: list[dict[str, Any]] = []
    for fabric in fabrics:
        alias = _aliases(known, fabric.hosts)
        _compare_names(names, {alias.get(host, host) for host in fabric.hosts}, fabric.source, draft)
        _islands(
            [[alias.get(n, n) for n in part.nodes] for part in fabric.islands()], names, fabric.source, draft
        )
        uplinks += _fabric_uplinks(fabric, alias, known, options, draft)
    for topology in topologies:
        alias = _aliases(known, topology.nodes)
        _compare_names(names, {alias.get(host, host) for host in topology.nodes}, topology.source, draft)
        parts = [[alias.get(n, n) for n in part] for part in topology.components()]
        _islands(parts, names, topology.source, draft)
        if fabrics:
            _compare_groups(fabrics[0], topology, draft)
        else:
            uplinks += _scheduler_uplinks(topology, alias, known, cards, links, options, draft)
    if uplinks:
        section["network"]["uplinks"] = uplinks
    if links is not None:
        _compare_speeds(links, cards, draft)


def _aliases(known: Mapping[str, Any], hosts: Sequence[str]) -> dict[str, str]:
    """Host as a source spells it -> name of the node, where only the domain differs."""
    short: dict[str, list[str]] = {}
    for name in known:
        short.setdefault(name.split(".")[0], []).append(name)
    found: dict[str, str] = {}
    for host in hosts:
        alike = short.get(host.split(".")[0], [])
        if host not in known and len(alike) == 1:
            found[host] = alike[0]
    return found


def _compare_names(names: Sequence[str], others: set[str], source: str, draft: Draft) -> None:
    lacking = [name for name in names if name not in others]
    if lacking and others:
        draft.warnings.append(
            Problem(
                source,
                f"contradiction: does not have {_some(lacking)}, so nothing is known of "
                f"{'its' if len(lacking) == 1 else 'their'} way out",
            )
        )


def _islands(parts: Sequence[Sequence[str]], names: Sequence[str], source: str, draft: Draft) -> None:
    used = [[node for node in part if node in set(names)] for part in parts]
    used = [part for part in used if part]
    if len(used) > 1:
        draft.missing.append(
            Problem(
                "cluster.network",
                f"{source}: nothing joins {_some(used[0])} and {_some(used[1])} ({len(used)} parts of "
                f"{', '.join(str(len(part)) for part in used[:6])} nodes): name the nodes of one part with "
                f"--hosts, or give the whole fabric",
            )
        )


def _fabric_uplinks(
    fabric: Fabric,
    alias: Mapping[str, str],
    known: Mapping[str, Any],
    options: ClusterOptions,
    draft: Draft,
) -> list[dict[str, Any]]:
    rule = presets.network_rule()
    fraction = float(rule["attained_fraction"])
    found: list[dict[str, Any]] = []
    for group in fabric.all_groups:
        nodes = [alias.get(node, node) for node in group.nodes]
        nodes = [node for node in nodes if node in known]
        if group.bytes_per_s <= 0 or not nodes or len(nodes) == len(known):
            continue
        found.append(
            {
                "name": group.name,
                "nodes": nodes,
                "bandwidth": f"{group.bytes_per_s * fraction / GB:.12g} GB/s",
            }
        )
        inside = sum(
            port.bytes_per_s or 0.0 for node in group.nodes for port in fabric.adapters_of.get(node, ())
        )
        draft.provenance[f"{_PLACE}.{group.name}"] = (
            f"{fabric.source}: {group.cables} cables of {len(group.switches)} switches out, "
            f"{group.bytes_per_s / GB:g} GB/s for {inside / GB:g} GB/s of cards "
            f"({_taper(inside, group.bytes_per_s)}), times {fraction:g}"
        )
    if found:
        draft.warnings.append(
            Problem(
                _PLACE,
                f"are nominal: {len(found)} groups from the cables of {fabric.source}, {fraction:g} of their "
                f"rate is taken as attained",
            )
        )
    return _distinct(found)


def _distinct(uplinks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names made different: a pod may be called after a switch that a leaf group is called after too."""
    seen: dict[str, int] = {}
    for uplink in uplinks:
        count = seen.get(uplink["name"], 0)
        seen[uplink["name"]] = count + 1
        if count:
            uplink["name"] += f"#{count + 1}"
    return uplinks


def _taper(inside: float, out: float) -> str:
    return f"{inside / out:.3g}:1" if out else "no way out"


def _scheduler_uplinks(
    topology: SchedulerTopology,
    alias: Mapping[str, str],
    known: Mapping[str, Any],
    cards: Cards,
    links: Links | None,
    options: ClusterOptions,
    draft: Draft,
) -> list[dict[str, Any]]:
    """Groups without bandwidths: a taper has to be told."""
    groups: dict[str, list[str]] = {}
    for name, nodes in topology.node_groups().items():
        members = [alias.get(node, node) for node in nodes]
        members = [node for node in members if node in known]
        if members and len(members) < len(known):
            groups.setdefault(name, members)
    if not groups:
        return []
    node_bytes_per_s = _node_bandwidth(cards, links)
    if options.oversubscription is None or node_bytes_per_s is None:
        lacking = "--oversubscription R (2 = twice as much below a switch as above)"
        if options.oversubscription is not None:
            lacking = "--card-bandwidth, or measured links"
        draft.warnings.append(
            Problem(
                topology.source,
                f"has {len(groups)} groups but no bandwidths: their uplinks are left out, say {lacking}",
            )
        )
        return []
    unique: dict[tuple[str, ...], str] = {}
    for name, members in groups.items():
        unique.setdefault(tuple(sorted(members)), name)
    place = f"{_PLACE} (all)"
    draft.provenance[place] = (
        f"{topology.source}: groups; {node_bytes_per_s / GB:g} GB/s a node, oversubscription "
        f"{options.oversubscription:g} from the command line"
    )
    return [
        {
            "name": name,
            "nodes": list(groups[name]),
            "bandwidth": f"{len(members) * node_bytes_per_s / options.oversubscription / GB:.12g} GB/s",
        }
        for members, name in unique.items()
    ]


def _node_bandwidth(cards: Cards, links: Links | None) -> float | None:
    """What a node can send: its cards, else the largest node pair measured."""
    if cards.bytes_per_s is not None and cards.usual is not None:
        return cards.usual * cards.bytes_per_s
    if links is None:
        return None
    measured = links.bandwidth
    return float(np.nanmax(measured.values)) * (measured.simultaneous_flows or 1)


def _compare_groups(fabric: Fabric, topology: SchedulerTopology, draft: Draft) -> None:
    """Nodes that the scheduler has on one switch and the cables on different ones, or the other way round."""
    leaf = {node: group.name for group in fabric.groups(0) for node in group.nodes}
    home = topology.leaf_of or {node: name for name, nodes in topology.groups.items() for node in nodes}
    by_home: dict[str, dict[str, str]] = {}
    for node, name in home.items():
        if node in leaf:
            by_home.setdefault(name, {}).setdefault(leaf[node], node)
    apart = {name: where for name, where in by_home.items() if len(where) > 1}
    for name, where in list(apart.items())[:_SHOWN]:
        (one, first), (other, second) = list(where.items())[:2]
        draft.warnings.append(
            Problem(
                topology.source,
                f"contradiction: has {first} and {second} together on {name}, the cables of {fabric.source} "
                f"have them on {one} and {other}: the cables count",
            )
        )
    if len(apart) > _SHOWN:
        draft.warnings.append(
            Problem(topology.source, f"{len(apart) - _SHOWN} more groups contradict the cables")
        )
    by_leaf: dict[str, dict[str, str]] = {}
    for node, name in leaf.items():
        if node in home and topology.kind == "tree":
            by_leaf.setdefault(name, {}).setdefault(home[node], node)
    for name, where in list({n: w for n, w in by_leaf.items() if len(w) > 1 and not apart}.items())[:_SHOWN]:
        (one, first), (other, second) = list(where.items())[:2]
        draft.warnings.append(
            Problem(
                topology.source,
                f"contradiction: has {first} on {one} and {second} on {other}, the cables of {fabric.source} "
                f"have both on {name}: the cables count",
            )
        )


def _compare_speeds(links: Links, cards: Cards, draft: Draft) -> None:
    """A node pair cannot be faster than the cards at either end."""
    if cards.line_rate_bytes_per_s is None or not cards.of_host:
        return
    measured = links.bandwidth
    flows = measured.simultaneous_flows or 1
    for a, b in np.argwhere(~np.isnan(measured.values)):
        ends = [measured.names[a], measured.names[b]]
        counts = [cards.of_host[name] for name in ends if name in cards.of_host]
        value = float(measured.values[a, b]) * flows
        if counts and value > _ABOVE_CARDS * min(counts) * cards.line_rate_bytes_per_s:
            draft.problems.append(
                Problem(
                    measured.source,
                    f"contradiction: {ends[0]} to {ends[1]} was measured at {value / GB:.1f} GB/s, but has "
                    f"{min(counts)} ports of {cards.line_rate_bytes_per_s / GB:g} GB/s: check the unit "
                    f"and --simultaneous-flows",
                )
            )
            return


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
