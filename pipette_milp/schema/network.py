"""Section ``cluster.network`` of an instance: links between nodes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from pipette_milp.schema.link_groups import LinkGroups
from pipette_milp.schema.link_matrix import MATRIX_SCHEMA, Matrix, dump_matrix, parse_figure, parse_matrix
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import BytesPerSecond, Count, Seconds, unsupported
from pipette_milp.schema.strict import Location, not_supported, problems_error, validation_problems


class IntraNode(FrozenModel):
    """Short form of `ScaleUp` for all nodes."""

    bandwidth: BytesPerSecond
    latency: Seconds


def _bandwidth(value: Any) -> float | Matrix | LinkGroups:
    """One bandwidth, a matrix, or figures by groups of nodes."""
    if isinstance(value, LinkGroups):
        return value
    if not isinstance(value, dict):
        return parse_figure(value)
    if "snapshots" in value:
        raise problems_error([(("snapshots",), not_supported("bandwidth as snapshots").message())])
    if not {"groups", "within", "between"}.isdisjoint(value):
        try:
            return LinkGroups.model_validate(value)
        except ValidationError as error:
            raise problems_error(validation_problems(error, LinkGroups)) from None
    return parse_matrix(value)


def _dump_bandwidth(value: float | Matrix | LinkGroups) -> Any:
    return value.model_dump(mode="json") if isinstance(value, LinkGroups) else dump_matrix(value)


_BANDWIDTH_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string"},
        MATRIX_SCHEMA,
        {
            "type": "object",
            "properties": {
                "groups": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                    "description": "node names; every node is in exactly one group",
                },
                "within": {"type": ["number", "string"]},
                "between": {
                    "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}, MATRIX_SCHEMA]
                },
            },
            "required": ["groups", "within", "between"],
            "additionalProperties": False,
        },
    ]
}

Bandwidths = Annotated[
    float | Matrix | LinkGroups,
    PlainValidator(_bandwidth),
    PlainSerializer(_dump_bandwidth),
    WithJsonSchema(_BANDWIDTH_SCHEMA),
]


class InterNode(FrozenModel):
    """Links between nodes. A bandwidth is what a large transfer attains in one direction."""

    bandwidth: Bandwidths
    """One figure for all node pairs (all cards together), `Matrix`, or by groups of nodes."""
    measures: Literal["node_pair", "flow"] | None = None
    """Required with a matrix, ``node_pair`` where it is left out otherwise. ``flow``: one GPU pair while
    ``simultaneous_flows`` ran."""
    simultaneous_flows: Count | None = None
    latency: Seconds
    """One way, small message, GPU to GPU."""
    source: Literal["measured", "nominal"] = "nominal"

    @property
    def is_matrix(self) -> bool:
        return isinstance(self.bandwidth, tuple)

    @property
    def flows_per_pair(self) -> int:
        """Factor from a matrix entry to what the node pair attains, all cards together."""
        return self.simultaneous_flows if self.measures == "flow" and self.simultaneous_flows else 1

    @model_validator(mode="after")
    def _says_what_it_measures(self) -> InterNode:
        problems: list[tuple[Location, str]] = []
        if self.is_matrix and self.measures is None:
            problems.append(
                (
                    ("measures",),
                    'is required with a matrix: "node_pair" (all cards together) or '
                    '"flow" (one GPU pair while "simultaneous_flows" ran)',
                )
            )
        if isinstance(self.bandwidth, float) and self.measures == "flow":
            problems.append(
                (
                    ("measures",),
                    "a single bandwidth is what a node pair attains with all cards together: "
                    'multiply it by the flows and leave "measures" out',
                )
            )
        if self.measures == "flow" and self.simultaneous_flows is None:
            problems.append(
                (("simultaneous_flows",), 'is required with measures "flow": how many ran at once')
            )
        if self.measures != "flow" and self.simultaneous_flows is not None:
            problems.append((("simultaneous_flows",), 'contradicts measures "node_pair", leave it out'))
        if problems:
            raise problems_error(problems)
        return self


class Uplink(FrozenModel):
    """What a group of nodes, such as those of one leaf switch, shares on the way to the others."""

    name: str = Field(min_length=1)
    nodes: tuple[str, ...] = Field(min_length=1)
    bandwidth: BytesPerSecond
    """bytes/s in each direction, shared by all flows that leave (or enter) the group."""


class NetworkSection(FrozenModel):
    """All links. ``None`` for a ceiling means the default rule of the contract."""

    intra_node: IntraNode | None = None
    inter_node: InterNode | None = None
    """Required with more than one node."""
    node_bandwidth: BytesPerSecond | None = None
    """What a node can send, and what it can receive, in all."""
    per_gpu_bandwidth: BytesPerSecond | None = None
    """Ceiling of one GPU's traffic between nodes."""
    uplinks: tuple[Uplink, ...] = ()
    """Nested or apart; a node outside all of them is limited by its own links only."""
    by_size: Annotated[tuple[()], unsupported([], (), what="efficiency by message size")] = ()
    rails: Any = None
    """Descriptive: accepted with a warning."""

    @field_validator("uplinks", "by_size", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any) -> Any:
        return () if value is None else value
