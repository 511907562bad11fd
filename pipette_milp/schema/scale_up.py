"""What joins the GPUs of a node, as an instance says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from pipette_milp.schema.link_matrix import MATRIX_SCHEMA, Matrix, dump_matrix, parse_figure, parse_matrix
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.quantities import BytesPerSecond, Seconds
from pipette_milp.schema.strict import Location, problems_error


def _pairs(value: Any) -> float | Matrix:
    """One bandwidth for all pairs of GPUs, or a matrix."""
    return parse_matrix(value) if isinstance(value, dict) else parse_figure(value)


Pairs = Annotated[
    float | Matrix,
    PlainValidator(_pairs),
    PlainSerializer(dump_matrix),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}, MATRIX_SCHEMA]}),
]


class ScaleUp(FrozenModel):
    """What joins the GPUs of one node: a switch, or links between pairs of them."""

    kind: Literal["switch", "mesh"] = "switch"
    per_gpu_bandwidth: BytesPerSecond | None = None
    """bytes/s one GPU attains in one direction. With a mesh: over the bus (PCIe) that joins the pairs without
    a link of their own; left out where every pair has one."""
    latency: Seconds
    pairs: Pairs | None = None
    """Mesh only. bytes/s of the link between two GPUs in one direction, by local index, row = sender; null
    off the diagonal = no link of their own."""

    @model_validator(mode="after")
    def _says_what_its_kind_needs(self) -> ScaleUp:
        problems: list[tuple[Location, str]] = []
        if self.kind == "switch":
            if self.per_gpu_bandwidth is None:
                problems.append((("per_gpu_bandwidth",), "is required with a switch"))
            if self.pairs is not None:
                problems.append(
                    (("pairs",), 'says how a mesh is wired: expected kind "mesh", or leave it out')
                )
        elif self.pairs is None:
            problems.append(
                (
                    ("pairs",),
                    "is required with a mesh: the bandwidth between each two GPUs, row = sender, null where "
                    "they have no link of their own",
                )
            )
        else:
            unlinked = self.unlinked_pairs()
            if unlinked and self.per_gpu_bandwidth is None:
                a, b = unlinked[0]
                problems.append(
                    (
                        ("pairs", "values", a, b),
                        f"is null, as {len(unlinked)} are: measure them, or say per_gpu_bandwidth, what one "
                        "GPU attains over the bus that joins pairs without a link of their own",
                    )
                )
            if not unlinked and self.per_gpu_bandwidth is not None:
                problems.append(
                    (
                        ("per_gpu_bandwidth",),
                        "is for the pairs of a mesh without a link of their own, and there is none: leave it "
                        "out",
                    )
                )
        if problems:
            raise problems_error(problems)
        return self

    def unlinked_pairs(self) -> list[tuple[int, int]]:
        """Pairs (sender, receiver) of a mesh without a link of their own."""
        if not isinstance(self.pairs, tuple):
            return []
        return [
            (a, b)
            for a, row in enumerate(self.pairs)
            for b, value in enumerate(row)
            if a != b and value is None
        ]
