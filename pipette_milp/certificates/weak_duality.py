"""What a vector of duals proves, by arithmetic alone.

For any duals ``y`` of the rows of ``min c x``, weak duality says (bounds, section S6)

    c x >= sum over rows of y b + sum over columns of min(r lower, r upper),    r = c - A' y

with ``b`` the lower side of a row where ``y > 0`` and the upper side where ``y < 0``. No solver takes part,
and nothing has to be optimal: bad duals give a weak bound, never a wrong one. Sums in floating point are off
by at most ``(n + 1) 2^-53`` of the sum of absolute terms; every sum is moved to the safe side by that much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.solvers.highs import INFINITY, ModelArrays

ROUNDING = 2.0**-52
"""Relative error of one operation, twice over: what is computed about errors is rounded too."""


@dataclass(frozen=True)
class DualBound:
    """``value`` is a lower bound of the objective over all columns but those left out."""

    value: float
    reduced_low: Array
    """[columns] no reduced cost is below this."""
    duals: Array
    """[rows] as used: entries whose row has no such side are 0."""


def dual_bound(model: ModelArrays, duals: Array, *, left_out: IntArray | None = None) -> DualBound:
    """The bound that duals prove.

    Args:
        duals: [rows] any finite numbers.
        left_out: columns that the caller accounts for.
    """
    if not np.all(np.isfinite(duals)):
        return DualBound(-math.inf, np.full(len(model.cost), -math.inf), np.zeros(len(duals)))
    duals = repaired(model, duals)
    side = np.where(duals > 0, model.row_lower, np.where(duals < 0, model.row_upper, 0.0))
    columns = len(model.cost)
    products = model.entry * duals[model.entry_row]
    terms = np.bincount(model.entry_column, minlength=columns)
    total = np.bincount(model.entry_column, weights=products, minlength=columns)
    size = np.bincount(model.entry_column, weights=np.abs(products), minlength=columns) + np.abs(model.cost)
    reduced, error = model.cost - total, (terms + 2) * ROUNDING * size
    low, high = reduced - error, reduced + error
    least = _least_products(low, high, model.column_lower, model.column_upper)
    if left_out is not None:
        least[left_out] = 0.0
    parts = np.concatenate([duals * side, least])
    if not np.all(np.isfinite(parts)):
        return DualBound(-math.inf, low, duals)
    value = math.fsum(parts) - ROUNDING * math.fsum(np.abs(parts))
    return DualBound(value, low, duals)


def repaired(model: ModelArrays, duals: Array) -> Array:
    """[rows] duals without those of a side that a row does not have."""
    sideless = ((duals > 0) & (model.row_lower <= -INFINITY)) | ((duals < 0) & (model.row_upper >= INFINITY))
    return np.where(sideless, 0.0, duals)


def _least_products(low: Array, high: Array, lower: Array, upper: Array) -> Array:
    """Least of ``r x`` over ``low <= r <= high`` and ``lower <= x <= upper``; -inf where there is none."""
    least = np.minimum(low * lower, high * lower)
    bounded = upper < INFINITY
    shut = np.where(bounded, upper, 0.0)
    at_upper = np.where(bounded, np.minimum(low * shut, high * shut), np.where(low >= 0.0, least, -math.inf))
    return np.minimum(least, at_upper)
