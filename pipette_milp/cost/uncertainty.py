"""What the residuals of measured runs say about one estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pipette_milp.schema.constants import Residuals


def fit_probability(peak_and_capacity: Iterable[tuple[float, float]], residuals: Residuals) -> float:
    """Probability that no stage needs more than its GPUs have.

    log(measured / estimated) is taken to be normal with the mean and deviation of the measured runs, and one
    draw for all stages: their errors have the same causes, so the tightest stage decides.

    Args:
        peak_and_capacity: device peak and capacity of every stage, bytes.
    """
    room = min(math.log(capacity / peak) for peak, capacity in peak_and_capacity)
    shifted = room - residuals.memory_bias
    if residuals.memory_sigma == 0:
        return 1.0 if shifted >= 0 else 0.0
    return 0.5 * math.erfc(-shifted / residuals.memory_sigma / math.sqrt(2))
