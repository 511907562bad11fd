"""Pods of a large cluster as pigeonholes: no column or row per pod, so thousands of nodes cost nothing.

Between pods links are slow. A stage whose ring shall stay inside a pod needs room for all its cells there,
and its neighbours in the pipeline then mostly lie elsewhere; a pipeline that shall stay inside a pod spreads
every ring over many pods. One of the two crosses, and the rows here say at least how often.

Any partition of the nodes gives a valid relaxation. Further variables beside those of the model they are
added to

    a[s]     the cells of stage s lie in several pods                      binary
    c[j]     pipelines whose boundary j crosses from pod to pod            in [0, d]
    i[j]     pipelines whose boundary j stays inside a node                in [0, d]
    m[j]     both stages of boundary j lie whole in the same pod           binary
    n        so do the first stage and the last                            binary

    sum of a >= p - stages that fit into pods as a whole;  U[s] >= bytes / best rate between pods where a[s],
    U[s] >= bytes / best rate + a[s] * what crossing adds for the fewest bytes
    d H[j] >= i[j] * inside + (d - i[j] - c[j]) * in a pod + c[j] * across
    sum of c over any L - 1 boundaries in a row >= d - pipelines of L stages that fit into pods
    c[j] >= d - room beside a whole stage, unless a[s] or m[j];  m over r boundaries in a row <= r - 1
    e >= across, unless n or a[0]; and unless n or a[p-1]

The last rows are those of the embedding exchange between the first stage and the last: where one of them lies
whole in a pod, all pairs can be in this pod only if the other lies whole in it too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.tables import CostTables
from pipette_milp.solvers.content_columns import ContentColumns
from pipette_milp.solvers.groups import components_of
from pipette_milp.solvers.link_extremes import known_fact, origin_of
from pipette_milp.solvers.relaxed import best_embedding_s, crossing_s, local_s
from pipette_milp.solvers.split_model import SplitModel

MANY_PODS = 6
"""From here on pods are told apart by pigeonholes instead of a group of columns each: a relaxation with 4
groups takes seconds, with 16 the better part of a minute."""

MANY_NODES = 48


def many_pods(tables: CostTables) -> IntArray | None:
    """[N] pod of every node; None where there are fewer than `MANY_PODS` or `MANY_NODES`."""
    labels = components_of(tables)
    return labels if len(labels) >= MANY_NODES and int(labels.max()) + 1 >= MANY_PODS else None


@dataclass(frozen=True)
class Pods:
    """Best figures between pods, and what fits into them."""

    cells: IntArray
    """[G] places of each pod."""
    bytes_per_s: float
    """Best link from one pod to another, cards included."""
    ring_bytes_per_s: float
    """Best rate of a ring over several pods: it leaves one and comes back."""
    latency_s: float
    """Least latency between pods."""

    @classmethod
    def of(cls, tables: CostTables, labels: IntArray) -> Pods | None:
        """From the pod [N] of every node; None if there is one pod only."""
        kept, pod = np.unique(labels, return_inverse=True)
        if len(kept) < 2:
            return None
        arrays = (tables.pair_bytes_per_s, tables.egress_bytes_per_s, tables.ingress_bytes_per_s)
        (pair, factor), (egress, other), (ingress, third) = (origin_of(array) for array in arrays)
        if not factor == other == third:
            (pair, egress, ingress), factor = arrays, 1.0
        name = (pod.tobytes(), egress.tobytes(), ingress.tobytes())
        hop_rate, ring_rate = known_fact(pair, ("pods", name), lambda: _rates(pair, egress, ingress, pod))
        latency, scale = origin_of(tables.latency_s)
        apart = ("apart", pod.tobytes())
        least = known_fact(latency, apart, lambda: float(latency[pod[:, None] != pod[None, :]].min()))
        cells = np.bincount(pod, weights=tables.slots).astype(np.int64)
        return cls(cells, factor * hop_rate, factor * ring_rate, scale * least)

    def hop_s(self, tables: CostTables, sent: float) -> float:
        """The best hop from pod to pod; ``sent`` bytes per tensor rank."""
        return self.latency_s + max(sent / tables.port_bytes_per_s, tables.tensor * sent / self.bytes_per_s)

    def fitting(self, cells: int) -> int:
        """How many sets of so many cells fit, each in one pod."""
        return int((self.cells // cells).sum())


def _rates(pair: Array, egress: Array, ingress: Array, pod: IntArray) -> tuple[float, float]:
    """bytes/s of the best link between pods, and of the best pod's way out and back, whichever is slower."""
    rate = np.minimum(np.minimum(pair, egress[:, None]), ingress[None, :])
    rate[pod[:, None] == pod[None, :]] = 0.0
    out, back = np.zeros(int(pod.max()) + 1), np.zeros(int(pod.max()) + 1)
    np.maximum.at(out, pod, rate.max(axis=1))
    np.maximum.at(back, pod, rate.max(axis=0))
    return float(rate.max()), float(np.minimum(out, back).max())


@dataclass(frozen=True)
class PodColumns:
    """What a model got by `add_pods`."""

    across: IntArray | None
    """[p] columns a; None where there are no rings."""
    crossing: dict[int, int]
    """Column c of every boundary that has one."""

    def read(self, x: Array, data: int) -> PodShape:
        """Where a solution crosses borders of pods."""
        across = [] if self.across is None else list(x[self.across] > 0.5)
        return PodShape(
            tuple(bool(one) for one in across),
            tuple(j for j, column in self.crossing.items() if x[column] > 0.5 * data),
        )


@dataclass(frozen=True)
class PodShape:
    """Which stages lie in several pods, and the boundaries that most pipelines cross from pod to pod."""

    across: tuple[bool, ...]
    """[p], empty where there are no rings."""
    crossed: tuple[int, ...]


def add_pods(model: SplitModel, pods: Pods) -> PodColumns:
    """The rows above, into a model that was just built."""
    tables = model.tables
    across = _rings(model, pods) if model.load_rows else None
    crossing = {}
    for j in range(min(tables.num_virtual_stages - 1, tables.pipeline)):
        source, target = tables.boundary_cells(j)
        if source != target:
            crossing[j] = _hops(model, pods, j)
    _windows(model, pods, crossing)
    if across is not None and int(pods.cells.max()) >= tables.data:
        _whole_stages(model, pods, crossing, across)
        if tables.embedding_bytes > 0 and tables.pipeline > 1:
            _embedding(model, pods, across)
    return PodColumns(across, crossing)


def _rings(model: SplitModel, pods: Pods) -> IntArray:
    """Columns a."""
    tables, base = model.tables, model.base
    across = model.columns(tables.pipeline, 0.0, 1.0, integer=True)
    fewest = max(0, tables.pipeline - pods.fitting(tables.data))
    model.row([(int(a), 1.0) for a in across], at_least=float(fewest))
    per_byte = tables.tensor / pods.ring_bytes_per_s
    own = model.across_rate
    if tables.data <= model.best.most_slots:  # all of it may lie inside one node
        own = min(own, 1.0 / model.best.local_bytes_per_s)
    further = max(0.0, per_byte - own)
    for s, a in enumerate(across):
        # all bytes at the rate of any ring, and what crossing adds for the least bytes there can be
        least = float(base.bytes_per_layer * model.low_of_stage[s] + base.bytes_extra[s])
        layers = [(int(j), -own * base.bytes_per_layer) for j in model.layers[s :: tables.pipeline]]
        model.row(
            [(int(model.load[s]), 1.0), (int(a), -further * least), *layers],
            at_least=own * float(base.bytes_extra[s]),
        )
        model.load_row(s, per_byte, (s,), unless=[(int(a), 1.0)])
    return across


def _hops(model: SplitModel, pods: Pods, j: int) -> int:
    """Column c of a boundary."""
    tables, data = model.tables, float(model.tables.data)
    source, target = tables.boundary_cells(j)
    crossing = model.column(0.0, data)
    inside = model.column(0.0, data if model.best.most_slots > 1 else 0.0)
    model.row([(crossing, 1.0), (inside, 1.0)], at_most=data)
    if isinstance(model, ContentColumns):
        model.content_row(
            [(inside, -1.0)],
            (source, target),
            lambda _, one, other: np.minimum(one, other).astype(float),
            at_least=0.0,
        )
    leave = crossing_s(tables, model.best, tables.hop_bytes)
    stay = local_s(model.best, tables.hop_bytes)
    further = max(0.0, pods.hop_s(tables, tables.hop_bytes) - leave)
    for hop in (model.hop_forward[j], model.hop_backward[j]):
        model.row(
            [(int(hop), data), (inside, leave - stay), (crossing, -further)],
            at_least=data * (leave + tables.hop_gather_s),
        )
    return crossing


def _windows(model: SplitModel, pods: Pods, crossing: dict[int, int]) -> None:
    """Pipelines of L stages in a row that no pod has room for."""
    tables = model.tables
    before = 0
    for length in range(2, tables.pipeline + 1):
        needed = tables.data - pods.fitting(length)
        if needed <= before:
            continue  # a shorter window says as much
        before = needed
        for first in range(tables.pipeline - length + 1):
            boundaries = range(first, first + length - 1)
            model.row([(crossing[j], 1.0) for j in boundaries], at_least=float(needed))


def _whole_stages(model: SplitModel, pods: Pods, crossing: dict[int, int], across: IntArray) -> None:
    """A stage whole in a pod leaves little room beside it for its neighbours' cells."""
    tables, data = model.tables, model.tables.data
    largest = int(pods.cells.max())
    together = largest // data
    apart = float(data - min(data, largest - data))
    same: dict[int, int] = {}
    for j, column in crossing.items():
        one, other = (int(across[s]) for s in tables.boundary_cells(j))
        met: list[tuple[int, float]] = []
        if together > 1:
            same[j] = model.column(0.0, 1.0, integer=True)
            met = [(same[j], 1.0)]
            for a in (one, other):
                model.row([(same[j], 1.0), (a, 1.0)], at_most=1.0)
        for a in (one, other):
            terms = [(a, apart), *[(m, apart) for m, _ in met]]
            model.row([(column, 1.0), *terms], at_least=apart)
        both = [(one, float(data)), (other, float(data)), *[(m, float(data)) for m, _ in met]]
        model.row([(column, 1.0), *both], at_least=float(data))
    for first in range(tables.pipeline - together):
        window = [same[j] for j in range(first, first + together) if j in same]
        if len(window) == together:
            model.row([(m, 1.0) for m in window], at_most=float(together - 1))


def _embedding(model: SplitModel, pods: Pods, across: IntArray) -> None:
    tables = model.tables
    floor = best_embedding_s(tables, model.best)
    more = pods.hop_s(tables, tables.embedding_bytes) + tables.embedding_latency_s - floor
    if more <= 0:
        return
    ends = [int(across[0]), int(across[-1])]
    unless: list[tuple[int, float]] = []
    if int(pods.cells.max()) >= 2 * tables.data:
        together = model.column(0.0, 1.0, integer=True)
        unless = [(together, more)]
        for a in ends:
            model.row([(together, 1.0), (a, 1.0)], at_most=1.0)
    for a in ends:
        model.row([(model.exchange, 1.0), (a, more), *unless], at_least=floor + more)
