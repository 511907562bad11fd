"""Slurm's ``topology.yaml``, which replaces ``topology.conf`` where present: a list of named topologies."""

from __future__ import annotations

import re
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.hostlist import expand
from pipette_milp.importers.scheduler_topology import SchedulerTopology, Switch
from pipette_milp.importers.slurm_topology import block_problems, forest_warnings, tree_problems
from pipette_milp.importers.text import clean
from pipette_milp.importers.yamltext import load_yaml

KIND = "slurm-topology-yaml"

_KINDS = ("tree", "block", "ring", "torus3d", "flat")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a ``topology.yaml``."""
    named = re.search(r"(?m)^\s*-?\s*topology:\s*\S", text)
    return 0.95 if named and re.search(rf"(?m)^\s*-?\s*(?:{'|'.join(_KINDS)}):", text) else 0.0


def parse(text: str, source: str) -> tuple[SchedulerTopology, ...]:
    """All topologies of the file.

    Raises:
        InputError: no list of topologies, a kind that is not supported, names that are no host lists, and
            what `slurm_topology.parse` refuses.
    """
    data = load_yaml("\n".join(line.text for line in clean(text, source).lines) + "\n", source)
    if not isinstance(data, list) or not data:
        raise InputError(Problem(source, "expected a list of topologies: - topology: NAME"))
    problems: list[Problem] = []
    found: list[SchedulerTopology] = []
    for index, item in enumerate(data):
        place = f"{source}: [{index}]"
        try:
            found.append(_topology(item, place, source, len(data)))
        except InputError as error:
            problems += error.problems
    if not text.endswith("\n"):
        last = text.rsplit("\n", 1)[-1].strip()
        warning = Problem(source, f"the file ends right after {last[-20:]!r}, which may be cut off")
        found = [_warned(item, warning) for item in found]
    if problems:
        raise InputError(problems[:20])
    return tuple(found)


def _warned(item: SchedulerTopology, warning: Problem) -> SchedulerTopology:
    return SchedulerTopology(**{**_fields(item), "warnings": (*item.warnings, warning)})


def _fields(item: SchedulerTopology) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _topology(item: Any, place: str, source: str, count: int) -> SchedulerTopology:
    if not isinstance(item, dict) or not isinstance(item.get("topology"), str):
        raise InputError(Problem(place, "expected a mapping with topology: NAME"))
    kinds = [kind for kind in _KINDS if kind in item]
    unknown = [key for key in item if key not in ("topology", "cluster_default", *_KINDS)]
    if unknown or len(kinds) != 1:
        what = f"unknown key {unknown[0]!r}" if unknown else f"{len(kinds)} kinds"
        raise InputError(Problem(place, f"{what}: expected one of {', '.join(_KINDS)}"))
    kind, body = kinds[0], item[kinds[0]]
    if kind == "torus3d":
        raise InputError(Problem(f"{place}.torus3d", "not supported yet: a torus"))
    switches: dict[str, Switch] = {}
    groups: dict[str, tuple[str, ...]] = {}
    sizes: tuple[int, ...] = ()
    if kind != "flat":
        if not isinstance(body, dict):
            raise InputError(Problem(f"{place}.{kind}", "expected a mapping"))
        if kind == "tree":
            for entry, where in _entries(body, "switches", f"{place}.tree"):
                name = _name(entry, "switch", where)
                found = Switch(_hosts(entry, "children", where), _hosts(entry, "nodes", where))
                if switches.setdefault(name, found) != found:
                    raise InputError(Problem(where, f"switch {name} is described twice and differently"))
        else:
            for entry, where in _entries(body, f"{kind}s", f"{place}.{kind}"):
                name, nodes = _name(entry, kind, where), _hosts(entry, "nodes", where)
                if groups.setdefault(name, nodes) != nodes:
                    raise InputError(Problem(where, f"{kind} {name} is described twice and differently"))
        sizes = _sizes(body.get("block_sizes"), f"{place}.{kind}.block_sizes")
    problems = tree_problems(switches, place)
    problems += block_problems(groups, sizes, place)
    if problems:
        raise InputError(problems)
    return SchedulerTopology(
        source=source,
        name=item["topology"],
        kind=kind,  # type: ignore[arg-type]  # one of the four
        switches=switches,
        groups=groups,
        block_sizes=sizes,
        is_default=count == 1 or item.get("cluster_default") is True,
        warnings=tuple(forest_warnings(switches, source)),
    )


def _entries(body: dict[str, Any], key: str, place: str) -> list[tuple[dict[str, Any], str]]:
    entries = body.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(Problem(f"{place}.{key}", "expected a list of mappings"))
    return [(entry, f"{place}.{key}[{index}]") for index, entry in enumerate(entries)]


def _name(entry: dict[str, Any], key: str, place: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value):
        raise InputError(Problem(place, f"expected {key}: NAME"))
    return str(value)


def _hosts(entry: dict[str, Any], key: str, place: str) -> tuple[str, ...]:
    value = entry.get(key)
    if value is None:
        return ()
    try:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(name for item in value for name in expand(item))
        if isinstance(value, str):
            return tuple(expand(value))
    except ValueError as error:
        raise InputError(Problem(f"{place}.{key}", str(error))) from None
    raise InputError(Problem(f"{place}.{key}", "expected a host list such as node[01-16]"))


def _sizes(value: Any, place: str) -> tuple[int, ...]:
    if value is None:
        return ()
    sizes = value if isinstance(value, list) else [value]
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise InputError(Problem(place, "expected whole numbers"))
    return tuple(sizes)
