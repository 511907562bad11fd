"""What a formulation is built from and what is read off it; shared by the back ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pipette_milp.cost.tables import CostTables
from pipette_milp.errors import InputError
from pipette_milp.formulations.coefficients import Family
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.reduction import Excluded, excluded_links

CONSTRAINT_FAMILIES = (
    "one_family",
    "cell_on_one_node",
    "node_slots",
    "layer_split",
    "memory",
    "hop_arcs",
    "hop_time",
    "hop_sharing",
    "ring_members",
    "ring_arcs",
    "ring_order",
    "ring_time",
    "ring_sharing",
    "ring_uplinks",
    "sync_overlap",
    "embedding_arcs",
    "embedding_time",
    "step_time",
    "path_cuts",
    "family_bound",
    "cutoff",
    "replica_symmetry",
    "node_symmetry",
)
"""Names of the constraint families, the same in both back ends; each module documents them."""


def refuse_detail(families: Sequence[CostTables], who: str) -> None:
    """Refuse families whose tables are lower estimates only.

    Raises:
        InputError: naming what is not expressed.
    """
    reasons = dict.fromkeys(r for tables in families if tables.detail for r in tables.detail.reasons)
    if any(tables.gpu_level is not None for tables in families):
        reasons["links that differ inside a node (scale_up of kind mesh)"] = None
    if reasons:
        raise InputError(f"not supported by {who}: {', '.join(reasons)}; use --solver auto")


@dataclass(frozen=True)
class ModelPlan:
    """A point of the joint model: which family, its layer split, its placement."""

    family: int
    layers: tuple[int, ...]
    """[V]"""
    node_of_cell: tuple[tuple[int, ...], ...]
    """[p][d]"""


@dataclass(frozen=True)
class JointProblem:
    """Families to choose from and all rows found so far.

    Raises
    ------
    ValueError
        Lists of different lengths or a reference that is not positive.
    InputError
        A family with costs that no row expresses (`CostTables.detail`).
    """

    tables: tuple[CostTables, ...]
    scales: tuple[float, ...]
    """Objective seconds per second of each family (1 where all have the same global batch)."""
    reference_s: float
    """Size of the objective, from which each back end takes its unit of time."""
    cuts: tuple[PathCut, ...] = ()
    bounds_s: tuple[float, ...] | None = None
    """Known lower bound of each family, scaled; None for none."""
    cutoff_s: float | None = None
    """Only plans with an objective of at most this are wanted; None for all."""
    start: ModelPlan | None = None
    """Where a solver may start."""
    families: tuple[Family, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.tables or len(self.tables) != len(self.scales):
            raise ValueError(f"{len(self.tables)} families need as many scales, not {len(self.scales)}")
        if self.bounds_s is not None and len(self.bounds_s) != len(self.tables):
            raise ValueError(f"{len(self.tables)} families need as many bounds, not {len(self.bounds_s)}")
        if not (np.isfinite(self.reference_s) and self.reference_s > 0):
            raise ValueError(f"reference_s must be positive, not {self.reference_s}")
        refuse_detail(self.tables, "the joint models")
        object.__setattr__(self, "families", tuple(Family(tables) for tables in self.tables))

    def cuts_of(self, family: int) -> list[PathCut]:
        """The path cuts of one family."""
        return [cut for cut in self.cuts if cut.family == family]

    @cached_property
    def excluded(self) -> tuple[Excluded, ...]:
        """Links of each family that the cutoff rules out."""
        return tuple(
            excluded_links(
                family,
                self.cuts_of(index),
                None if self.cutoff_s is None else self.cutoff_s / self.scales[index] * (1 + 1e-9),
            )
            for index, family in enumerate(self.families)
        )
