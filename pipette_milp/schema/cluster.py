"""Section ``cluster`` of an instance: GPU types, nodes and what is excluded."""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo, field_validator

from pipette_milp.schema.network import NetworkSection
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import Bytes, BytesPerSecond, Count, FlopPerSecond, unsupported
from pipette_milp.schema.scale_up import ScaleUp
from pipette_milp.schema.strict import Location, not_supported, problems_error, validation_problems
from pipette_milp.schema.training import Precision

MOST_MESH_GPUS = 8
"""GPUs of a node wired as a mesh, at most: the rings through all of them are enumerated, 5,040 for eight."""

# {} or {:03d}: enough for host names, and nothing else of Python's format language gets in.
_PATTERN = re.compile(r"\{(?::0?\d*d)?\}")


class GpuType(FrozenModel):
    """One kind of GPU."""

    memory: Bytes
    """What the driver reports, not the marketing figure."""
    peak_flops: dict[Precision, FlopPerSecond] = Field(min_length=1)
    """Dense peak by precision."""
    memory_bandwidth: BytesPerSecond


class Nics(FrozenModel):
    """The network cards of a node."""

    count: Count
    bandwidth: BytesPerSecond
    """bytes/s of one card in one direction."""
    of_gpu: tuple[int, ...] | None = None
    """Nearest card of each GPU. Descriptive: accepted with a warning."""


def _gpus_of_type(value: Any) -> tuple[str, int]:
    """``["A100", 8]``, or a list of eight equal type names."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError('expected [GPU type, count], for example ["A100-SXM4-80GB", 8]')
    if all(isinstance(item, str) for item in value):
        if len(set(value)) > 1:
            raise not_supported("nodes that mix GPU types")
        return value[0], len(value)
    if len(value) != 2 or not isinstance(value[0], str):
        raise ValueError('expected [GPU type, count], for example ["A100-SXM4-80GB", 8]')
    count = value[1]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"expected a whole number of GPUs of at least 1, got {count!r}")
    return value[0], count


class NodeType(FrozenModel):
    """One kind of node."""

    gpus: Annotated[tuple[str, int], BeforeValidator(_gpus_of_type)]
    """GPU type and how many."""
    scale_up: ScaleUp | None = None
    """Default: ``network.intra_node``."""
    nics: Nics | None = None

    @field_validator("nics")
    @classmethod
    def _one_card_per_gpu(cls, value: Nics | None, info: ValidationInfo) -> Nics | None:
        gpus = info.data.get("gpus")
        if value is not None and value.of_gpu is not None and gpus is not None:
            problems: list[tuple[Location, str]] = []
            if len(value.of_gpu) != gpus[1]:
                problems.append(
                    (
                        ("of_gpu",),
                        f"has {len(value.of_gpu)} entries, expected one per GPU of the node, {gpus[1]}",
                    )
                )
            if any(not 0 <= card < value.count for card in value.of_gpu):
                problems.append((("of_gpu",), f"expected card numbers from 0 to {value.count - 1}"))
            if problems:
                raise problems_error(problems)
        return value

    @field_validator("scale_up")
    @classmethod
    def _a_row_per_gpu(cls, value: ScaleUp | None, info: ValidationInfo) -> ScaleUp | None:
        gpus = info.data.get("gpus")
        if value is None or value.kind != "mesh" or gpus is None:
            return value
        if isinstance(value.pairs, tuple) and len(value.pairs) != gpus[1]:
            raise problems_error(
                [
                    (
                        ("pairs", "values"),
                        f"has {len(value.pairs)} rows, expected one per GPU of the node, {gpus[1]}",
                    )
                ]
            )
        if gpus[1] > MOST_MESH_GPUS:
            what = f"a mesh of more than {MOST_MESH_GPUS} GPUs (this node has {gpus[1]})"
            raise problems_error([(("pairs",), not_supported(what).message())])
        return value


class NodeEntry(FrozenModel):
    """One entry of ``nodes`` as people write it: of a node type, or the short form."""

    name: str = Field(min_length=1)
    count: Count = 1
    """More than one: the name needs a counter such as ``node-{:03d}``, which starts at 0."""
    type: str | None = None
    gpu_type: str | None = None
    gpus: Count | None = None


class NodeSpec(FrozenModel):
    """One node, all defaults filled in."""

    name: str
    type: str | None = None
    """Key of ``node_types``; None for the short form."""
    gpu_type: str
    gpus: Count


class Exclude(FrozenModel):
    """What must not be used. The ids of the other GPUs do not move."""

    nodes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    """``node name:local index``."""


class ClusterSection(FrozenModel):
    """Nodes in the order that defines GPU ids: first id of a node plus the local index."""

    gpu_types: dict[str, GpuType] = Field(min_length=1)
    node_types: dict[str, NodeType] = Field(default_factory=dict)
    nodes: tuple[NodeSpec, ...] = Field(json_schema_extra={"items": NodeEntry.model_json_schema()})
    domains: Annotated[tuple[()], unsupported([], (), what="scale-up domains larger than a node")] = ()
    exclude: Exclude = Exclude()
    network: NetworkSection

    @property
    def num_gpus(self) -> int:
        """All declared GPUs, excluded ones too."""
        return sum(node.gpus for node in self.nodes)

    def scale_up_of(self, node: NodeSpec) -> ScaleUp:
        """Scale-up of a node: its type's, else ``network.intra_node``.

        A node of one GPU needs none; it gets infinite bandwidth and no latency.
        """
        if node.type is not None:
            scale_up = self.node_types[node.type].scale_up
            if scale_up is not None:
                return scale_up
        intra = self.network.intra_node
        if intra is not None:
            return ScaleUp(per_gpu_bandwidth=intra.bandwidth, latency=intra.latency)
        return ScaleUp.model_construct(kind="switch", per_gpu_bandwidth=math.inf, latency=0.0, pairs=None)

    def nics_of(self, node: NodeSpec) -> Nics | None:
        """Network cards of a node, None where the instance does not say."""
        return self.node_types[node.type].nics if node.type is not None else None

    def excluded_gpu_ids(self) -> frozenset[int]:
        """Global ids of all excluded GPUs."""
        ids: set[int] = set()
        first = 0
        listed = {
            (name, int(index)) for name, _, index in (item.rpartition(":") for item in self.exclude.gpus)
        }
        for node in self.nodes:
            for index in range(node.gpus):
                if node.name in self.exclude.nodes or (node.name, index) in listed:
                    ids.add(first + index)
            first += node.gpus
        return frozenset(ids)

    def usable_nodes(self) -> frozenset[int]:
        """Indices of the nodes with at least one GPU that is not excluded."""
        excluded = self.excluded_gpu_ids()
        firsts = [0, *accumulate(node.gpus for node in self.nodes)]
        return frozenset(
            index
            for index, node in enumerate(self.nodes)
            if any(gpu not in excluded for gpu in range(firsts[index], firsts[index] + node.gpus))
        )

    @field_validator("nodes", mode="before")
    @classmethod
    def _expand(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, tuple) and all(isinstance(item, NodeSpec) for item in value):
            return value
        try:
            entries = TypeAdapter(list[NodeEntry]).validate_python(value)
        except ValidationError as error:
            raise problems_error(validation_problems(error, NodeEntry)) from None
        if not entries:
            raise ValueError("expected at least one node")
        problems: list[tuple[Location, str]] = []
        nodes: list[NodeSpec] = []
        for index, entry in enumerate(entries):
            kind = _resolve(entry, index, info.data, problems)
            for name in _names(entry, index, problems):
                nodes.append(NodeSpec(name=name, type=entry.type, gpu_type=kind[0], gpus=kind[1]))
        names = [node.name for node in nodes]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            problems.append(((), f"the name {name!r} occurs more than once"))
        if problems:
            raise problems_error(problems)
        return tuple(nodes)


def _names(entry: NodeEntry, index: int, problems: list[tuple[Location, str]]) -> list[str]:
    if _PATTERN.search(entry.name):
        return [_PATTERN.sub(partial(_numbered, i), entry.name) for i in range(entry.count)]
    if entry.count > 1:
        problems.append(
            ((index, "name"), 'a count above 1 needs a counter in the name, such as "node-{:03d}"')
        )
    return [entry.name]


def _numbered(number: int, match: re.Match[str]) -> str:
    return match[0].format(number)


def _resolve(
    entry: NodeEntry, index: int, known: dict[str, Any], problems: list[tuple[Location, str]]
) -> tuple[str, int]:
    """GPU type and count of an entry; ("", 1) after a problem."""
    gpu_types: dict[str, GpuType] | None = known.get("gpu_types")
    node_types: dict[str, NodeType] | None = known.get("node_types")
    if entry.type is not None:
        if node_types is None:  # that section has problems of its own
            return "", 1
        if entry.type not in node_types:
            problems.append(((index, "type"), f"unknown node type {entry.type!r}, {_choices(node_types)}"))
            return "", 1
        gpu_type, gpus = node_types[entry.type].gpus
        if entry.gpu_type not in (None, gpu_type) or entry.gpus not in (None, gpus):
            problems.append(
                (
                    (index,),
                    f"contradicts its type {entry.type!r} of {gpus} {gpu_type}: leave gpu_type and gpus out",
                )
            )
    elif entry.gpu_type is None or entry.gpus is None:
        problems.append(((index,), 'expected "type", or both "gpu_type" and "gpus"'))
        return "", 1
    else:
        gpu_type, gpus = entry.gpu_type, entry.gpus
    if gpu_types is not None and gpu_type not in gpu_types:
        where: Location = (index, "gpu_type") if entry.type is None else (index, "type")
        problems.append((where, f"unknown GPU type {gpu_type!r}, {_choices(gpu_types)}"))
        return "", 1
    return gpu_type, gpus


def _choices(mapping: dict[str, Any]) -> str:
    return f"declared are {', '.join(map(repr, mapping))}" if mapping else "none is declared"
