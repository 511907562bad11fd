"""The ``order`` of result files: what every pipeline stage does, step by step, as plain lists."""

from __future__ import annotations

from typing import Any

from pipette_milp.schedules.base import Exchange
from pipette_milp.simulator.graph import EventGraph


def execution_order(graph: EventGraph) -> list[list[list[Any]]]:
    """Per pipeline stage ``[kind, virtual stage, micro-batch]`` in execution order.

    In exchange mode also ``["X", [["send" | "recv", kind, boundary, micro-batch], ...]]``, the members of
    each exchange. With the plan's durations this is all that a program needs to compute the finish times.
    """
    return [
        [
            ["X", [list(member) for member in step.members]] if isinstance(step, Exchange) else list(step)
            for step in steps
        ]
        for steps in graph.program
    ]
