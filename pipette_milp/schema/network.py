"""Section ``cluster.network`` of an instance: links between nodes."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema, field_validator, model_validator

from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import BytesPerSecond, Count, Seconds, unsupported
from pipette_milp.schema.strict import Location, not_supported, problems_error
from pipette_milp.units import UNITS, Dimension, parse_quantity, unit_factor

Matrix = tuple[tuple[float | None, ...], ...]
"""[sender][receiver] in bytes/s; None on the diagonal, elsewhere None = not measured."""


class ScaleUp(FrozenModel):
    """What joins the GPUs of one node."""

    kind: Annotated[Literal["switch"], unsupported("switch", what="only scale-up of kind switch")] = "switch"
    per_gpu_bandwidth: BytesPerSecond
    """bytes/s one GPU attains in one direction."""
    latency: Seconds
    pairs: Annotated[None, unsupported(None, what="links of a mesh, pair by pair")] = None


class IntraNode(FrozenModel):
    """Short form of `ScaleUp` for all nodes."""

    bandwidth: BytesPerSecond
    latency: Seconds


def _matrix(value: Any) -> float | Matrix:
    """One bandwidth, or ``{"unit": .., "values": [[..]]}`` in bytes/s."""
    if not isinstance(value, dict):
        if isinstance(value, list | tuple):
            raise ValueError('a matrix needs its unit: {"unit": "GB/s", "values": [[..]]}')
        number = parse_quantity(value, Dimension.BANDWIDTH)
        if number <= 0:
            raise ValueError(f"expected more than 0 bytes/s, got {value}")
        return number
    for form in ("snapshots", "groups"):
        if form in value:
            raise problems_error([((form,), not_supported(f"bandwidth as {form}").message())])
    problems: list[tuple[Location, str]] = [
        ((key,), "unknown key, known here are unit, values") for key in value if key not in ("unit", "values")
    ]
    unit = value.get("unit")
    factor = 1.0
    if not isinstance(unit, str):
        problems.append((("unit",), f"is required, one of {', '.join(UNITS[Dimension.BANDWIDTH])}"))
    else:
        try:
            factor = unit_factor(unit, Dimension.BANDWIDTH)
        except ValueError as error:
            problems.append((("unit",), str(error)))
    rows = value.get("values")
    if not isinstance(rows, list | tuple) or not rows:
        problems.append((("values",), "is required, a list of rows (row = sender, column = receiver)"))
        raise problems_error(problems)
    matrix: list[tuple[float | None, ...]] = []
    for sender, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            problems.append((("values", sender), "expected a list of numbers"))
            continue
        if len(row) != len(rows):
            problems.append(
                (
                    ("values", sender),
                    f"has {len(row)} entries, the matrix has {len(rows)} rows: expected a square",
                )
            )
        matrix.append(
            tuple(_entry(item, factor, sender, receiver, problems) for receiver, item in enumerate(row))
        )
    if problems:
        raise problems_error(problems)
    return tuple(matrix)


def _entry(
    item: Any, factor: float, sender: int, receiver: int, problems: list[tuple[Location, str]]
) -> float | None:
    if item is None:
        return None
    if type(item) is float and sender != receiver and 0.0 < item * factor < math.inf:
        return item * factor  # the usual case, ahead of all checks: there may be a million
    try:
        if isinstance(item, str):
            raise ValueError(f"expected a plain number in the matrix's unit, got {item!r}")
        number = parse_quantity(parse_quantity(item, Dimension.BANDWIDTH) * factor, Dimension.BANDWIDTH)
        if sender == receiver:
            return None  # what a node sends to itself does not cross the network
        if number <= 0:
            raise ValueError(f"expected a bandwidth above 0 (null = not measured), got {item}")
    except ValueError as error:
        problems.append((("values", sender, receiver), str(error)))
        return None
    return number


def _dump_matrix(value: float | Matrix) -> Any:
    if isinstance(value, tuple):
        return {"unit": "B/s", "values": [list(row) for row in value]}
    return value


_MATRIX_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "unit": {"enum": list(UNITS[Dimension.BANDWIDTH])},
                "values": {
                    "type": "array",
                    "items": {"type": "array", "items": {"type": ["number", "null"]}},
                    "description": "row = sender, column = receiver; null off the diagonal = not measured",
                },
            },
            "required": ["unit", "values"],
            "additionalProperties": False,
        },
    ]
}

Bandwidths = Annotated[
    float | Matrix, PlainValidator(_matrix), PlainSerializer(_dump_matrix), WithJsonSchema(_MATRIX_SCHEMA)
]


class InterNode(FrozenModel):
    """Links between nodes. A bandwidth is what a large transfer attains in one direction."""

    bandwidth: Bandwidths
    """One figure for all node pairs (all cards together), or `Matrix`."""
    measures: Literal["node_pair", "flow"] | None = None
    """Required with a matrix. ``flow``: one GPU pair while ``simultaneous_flows`` ran."""
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
        if not self.is_matrix and self.measures == "flow":
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


class NetworkSection(FrozenModel):
    """All links. ``None`` for a ceiling means the default rule of the contract."""

    intra_node: IntraNode | None = None
    inter_node: InterNode | None = None
    """Required with more than one node."""
    node_bandwidth: BytesPerSecond | None = None
    """What a node can send, and what it can receive, in all."""
    per_gpu_bandwidth: BytesPerSecond | None = None
    """Ceiling of one GPU's traffic between nodes."""
    uplinks: Annotated[tuple[()], unsupported([], (), what="uplinks shared by a group of nodes")] = ()
    by_size: Annotated[tuple[()], unsupported([], (), what="efficiency by message size")] = ()
    rails: Any = None
    """Descriptive: accepted with a warning."""

    @field_validator("uplinks", "by_size", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any) -> Any:
        return () if value is None else value
