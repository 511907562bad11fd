"""How well constants serve runs of a source they were not fitted to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.calibration.fit import fit_constants
from pipette_milp.calibration.fitted import Fitted
from pipette_milp.calibration.parameters import (
    ATTENTION,
    LAUNCH,
    OVERLAP,
    PASSES,
    at_priors,
    kernels_of,
    of_framework,
    value_of,
)
from pipette_milp.calibration.prepared import Prepared
from pipette_milp.schema.constants import CostConstants


def leave_one_source_out(
    prepared: Sequence[Prepared],
    fitted: Fitted,
    *,
    iterations: int,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Errors on each source by constants fitted without it: as they are, and after one scale factor.

    What only this source told is unknown then: a framework that nobody else used has the figures that were
    known before any run (its facts, such as what it overlaps, were read in its sources and stay), an
    architecture that nobody else had is estimated as an unseen GPU.
    """
    return [
        _without(source, prepared, fitted, iterations, progress)
        for source in dict.fromkeys(item.run.source for item in prepared)
    ]


def _without(
    source: str,
    prepared: Sequence[Prepared],
    fitted: Fitted,
    iterations: int,
    progress: Callable[[str], None] | None,
) -> dict[str, Any]:
    inside = [item for item in prepared if item.run.source == source]
    rest = [item for item in prepared if item.run.source != source]
    orphaned = {kernels_of(item.profile) for item in inside} - {kernels_of(item.profile) for item in rest}
    unseen = _architectures(inside) - _architectures(rest)
    own = [of_framework(name, item) for name in orphaned for item in (LAUNCH, PASSES, ATTENTION, OVERLAP)]
    constants = fit_constants(rest, at_priors(fitted.constants, own), iterations=iterations).constants
    measured = np.log([item.run.number("measured_iter_time_s") or math.nan for item in inside])
    errors = measured - np.log([item.time_s(constants) for item in inside])
    of_fit = fitted.log_errors[[item.run.source == source for item in prepared]]
    row = {
        "source": source,
        "n": len(inside),
        "fitted_mape": _mape(of_fit),
        "fitted_mape_one_scale": _one_scale(of_fit),
        "left_out_mape": _mape(errors),
        "left_out_mape_one_scale": _one_scale(errors),
        "own_framework_only": sorted(orphaned),
        "own_architecture_only": sorted(unseen),
        "moved": _moved(fitted.constants, constants, fitted),
    }
    if progress is not None:
        progress(json.dumps(row))
    return row


def _architectures(items: Sequence[Prepared]) -> set[str]:
    return {name for item in items for name in item.architectures}


def _moved(before: CostConstants, after: CostConstants, fitted: Fitted) -> dict[str, float]:
    """Ratio of every figure that changed by more than a twentieth."""
    ratios = {
        parameter.name: value_of(after, parameter.name) / value_of(before, parameter.name)
        for parameter in fitted.parameters
        if not parameter.name.startswith("matrix_efficiency.")
        or parameter.name.split(".")[1] in after.matrix_efficiency
    }
    return {name: round(ratio, 3) for name, ratio in ratios.items() if abs(math.log(ratio)) > 0.05}


def _one_scale(log_errors: Array) -> float:
    """Error after the one scale factor that suits the runs best."""
    return _mape(log_errors - np.median(log_errors))


def _mape(log_errors: Array) -> float:
    return float(np.abs(np.exp(-log_errors) - 1.0).mean())
