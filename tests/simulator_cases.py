"""Random durations and legal schedule uses for the tests of schedules and simulator."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from pipette_milp.cost.durations import Durations
from pipette_milp.schedules import SCHEDULES, get_schedule
from pipette_milp.simulator import EventGraph

SCHEDULE_MODES = [(name, mode) for name in SCHEDULES for mode in get_schedule(name).transfer_modes]


def random_use(schedule: str, rng: np.random.Generator) -> tuple[int, int, int]:
    """A legal (pipeline, virtual_stages, num_micro_batches), M below, above and no multiple of p included."""
    rules = get_schedule(schedule)
    while True:
        pipeline = int(rng.integers(1, 6))
        virtual_stages = int(rng.integers(1, 4)) if rules.allows_virtual_stages else 1
        micro_batches = int(rng.integers(1, 10))
        if rules.legality(pipeline, virtual_stages, micro_batches, rules.default_transfers) is None:
            return pipeline, virtual_stages, micro_batches


def random_durations(graph: EventGraph, replicas: int, rng: np.random.Generator) -> Durations:
    """Uneven stages, hops that differ by direction and may outweigh the tasks, some durations 0."""
    virtual, pipeline = graph.num_virtual_stages, graph.pipeline
    hop_scale = float(rng.choice([0.0, 0.1, 1.0, 4.0]))

    def draw(*shape: int) -> np.ndarray:
        return rng.exponential(1.0, shape) * (rng.random(shape) > 0.1)

    return Durations(
        forward_s=draw(virtual, replicas),
        backward_s=2.0 * draw(virtual, replicas),
        weight_gradient_s=draw(virtual, replicas) if graph.separates_weight_gradient else None,
        hop_forward_s=hop_scale * draw(virtual - 1, replicas),
        hop_backward_s=hop_scale * draw(virtual - 1, replicas),
        gradient_sync_s=3.0 * draw(pipeline),
        embedding_sync_s=float(draw(1)[0]) if pipeline > 1 else 0.0,
        optimizer_s=draw(pipeline),
        parameter_gather_s=draw(pipeline),
        fixed_s=float(draw(1)[0]),
    )


def as_json(durations: Durations) -> dict[str, Any]:
    """The ``durations`` block of a result file."""
    block = {}
    for field in fields(durations):
        value = getattr(durations, field.name)
        if value is not None:
            block[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
    return block
