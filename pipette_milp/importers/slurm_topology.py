"""Slurm's ``topology.conf`` (tree, block, ring) and what ``scontrol show topology`` prints.

Keys are case-insensitive, ``#`` starts a comment, a backslash continues a line, names come as host lists.
``LinkSpeed`` is ignored as Slurm does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.hostlist import expand
from pipette_milp.importers.scheduler_topology import SchedulerTopology, Switch
from pipette_milp.importers.text import Cell, Line, Text, clean

KIND = "slurm-topology"

MOST_IN_RING = 16
"""Nodes of one ring (Slurm, topology.conf manual page)."""

_SETTING = re.compile(r"([A-Za-z]+)=((?:\[[^\]\s]*\]|\"[^\"]*\"|[^\s\[\"])*)(?=\s|$)")
_KEYS = frozenset(
    ("switchname", "switches", "nodes", "linkspeed", "level", "blockname", "blocksizes", "ringname")
)
_SCONTROL_KEYS = frozenset(("blockindex", "blocksize", "aggregatedblock"))


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a ``topology.conf``."""
    if re.search(r"(?im)^\s*(?:SwitchName|BlockName|RingName)=\S", clean_text(text)):
        return 0.95
    return 0.9 if re.search(r"(?m)\bNodeName=\S+[\s\S]*?\bTopology=\S+:\S", text) else 0.0


def clean_text(text: str) -> str:
    """Without colour codes and launcher tags."""
    return "\n".join(line.text for line in clean(text, "").lines)


def parse(text: str, source: str) -> SchedulerTopology:
    """The topology.

    Raises:
        InputError: a line that cannot be read, host lists that are none, a switch that does not exist or
            hangs on two others, a node on two switches, impossible block sizes; with line and column.
    """
    content = clean(text, source)
    switches: dict[str, Switch] = {}
    groups: dict[str, tuple[str, ...]] = {}
    sizes: tuple[int, ...] = ()
    kinds: dict[str, None] = {}
    problems: list[Problem] = []
    warnings: list[Problem] = []
    paths: dict[str, list[str]] = {}
    node: str | None = None
    for line, settings in _lines(content, problems):
        values = {name: cell.text.strip('"') for name, cell in settings.items()}
        try:
            if "nodename" in values or "topology" in values:
                node = values.get("nodename", node)
                if "topology" in values and node is not None:
                    paths[node] = values["topology"].split(":")[1:]
            elif "blocksizes" in values and "blockname" not in values:
                sizes = tuple(int(item) for item in values["blocksizes"].split(","))
            else:
                kind = _entry(values, switches, groups)
                if kind is None:
                    problems.append(
                        Problem(content.place(line), "expected SwitchName=, BlockName= or RingName=")
                    )
                else:
                    kinds[kind] = None
        except ValueError as error:
            problems.append(Problem(content.place(line), str(error)))
    if paths and not switches:
        switches = _from_paths(paths)
        kinds["tree"] = None
    if not kinds and not problems:
        raise content.error("found no SwitchName=, BlockName= or RingName= line")
    if len(kinds) > 1:
        problems.append(
            Problem(source, f"mixes {' and '.join(kinds)}: a topology.conf describes one topology")
        )
    problems += tree_problems(switches, source)
    problems += block_problems(groups, sizes, source)
    problems += [
        Problem(source, f"ring {name} has {len(nodes)} nodes, Slurm has rings of up to {MOST_IN_RING}")
        for name, nodes in groups.items()
        if "ring" in kinds and len(nodes) > MOST_IN_RING
    ]
    if problems:
        raise InputError(problems[:20])
    warnings += content.cut_warnings()
    warnings += forest_warnings(switches, source)
    return SchedulerTopology(
        source=source,
        name="topology.conf",
        kind=next(iter(kinds)),  # type: ignore[arg-type]  # one of the three
        switches=switches,
        groups=groups,
        block_sizes=sizes,
        warnings=tuple(warnings),
    )


def _lines(content: Text, problems: list[Problem]) -> list[tuple[Line, Mapping[str, Cell]]]:
    """Settings of every line, continued lines joined."""
    found: list[tuple[Line, Mapping[str, Cell]]] = []
    pending = ""
    for line in content.lines:
        text = (pending + line.text.partition("#")[0]).rstrip()
        if text.endswith("\\"):
            pending = text[:-1] + " "
            continue
        pending = ""
        if not text.strip():
            continue
        settings: dict[str, Cell] = {}
        rest = text
        for match in _SETTING.finditer(text):
            settings[match[1].lower()] = Cell(match[2], line, match.start())
            rest = rest.replace(match[0], "", 1)
        known = _KEYS | _SCONTROL_KEYS
        strange = [name for name in settings if name not in known]
        describes_node = "nodename" in settings or "topology" in settings
        if not describes_node and (strange or rest.strip()):
            if any(name in known for name in settings):
                what = strange[0] if strange else rest.strip()[:40]
                problems.append(Problem(content.place(line), f"cannot read {what!r} in this line"))
                continue
            if "=" not in text or not settings:
                problems.append(
                    Problem(content.place(line), f"expected KEY=VALUE, got {text.strip()[:40]!r}")
                )
            continue
        found.append((line, settings))
    return found


def _entry(
    values: Mapping[str, str], switches: dict[str, Switch], groups: dict[str, tuple[str, ...]]
) -> str | None:
    """One line into the maps; its kind, None where it names nothing.

    Raises:
        ValueError: a host list that is none, or a name with two meanings.
    """
    for key, kind in (("switchname", "tree"), ("blockname", "block"), ("ringname", "ring")):
        if key not in values:
            continue
        for name in expand(values[key]):
            children = tuple(expand(values["switches"])) if values.get("switches") else ()
            # scontrol repeats the nodes below a switch of switches
            nodes = tuple(expand(values["nodes"])) if values.get("nodes") and not children else ()
            if kind == "tree":
                found = Switch(children, nodes)
                if switches.setdefault(name, found) != found:
                    raise ValueError(f"switch {name} is described twice and differently")
            elif groups.setdefault(name, nodes) != nodes:
                raise ValueError(f"{kind} {name} is described twice and differently")
        return kind
    return None


def _from_paths(paths: Mapping[str, list[str]]) -> dict[str, Switch]:
    """A tree from ``root:..:leaf`` of every node."""
    children: dict[str, dict[str, None]] = {}
    nodes: dict[str, list[str]] = {}
    for node, path in paths.items():
        for above, below in pairwise(path):
            children.setdefault(above, {})[below] = None
        if path:
            nodes.setdefault(path[-1], []).append(node)
    names = dict.fromkeys([*children, *nodes])
    return {name: Switch(tuple(children.get(name, ())), tuple(nodes.get(name, ()))) for name in names}


def tree_problems(switches: Mapping[str, Switch], source: str) -> list[Problem]:
    """Switches that do not exist or hang on two others, nodes on two switches, circles."""
    problems: list[Problem] = []
    parent: dict[str, str] = {}
    leaf: dict[str, str] = {}
    for name, switch in switches.items():
        if not switch.switches and not switch.nodes:
            problems.append(Problem(source, f"switch {name} lacks children: neither switches nor nodes"))
        for child in switch.switches:
            if child not in switches:
                problems.append(
                    Problem(source, f"switch {name} has {child} below it, which is not described")
                )
            if parent.setdefault(child, name) != name:
                problems.append(Problem(source, f"switch {child} hangs on both {parent[child]} and {name}"))
        for node in switch.nodes:
            if leaf.setdefault(node, name) != name:
                problems.append(Problem(source, f"node {node} hangs on both {leaf[node]} and {name}"))
    for name in switches:
        seen, above = {name}, parent.get(name)
        while above is not None and above not in seen:
            seen.add(above)
            above = parent.get(above)
        if above is not None:
            problems.append(Problem(source, f"switch {name} is above itself"))
    return problems


def forest_warnings(switches: Mapping[str, Switch], source: str) -> list[Problem]:
    """Trees without a common root: nothing joins their nodes."""
    below = {child for switch in switches.values() for child in switch.switches}
    roots = [name for name in switches if name not in below]
    if len(roots) < 2:
        return []
    return [
        Problem(
            source,
            f"{len(roots)} trees without a common root ({', '.join(roots[:4])}): no path joins them, a plan "
            f"may use one of them only",
        )
    ]


def block_problems(
    groups: Mapping[str, tuple[str, ...]], sizes: tuple[int, ...], source: str
) -> list[Problem]:
    """Block sizes that Slurm refuses, nodes in two blocks."""
    problems: list[Problem] = []
    for size in sizes:
        factor, rest = divmod(size, sizes[0]) if sizes[0] > 0 else (0, 1)
        if rest or factor < 1 or factor & (factor - 1):
            problems.append(
                Problem(source, f"block size {size} is no power-of-two multiple of the first, {sizes[0]}")
            )
    home: dict[str, str] = {}
    for name, nodes in groups.items():
        if not nodes:
            problems.append(Problem(source, f"{name} has no nodes"))
        for node in nodes:
            if home.setdefault(node, name) != name:
                problems.append(Problem(source, f"node {node} is in both {home[node]} and {name}"))
        if sizes and len(nodes) < sizes[0]:
            problems.append(
                Problem(source, f"block {name} has {len(nodes)} nodes, fewer than the block size {sizes[0]}")
            )
    return problems
