"""JSON Schema of the file formats, generated from the models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from pipette_milp.errors import InputError
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.result import SolveResult

SCHEMAS: dict[str, type[BaseModel]] = {"instance": Instance, "plan": Plan, "result": SolveResult}


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what may be read as an instance, a plan or a result.

    Raises:
        InputError: another kind.
    """
    if kind not in SCHEMAS:
        raise InputError(f"there is no schema {kind!r}, choose from {', '.join(SCHEMAS)}")
    schema = SCHEMAS[kind].model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
