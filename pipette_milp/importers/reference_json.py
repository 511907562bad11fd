"""Bandwidth files of the published Pipette code (its mpigraph/ and strategy/nccl-test/ folders).

Two forms. From mpiGraph: ``{"0": {"gpus": [...], "bandwidth": [[...]]}, "1": {...}}`` where "0" is what
was received (row = receiver) and "1" what was sent (row = sender), in MiB/s, averaged over the rank pairs
of two hosts, and the diagonal holds the largest figure of its row. From nccl-tests: ``{"gpus": [...],
"bandwidth": [[...]]}`` in GB/s, made symmetric. ``gpus`` are names of hosts. Neither says how many ranks
ran on each host, by which the figures differ from those of a node pair, so that has to be asked for.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.facts import PairwiseBandwidth, pairwise
from pipette_milp.importers.jsontext import at, load, number
from pipette_milp.importers.mpigraph import SEND_RECEIVE_TOLERANCE
from pipette_milp.units import Dimension, unit_factor

KIND = "pipette-json"

# No node pair of today attains a TB/s and none is slower than 1 MB/s: tells GB/s from MiB/s when a file
# mixes them up.
_LARGEST_GB_PER_S = 2000.0
_SMALLEST_MIB_PER_S = 100.0


def detect(text: str) -> float:
    """Confidence in 0..1 that this is one of the two forms."""
    if not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return 0.0
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return 0.6 if '"gpus"' in text and '"bandwidth"' in text else 0.0
    if not isinstance(data, dict):
        return 0.0
    inner = data.get("1", data.get("0", data))
    return 0.95 if isinstance(inner, dict) and {"gpus", "bandwidth"} <= set(inner) else 0.0


def parse(text: str, source: str, unit: str | None = None) -> PairwiseBandwidth:
    """The sending matrix, checked against the receiving one where the file has both.

    Args:
        unit: of the figures; default MiB/s with "0" and "1", else GB/s, as the reference code writes them.

    Raises:
        InputError: another shape, a damaged matrix, or the two matrices contradict each other by more than
            5 %.
    """
    data = load(text, source)
    if not isinstance(data, dict):
        raise InputError(Problem(source, "expected an object"))
    if "gpus" in data:
        names, values = _matrix(data, "", source)
        chosen = unit or "GB/s"
        if unit is None and np.nanmedian(values) > _LARGEST_GB_PER_S:
            raise InputError(
                Problem(
                    at(source, "bandwidth"),
                    f"the median of {np.nanmedian(values):g} cannot be GB/s: say --unit",
                )
            )
        if not np.allclose(values, values.T, rtol=1e-6, equal_nan=True) and unit is None:
            raise InputError(
                Problem(
                    at(source, "bandwidth"),
                    "is not symmetric, as the nccl-tests form is: say --unit to use it",
                )
            )
    else:
        unknown = sorted(set(data) - {"0", "1"})
        if "1" not in data or unknown:
            raise InputError(
                Problem(source, 'expected the keys "0" (received) and "1" (sent), or gpus and bandwidth')
            )
        names, values = _matrix(data["1"], '["1"]', source)
        chosen = unit or "MiB/s"
        if unit is None and np.nanmedian(values) < _SMALLEST_MIB_PER_S:
            raise InputError(
                Problem(
                    at(source, '["1"].bandwidth'),
                    f"the median of {np.nanmedian(values):g} cannot be MiB/s: say --unit",
                )
            )
        if "0" in data:
            _compare(names, values, *_matrix(data["0"], '["0"]', source), source)
    try:
        factor = unit_factor(chosen, Dimension.BANDWIDTH)
    except ValueError as error:
        raise InputError(f"--unit: {error}") from None
    return pairwise(
        source,
        names,
        values,
        factor,
        chosen,
        measures=None,
        simultaneous_flows=None,
        directed="gpus" not in data,
    )


def _matrix(data: Any, path: str, source: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names and figures, nan on the diagonal."""
    if not isinstance(data, dict) or set(data) != {"gpus", "bandwidth"}:
        raise InputError(Problem(at(source, path), "expected an object with gpus and bandwidth"))
    names = data["gpus"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InputError(Problem(at(source, f"{path}.gpus"), "expected a list of names"))
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(Problem(at(source, f"{path}.gpus"), f"{', '.join(repeated)} occurs more than once"))
    rows = data["bandwidth"]
    n = len(names)
    if (
        not isinstance(rows, list)
        or len(rows) != n
        or any(not isinstance(row, list) or len(row) != n for row in rows)
    ):
        raise InputError(Problem(at(source, f"{path}.bandwidth"), f"expected {n} rows of {n} figures"))
    values = np.full((n, n), np.nan)
    for a, row in enumerate(rows):
        for b, value in enumerate(row):
            if a == b or value is None:
                continue
            place = at(source, f"{path}.bandwidth[{a}][{b}]")
            values[a, b] = number(value, place)
            if values[a, b] <= 0:
                raise InputError(Problem(place, f"expected more than 0, got {value}"))
    if n > 1 and np.all(np.isnan(values)):
        raise InputError(Problem(at(source, f"{path}.bandwidth"), "holds no figure off the diagonal"))
    return tuple(names), values


def _compare(
    names: tuple[str, ...],
    sent: NDArray[np.float64],
    other_names: tuple[str, ...],
    received: NDArray[np.float64],
    source: str,
) -> None:
    if set(other_names) != set(names):
        raise InputError(Problem(source, '"0" and "1" name other hosts'))
    order = [other_names.index(name) for name in names]
    arrived = received[np.ix_(order, order)].T
    difference = np.abs(sent - arrived) / np.maximum(sent, arrived)
    wrong = [
        Problem(
            at(source, f'["1"].bandwidth[{a}][{b}]'),
            f"{names[a]} sent {sent[a, b]:g} to {names[b]}, which received {arrived[a, b]:g}: more than "
            f"{SEND_RECEIVE_TOLERANCE:.0%} apart",
        )
        for a, b in np.argwhere(difference > SEND_RECEIVE_TOLERANCE)
    ]
    if wrong:
        raise InputError(wrong[:10])
