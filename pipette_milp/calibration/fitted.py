"""What a fit of constants to measured runs leaves: the constants, and errors that count by subset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.calibration.least_squares import Fit, Parameter
from pipette_milp.calibration.prepared import Prepared
from pipette_milp.schema.constants import CostConstants


@dataclass(frozen=True)
class Fitted:
    """A fit of some constants, to times or to memory figures."""

    constants: CostConstants
    parameters: tuple[Parameter, ...]
    result: Fit
    prepared: tuple[Prepared, ...]
    log_errors: Array
    """[n] log(measured / estimated) of the rows that were used."""

    def errors_by_subset(self) -> dict[str, Array]:
        """`log_errors` of every subset."""
        errors: dict[str, list[float]] = {}
        for item, error in zip(self.prepared, self.log_errors, strict=True):
            errors.setdefault(item.run.subset, []).append(float(error))
        return {subset: np.array(values) for subset, values in errors.items()}


def subset_weights(prepared: Sequence[Prepared], subset_weight: float) -> Array:
    """[n] weights with which each subset counts alike, in rows."""
    sizes = Counter(item.run.subset for item in prepared)
    return np.array([subset_weight / sizes[item.run.subset] for item in prepared])


def robust_deviation(errors: Array) -> float:
    """Standard deviation of normally distributed errors around 0, from their median."""
    return 1.4826 * float(np.median(np.abs(errors)))
