"""One family's models as a certificate names them: built the same way by who writes it and who checks it.

Rows are built here from the instance alone; a certificate only says which (path cuts by the durations that a
longest path is traced from, pairs of stages by their numbers) and what each is multiplied by. No row can be
wrong because a certificate says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipette_milp.arrays import Array, IntArray
from pipette_milp.certificates.proof import Path
from pipette_milp.cost.placement import stage_times
from pipette_milp.cost.tables import CostTables
from pipette_milp.simulator import PathCounts, path_counts
from pipette_milp.solvers.contents import Contents
from pipette_milp.solvers.evaluation import Evaluator
from pipette_milp.solvers.group_links import Group
from pipette_milp.solvers.groups import find_groups, one_group
from pipette_milp.solvers.highs import INFINITY
from pipette_milp.solvers.layer_branches import floor_bound_s
from pipette_milp.solvers.pattern_model import PatternModel
from pipette_milp.solvers.pods import Pods, add_pods, many_pods
from pipette_milp.solvers.split_model import SplitModel
from pipette_milp.solvers.time_unit import in_unit


class NamedPattern(PatternModel):
    """The pattern model, which remembers the rows of every pair of stages."""

    def __init__(self, *args: object, **options: object) -> None:
        self.rows_of_pair: dict[tuple[int, int], range] = {}
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def _add_pair(self, pair: object) -> None:
        before = self.num_rows
        super()._add_pair(pair)  # type: ignore[arg-type]
        self.rows_of_pair[self.met[-1]] = range(before, self.num_rows)


@dataclass(frozen=True)
class Frame:
    """A family in the unit of time of its models, and a target in it."""

    tables: CostTables
    evaluator: Evaluator
    target: float
    pods: Pods | None

    @classmethod
    def of(cls, tables: CostTables, target_s: float) -> Frame:
        """Of a family's own tables and a target in seconds."""
        unit_s = floor_bound_s(tables) or 1.0
        scaled = in_unit(tables, unit_s)
        labels = many_pods(tables)
        pods = None if labels is None else Pods.of(scaled, labels)
        return cls(scaled, Evaluator(tables), target_s / unit_s, pods)

    @cached_property
    def partitions(self) -> dict[str, list[Group]]:
        """The partitions of the nodes that a certificate may name."""
        return {"one": one_group(self.tables), "links": find_groups(self.tables)}

    def counts(self, path: Path) -> PathCounts:
        """How often each duration lies on the longest path for the durations named."""
        layers = np.array(path.layers)
        forward, backward, weight = stage_times(self.tables, layers)
        hops = np.array(path.hop_forward), np.array(path.hop_backward)
        return path_counts(self.evaluator.graph, forward, backward, *hops, path.end, weight)

    def split(self, low: IntArray, high: IntArray) -> SplitModel:
        """Without path cuts."""
        model = SplitModel(self.tables, self.target, low, high)
        if self.pods is not None:
            add_pods(model, self.pods)
        return model

    def patterns(
        self, low: IntArray, high: IntArray, groups: list[Group], possible: list[NDArray[np.int16]]
    ) -> NamedPattern:
        """Over these contents of every group, without path cuts and pairs."""
        listed = [
            Contents(held, self.tables.data, group.slots)
            for held, group in zip(possible, groups, strict=True)
        ]
        model = NamedPattern(self.tables, self.target, low, high, groups, listed, priced=True, elastic=True)
        if self.pods is not None:
            add_pods(model, self.pods)
        return model

    def cases(
        self, low: IntArray, high: IntArray, least_layers: tuple[int, ...]
    ) -> list[tuple[IntArray, IntArray]]:
        """Layer bounds of every case of a proof: the splits in which a stage is the first with so many
        layers."""
        if not least_layers:
            return [(low, high)]
        needed = np.array(least_layers, dtype=np.int64)
        cases = []
        for stage in range(len(low)):
            case_low, case_high = low.copy(), high.copy()
            case_low[stage] = max(low[stage], needed[stage])
            case_high[:stage] = np.minimum(high, needed - 1)[:stage]
            cases.append((case_low, case_high))
        return cases

    def cap(self, model: SplitModel) -> Array:
        """[columns] upper bounds that hold in every plan that takes at most the target.

        Every hop, synchronisation and end lies on a path of the iteration; what a ring needs for its bytes is
        at most its time.
        """
        upper = model.arrays().column_upper.copy()
        on_a_path = [
            [model.total, model.step_start, model.slowest_step, model.exchange],
            model.finish,
            model.hop_forward,
            model.hop_backward,
            model.sync,
            model.gather,
        ]
        for columns in on_a_path:
            upper[np.asarray(columns, dtype=np.int64)] = self.target
        tables = model.tables
        for s in range(tables.pipeline):
            shares = [model.exposed_share(tables.sync, s) * model.proportion(tables.sync)]
            if tables.gather_exposed:
                shares.append(model.proportion(tables.gather))
            share = max(shares)
            upper[int(model.load[s])] = self.target / share if share > 0 else INFINITY
        return upper


def significant(value: float, digits: int) -> float:
    """Rounded to so many significant digits."""
    if value == 0.0 or not math.isfinite(value):
        return value
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
