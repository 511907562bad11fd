"""Bandwidths by groups of nodes: ``{"groups": [[names]], "within": q, "between": q or matrix}``.

The short form of a matrix of thousands of nodes: pods, racks, anything inside which links are equal.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from pipette_milp.schema.link_matrix import MATRIX_SCHEMA, Matrix, dump_matrix, parse_figure, parse_matrix
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import BytesPerSecond
from pipette_milp.schema.strict import Location, problems_error


def _between(value: Any) -> float | Matrix:
    """One bandwidth, or a complete matrix with a row for every group."""
    if not isinstance(value, dict):
        return parse_figure(value)
    matrix = parse_matrix(value)
    problems: list[tuple[Location, str]] = [
        (("values", g, h), "is required: between groups every figure is needed")
        for g, row in enumerate(matrix)
        for h, figure in enumerate(row)
        if figure is None and g != h
    ]
    if problems:
        raise problems_error(problems)
    return matrix


class LinkGroups(FrozenModel):
    """Equal links inside each group of nodes, and one figure for every ordered pair of groups."""

    groups: tuple[tuple[str, ...], ...]
    """Node names; every node is in exactly one group."""
    within: BytesPerSecond
    between: Annotated[
        float | Matrix,
        PlainValidator(_between),
        PlainSerializer(dump_matrix),
        WithJsonSchema(
            {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}, MATRIX_SCHEMA]}
        ),
    ]
    """bytes/s; of a matrix the row is the sending group, the diagonal is unused."""

    @model_validator(mode="after")
    def _is_a_partition(self) -> LinkGroups:
        problems: list[tuple[Location, str]] = []
        if not self.groups:
            problems.append((("groups",), "expected at least one group of node names"))
        for index, group in enumerate(self.groups):
            if not group:
                problems.append((("groups", index), "expected at least one node name"))
        counts = Counter(name for group in self.groups for name in group)
        problems += [
            (("groups",), f"node {name!r} occurs {count} times, expected once")
            for name, count in counts.items()
            if count > 1
        ]
        if isinstance(self.between, tuple) and len(self.between) != len(self.groups):
            problems.append(
                (
                    ("between", "values"),
                    f"has {len(self.between)} rows, expected one per group, {len(self.groups)}",
                )
            )
        if problems:
            raise problems_error(problems)
        return self

    def bytes_per_s(self, sender: int, receiver: int) -> float:
        """Bandwidth from a node of one group to another node, of the same or another group."""
        if sender == receiver:
            return self.within
        if not isinstance(self.between, tuple):
            return self.between
        figure = self.between[sender][receiver]
        if figure is None:
            raise ValueError("the matrix between groups is incomplete")
        return figure

    def group_of(self) -> dict[str, int]:
        """Index of the group of every node name."""
        return {name: index for index, group in enumerate(self.groups) for name in group}
