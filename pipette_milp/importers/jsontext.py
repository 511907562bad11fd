"""JSON sources of importers: loaded strictly, with the places of values for diagnostics."""

from __future__ import annotations

import json
import math
from typing import Any

from pipette_milp.errors import InputError, Problem


def at(source: str, path: str) -> str:
    """``file: path`` for a value inside JSON."""
    return f"{source}: {path}" if path else source


def load(text: str, source: str) -> Any:
    """The JSON value of a text.

    Raises:
        InputError: not JSON (with line and column), a repeated key, or NaN and Infinity.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(Problem(source, f"key {', '.join(map(repr, repeated))} occurs more than once"))
        return dict(pairs)

    def refuse(name: str) -> float:
        raise InputError(Problem(source, f"{name} is not accepted, expected finite numbers"))

    try:
        return json.loads(text.lstrip("\ufeff"), object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise InputError(
            Problem(f"{source}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}")
        ) from None
    except (RecursionError, ValueError) as error:
        raise InputError(Problem(source, f"cannot be read as JSON: {str(error)[:80]}")) from None


def number(value: Any, place: str) -> float:
    """A finite number.

    Raises:
        InputError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise InputError(Problem(place, f"expected a finite number, got {str(value)[:40]!r}"))
    return float(value)


def _finite(value: int | float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def whole(value: Any, place: str) -> int:
    """A whole number that is not negative.

    Raises:
        InputError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(Problem(place, f"expected a whole number, got {str(value)[:40]!r}"))
    return value
