"""Results for the tests of pictures and reports: found once, small enough for a second."""

from __future__ import annotations

import functools
import json
from typing import Any

from pipette_milp.schema.instance import Instance, load_instance
from pipette_milp.schema.result import SolveResult
from pipette_milp.solvers import solve
from tests.conftest import INSTANCES


def tiny_data(name: str = "tiny-4x2-a100-flat") -> dict[str, Any]:
    """The JSON object of a shipped instance, to change."""
    data: dict[str, Any] = json.loads((INSTANCES / f"{name}.json").read_text(encoding="utf-8"))
    return data


@functools.cache
def solved(name: str = "tiny-4x2-a100-flat", solver: str = "greedy") -> tuple[Instance, SolveResult]:
    """A shipped instance and a result of it."""
    instance = load_instance(INSTANCES / f"{name}.json")
    return instance, solve(instance, solver=solver, threads=1)
