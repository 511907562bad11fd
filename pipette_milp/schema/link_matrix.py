"""A matrix of bandwidths in a file: ``{"unit": "GB/s", "values": [[..]]}``, row = sender."""

from __future__ import annotations

import math
from typing import Any

from pipette_milp.schema.strict import Location, problems_error
from pipette_milp.units import UNITS, Dimension, parse_quantity, unit_factor

Matrix = tuple[tuple[float | None, ...], ...]
"""[sender][receiver] in bytes/s; None on the diagonal, elsewhere None = not measured."""


def parse_figure(value: Any) -> float:
    """bytes/s of one bandwidth that stands where a matrix could.

    Raises:
        ValueError: not a bandwidth above 0.
    """
    if isinstance(value, list | tuple):
        raise ValueError('a matrix needs its unit: {"unit": "GB/s", "values": [[..]]}')
    number = parse_quantity(value, Dimension.BANDWIDTH)
    if number <= 0:
        raise ValueError(f"expected more than 0 bytes/s, got {value}")
    return number


def parse_matrix(value: dict[str, Any]) -> Matrix:
    """bytes/s of a square matrix.

    Raises:
        PydanticCustomError: all that is wrong with it, each at its place.
    """
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


def dump_matrix(value: float | Matrix) -> Any:
    """The JSON form of a bandwidth or a matrix of them, in bytes/s."""
    if isinstance(value, tuple):
        return {"unit": "B/s", "values": [list(row) for row in value]}
    return value


MATRIX_SCHEMA: dict[str, Any] = {
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
}
