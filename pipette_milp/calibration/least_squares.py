"""Robust least squares on positive parameters: Levenberg-Marquardt on their logarithms with Huber weights.

Small on purpose (numpy only), because the fit of the shipped constants has to be re-runnable anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray

STEP = 0.02
"""Relative step of the finite differences: large enough to see over the steps that tiles and waves make."""
HUBER = 1.5
"""Residuals beyond this many robust standard deviations count linearly."""


@dataclass(frozen=True)
class Parameter:
    """One positive figure to be fitted, with its plausible range and how much is known about it already."""

    name: str
    start: float
    low: float
    high: float
    prior_sigma: float = 0.7
    """Standard deviation of its logarithm before any run was seen: keeps figures that the runs say nothing
    about where physics has them."""


@dataclass(frozen=True)
class Fit:
    """Fitted values, and their standard errors (of the logarithm; linearised)."""

    values: Array
    log_errors: Array
    cost: float
    evaluations: int


def fit(
    parameters: list[Parameter],
    residuals: Callable[[Array, IntArray], Array],
    weights: Array,
    affected: list[IntArray],
    *,
    initial: Sequence[float] | None = None,
    iterations: int = 8,
    progress: Callable[[str], None] | None = None,
    accepted: Callable[[Array], None] | None = None,
) -> Fit:
    """Minimises the weighted Huber loss of ``residuals`` plus the priors.

    Args:
        residuals: values [k] and indices of rows -> residuals of those rows.
        weights: [n]
        initial: where to begin; default: the centres of the priors.
        accepted: is told every point that is better than the one before.
        affected: for every parameter the indices of the rows it can change; the others need no work.
    """
    low = np.log([item.low for item in parameters])
    high = np.log([item.high for item in parameters])
    start = np.log([item.start for item in parameters])
    sigma = np.array([item.prior_sigma for item in parameters])
    at = np.clip(start if initial is None else np.log(initial), low, high)
    damping, evaluations = 1e-3, 1
    every = np.arange(weights.size)

    def of(point: Array) -> Array:
        # exp(log(bound)) may round to beyond the bound
        return np.clip(np.exp(point), [item.low for item in parameters], [item.high for item in parameters])

    now = residuals(of(at), every)
    jacobian = np.zeros((now.size, at.size))

    def cost(values: Array, point: Array, spread: float) -> float:
        scaled = np.abs(values) / spread
        loss = np.where(scaled <= HUBER, scaled**2 / 2, HUBER * (scaled - HUBER / 2))
        return float(weights @ loss + (((point - start) / sigma) ** 2).sum() / 2)

    for step in range(iterations):
        spread = max(1e-3, 1.4826 * weighted_median(np.abs(now), weights))
        for k in range(at.size):
            moved = at.copy()
            moved[k] += STEP if at[k] + STEP <= high[k] else -STEP
            rows = affected[k]
            jacobian[:, k] = 0.0
            jacobian[rows, k] = (residuals(of(moved), rows) - now[rows]) / (moved[k] - at[k])
            evaluations += 1
        huber = weights * np.minimum(1.0, HUBER / np.maximum(np.abs(now) / spread, 1e-12)) / spread**2
        normal = jacobian.T @ (huber[:, None] * jacobian) + np.diag(1 / sigma**2)
        gradient = jacobian.T @ (huber * now) + (at - start) / sigma**2
        before, improved = cost(now, at, spread), False
        for _ in range(6):
            change = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = np.clip(at + np.clip(change, -0.5, 0.5), low, high)
            after = residuals(of(trial), every)
            evaluations += 1
            gain = before - cost(after, trial, spread)
            if gain > 0:
                at, now, improved = trial, after, True
                if accepted is not None:
                    accepted(of(at))
                damping = max(damping / 5, 1e-6)
                break
            damping *= 6
        if progress is not None:
            progress(
                f"step {step + 1}: weighted median error {100 * weighted_median(np.abs(now), weights):.2f} %"
            )
        if not improved or gain < 1e-3 * before:
            break
    errors = np.sqrt(np.maximum(np.diag(np.linalg.inv(normal)), 0.0))
    return Fit(of(at), errors, before, evaluations)


def weighted_median(values: Array, weights: Array) -> float:
    """The value below which half of the weight lies."""
    order = np.argsort(values)
    share = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(share, share[-1] / 2)])
