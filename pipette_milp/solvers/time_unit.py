"""A family with time counted in another unit.

Solvers have absolute tolerances: 1e-6 is a millionth of an iteration of one second, a ten thousandth of one
of ten milliseconds. Models are therefore built in a unit in which an iteration is about 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.solvers.link_extremes import scaled

TIMES = (
    "forward_layer_s",
    "backward_layer_s",
    "weight_gradient_layer_s",
    "forward_extra_s",
    "backward_extra_s",
    "weight_gradient_extra_s",
    "latency_s",
    "local_latency_s",
    "hop_gather_s",
    "embedding_latency_s",
    "optimizer_layer_s",
    "optimizer_extra_s",
    "fixed_s",
)
RATES = (
    "pair_bytes_per_s",
    "egress_bytes_per_s",
    "ingress_bytes_per_s",
    "port_bytes_per_s",
    "local_bytes_per_s",
)


def in_unit(tables: CostTables, unit_s: float) -> CostTables:
    """The same family, every duration divided by ``unit_s`` seconds; sizes and counts stay."""
    changes: dict[str, object] = {name: _times(getattr(tables, name), 1.0 / unit_s) for name in TIMES}
    changes |= {name: _times(getattr(tables, name), unit_s) for name in RATES}
    changes |= {"sync": _ring(tables.sync, unit_s), "gather": _ring(tables.gather, unit_s)}
    changes["uplinks"] = replace(tables.uplinks, bytes_per_s=tables.uplinks.bytes_per_s * unit_s)
    changes["gpu_level"] = None  # models look at nodes alone, for which the tables hold the best case
    return replace(tables, **changes)  # type: ignore[arg-type]


def _times(value: float | Array, factor: float) -> float | Array:
    return scaled(value, factor) if isinstance(value, np.ndarray) else value * factor


def _ring(ring: Ring, unit_s: float) -> Ring:
    return replace(
        ring,
        latency_s=ring.latency_s / unit_s,
        latency_per_node_step_s=ring.latency_per_node_step_s / unit_s,
        latency_per_local_step_s=ring.latency_per_local_step_s / unit_s,
    )
