"""Extremes of link matrices off the diagonal, found once per matrix.

All families of an instance share their link matrices, and every bound asks for the best link several times:
with 2,048 nodes a matrix has four million entries and one look at it takes longer than the rest of a bound.
Matrices are not changed once they are in use, so what was found stays true as long as they live.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from pipette_milp.arrays import Array

Fact = TypeVar("Fact")

_facts: dict[tuple[int, Hashable], tuple[weakref.ref[Array], Any]] = {}
_origins: dict[int, tuple[weakref.ref[Array], Array, float]] = {}


def least_between(matrix: Array) -> float:
    """Least entry of a square matrix of two rows or more that is not on the diagonal."""
    origin, factor = origin_of(matrix)
    return factor * known_fact(origin, "least", lambda: float(_off_diagonal(origin).min()))


def most_between(matrix: Array) -> float:
    """Largest entry of a square matrix of two rows or more that is not on the diagonal."""
    origin, factor = origin_of(matrix)
    return factor * known_fact(origin, "most", lambda: float(_off_diagonal(origin).max()))


def scaled(values: Array, factor: float) -> Array:
    """``values * factor`` that remembers where it comes from: its extremes are the scaled ones.

    Rounding keeps the order of products, so they are the same numbers as found anew.
    """
    origin, before = origin_of(values)
    result = np.asarray(values * factor)
    if before == 1.0:
        key = id(result)
        _origins[key] = weakref.ref(result, lambda _: _origins.pop(key, None)), origin, factor
    return result


def origin_of(values: Array) -> tuple[Array, float]:
    """The array that was scaled to this one and by what; itself and 1 if none was."""
    found = _origins.get(id(values))
    if found is not None and found[0]() is values:
        return found[1], found[2]
    return values, 1.0


def known_fact(values: Array, name: Hashable, find: Callable[[], Fact]) -> Fact:
    """``find()`` on the first call for this array and name, what it gave on later ones."""
    key = (id(values), name)
    found = _facts.get(key)
    if found is not None and found[0]() is values:
        known: Fact = found[1]
        return known
    fact = find()
    # an id is used again once its array is gone
    _facts[key] = weakref.ref(values, lambda _: _facts.pop(key, None)), fact
    return fact


def _off_diagonal(matrix: Array) -> Array:
    """[N - 1, N] entries off the diagonal; a view where the matrix lies row by row."""
    size = len(matrix)
    # without its first entry the flat matrix is N - 1 rows of N + 1 entries, the diagonal last in each
    return np.asarray(matrix.reshape(-1)[1:].reshape(size - 1, size + 1)[:, :-1])
