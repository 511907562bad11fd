"""Field types of the files: quantities with units, lists of choices, and what is not supported yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from pipette_milp.schema.strict import not_supported
from pipette_milp.units import EXAMPLES, Dimension, parse_quantity


def _parser(dimension: Dimension) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        return parse_quantity(value, dimension)

    return parse


def _positive(dimension: Dimension) -> Callable[[float], float]:
    def check(value: float) -> float:
        if value <= 0:
            raise ValueError(f"expected more than 0 {dimension.value}, got {value:g}")
        return value

    return check


def _schema(dimension: Dimension) -> dict[str, Any]:
    return {
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
        "description": f"{dimension.value}: a number, or text with a unit such as {EXAMPLES[dimension]}",
    }


Bytes = Annotated[
    float,
    AfterValidator(_positive(Dimension.BYTES)),
    BeforeValidator(_parser(Dimension.BYTES)),
    WithJsonSchema(_schema(Dimension.BYTES)),
]
BytesPerSecond = Annotated[
    float,
    AfterValidator(_positive(Dimension.BANDWIDTH)),
    BeforeValidator(_parser(Dimension.BANDWIDTH)),
    WithJsonSchema(_schema(Dimension.BANDWIDTH)),
]
Seconds = Annotated[float, BeforeValidator(_parser(Dimension.TIME)), WithJsonSchema(_schema(Dimension.TIME))]
"""May be zero: a latency or a time that is switched off."""
FlopPerSecond = Annotated[
    float,
    AfterValidator(_positive(Dimension.FLOP_RATE)),
    BeforeValidator(_parser(Dimension.FLOP_RATE)),
    WithJsonSchema(_schema(Dimension.FLOP_RATE)),
]

Count = Annotated[int, Field(ge=1, strict=True)]
"""A whole number of at least one; 8.0 and "8" are refused."""


MOST_LAYERS = 10_000
"""Far above any published model (1,000 layers: DeepNet, arXiv 2203.00555). What exceeds it is a mistake in a
file that would be listed layer by layer."""

LayerCount = Annotated[int, Field(ge=1, le=MOST_LAYERS, strict=True)]
"""A whole number of layers."""


Flag = Annotated[bool, Field(strict=True)]
"""true or false; 1 and "yes" are refused."""


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    return (value,)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("an empty list allows nothing, leave the key out to allow everything")
    if len(set(values)) != len(values):
        raise ValueError("the same value occurs more than once")
    return values


class _OneOrManySchema:
    """Makes the JSON Schema say that one value may stand for a list of one."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        many = handler(schema)
        return {"anyOf": [many["items"], {**many, "minItems": 1, "uniqueItems": True}]}


ONE_OR_MANY = (AfterValidator(_distinct), BeforeValidator(_as_tuple), _OneOrManySchema())
"""For ``Annotated[tuple[X, ...], *ONE_OR_MANY]``: one value or a list to choose from, stored as a tuple."""


def unsupported(*accepted: Any, what: str = "") -> BeforeValidator:
    """Accepts only ``accepted`` (values that ask for nothing) and refuses the rest as not supported yet."""

    def check(value: Any) -> Any:
        if value not in accepted:
            raise not_supported(what)
        return value

    return BeforeValidator(check)
