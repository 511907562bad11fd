"""What the network importers find out, as plain frozen values: bandwidth between pairs of nodes.

Everything is SI. ``nan`` means "not measured", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipette_milp.errors import InputError, Problem

Array = NDArray[np.float64]

Measures = Literal["node_pair", "flow"]


@dataclass(frozen=True)
class PairwiseBandwidth:
    """Attained bandwidth between nodes, one figure per ordered pair.

    ``measures`` and ``simultaneous_flows`` say what one figure stands for (contract: "cluster.network"):
    ``node_pair`` is all cards of the pair together; ``flow`` is one of ``simultaneous_flows`` that ran at
    once, so the pair reaches their sum. Either is None where the source does not say, and then has to be
    asked for.
    """

    source: str
    names: tuple[str, ...]
    values: Array
    """[n, n] row = sender, column = receiver; bytes/s, or the source's own unit if ``unit`` is None;
    diagonal nan."""
    unit: str | None
    """Unit the source uses, None = not stated: ``values`` are then not converted."""
    measures: Measures | None
    simultaneous_flows: int | None
    directed: bool = True
    """False: one figure per pair, filled into both directions."""
    notes: tuple[tuple[str, str, str], ...] = ()
    """(node, node, remark) where the source remarks on a pair."""
    warnings: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.names)
        if self.values.shape != (n, n):
            raise ValueError(f"expected a {n} x {n} matrix, got {self.values.shape}")
        self.values.setflags(write=False)

    @property
    def unknown_pairs(self) -> tuple[tuple[str, str], ...]:
        """Ordered pairs that were not measured."""
        missing = np.isnan(self.values)
        np.fill_diagonal(missing, False)
        return tuple((self.names[a], self.names[b]) for a, b in np.argwhere(missing))


def pairwise(
    source: str,
    names: tuple[str, ...],
    figures: Array,
    factor: float | None,
    unit: str | None,
    **said: object,
) -> PairwiseBandwidth:
    """A `PairwiseBandwidth` from figures in a unit; the diagonal is dropped.

    Args:
        figures: [n, n] in ``unit``, nan = not measured.
        factor: from ``unit`` to bytes/s, None = unit unknown.

    Raises:
        InputError: a figure off the diagonal is zero or negative, which no attained bandwidth can be.
    """
    values = np.array(figures, dtype=np.float64) * (1.0 if factor is None else factor)
    np.fill_diagonal(values, np.nan)
    wrong = [
        Problem(
            source,
            f"{names[a]} -> {names[b]}: expected more than 0, got {figures[a, b]:g} (leave it blank "
            f"if it was not measured)",
        )
        for a, b in np.argwhere(values <= 0)
    ]
    if wrong:
        raise InputError(wrong)
    return PairwiseBandwidth(source, names, values, unit, **said)  # type: ignore[arg-type]
