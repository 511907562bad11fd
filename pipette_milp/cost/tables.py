"""What a formulation reads: one configuration family on one cluster, as plain arrays.

A *family* is a configuration without its layer split and placement. Both are decided later:
``layers[j]`` for every virtual stage ``j`` (whole numbers summing to ``total_layers``) and
``node_of_cell[s, z]``, the node that hosts cell ``(s, z)`` (the tensor group of pipeline stage ``s``,
replica ``z``). A cell never crosses nodes (aligned groups), node ``n`` hosts at most ``slots[n]`` cells.

Where layers differ, GPUs differ or collectives inside a task depend on the placement, the linear figures here
are *lower estimates* and `CostTables.detail` holds what the durations and the memory really are
(`pipette_milp.cost.detail`). Bounds made from the linear figures stay valid (monotone lemma); times and fits
of plans are always taken in full (`pipette_milp.cost.placement`).

Where the GPUs of a node are not joined alike, ``gpu_level`` has what depends on which of them form a cell,
and everything else holds the best case of it: see `pipette_milp.cost.gpu_level`.

The page that fixes the mathematics: formulation, sections 2 and 5; of the costs: costs, sections 2 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipette_milp.arrays import Array, IntArray
from pipette_milp.cost.gpu_level import GpuLevel
from pipette_milp.schema.plan import Configuration
from pipette_milp.uplinks import Uplinks

if TYPE_CHECKING:
    from pipette_milp.cost.detail import Detail

__all__ = ["Array", "CostTables", "IntArray", "Ring"]


@dataclass(frozen=True)
class Ring:
    """A ring collective of the data-parallel group of every stage (all-reduce, or one half of it).

    Stage ``s`` sends ``bytes_per_layer * L_s + bytes_extra[s]`` over every directed edge of the ring of
    each of its tensor ranks, with ``L_s`` the layers of all its virtual stages. The ring factor
    ``2(d-1)/d`` (or ``(d-1)/d``) and the split over tensor ranks are included already.
    """

    bytes_per_layer: float
    bytes_extra: Array
    """[p]"""
    latency_s: float
    """Once per collective."""
    latency_per_node_step_s: float
    """Times (m - 1), m the number of distinct nodes of the group."""
    latency_per_local_step_s: float
    """Times (d - m)."""


@dataclass(frozen=True)
class CostTables:
    """Durations and memory of a family as functions of layer split and placement.

    Formulas, with ``L_s`` the layers of pipeline stage ``s``, ``l_j`` those of virtual stage ``j``:

    * forward of ``j``: ``forward_layer_s * l_j + forward_extra_s[j]``; backward and weight gradient alike
    * memory of stage ``s``: ``sum over its j of memory_layer_bytes[j] * l_j + memory_extra_bytes[s]``,
      at most ``memory_usable_bytes``
    * hop from node ``a`` to ``b != a``: ``latency_s[a, b] + max(hop_bytes / port_bytes_per_s,
      k_pair * tensor * hop_bytes / pair_bytes_per_s[a, b], k_out * tensor * hop_bytes /
      egress_bytes_per_s[a], k_in * tensor * hop_bytes / ingress_bytes_per_s[b])`` where ``k_pair, k_out,
      k_in`` count the replicas of this boundary and direction that go from ``a`` to ``b``, that leave ``a``,
      that enter ``b``; inside node ``a``: ``local_latency_s[a] + hop_bytes / local_bytes_per_s[a]``;
      plus ``hop_gather_s`` in both cases
    * a ring over ``m`` distinct nodes in order of first appearance by replica index:
      ``latency terms + max(U_s / local_bytes_per_s[n] if a node n has k_n >= 2 members,
      U_s / (k_n * port_bytes_per_s) if m >= 2, load / capacity over its edges, egress and ingress)``; load
      sums ``tensor * U`` over the rings of *all* stages that use the edge, leave the node, enter the node
    * embedding exchange (only if ``embedding_bytes > 0``): for every replica cells ``(0, z)`` and
      ``(p-1, z)`` send ``embedding_bytes`` per tensor rank to each other at once, all replicas together;
      the slowest flow counts, plus ``embedding_latency_s``; link latency as in a hop
    * a hop, ring or exchange that passes uplinks takes at least its load on the busiest of them over its
      capacity, latencies on top as above (`pipette_milp.uplinks`)
    """

    configuration: Configuration
    """The family's options; its own layer split is only the default one."""

    # layers
    total_layers: int
    min_layers: IntArray
    """[V]"""
    max_layers: IntArray
    """[V] what memory and the user allow for each alone."""
    forward_layer_s: float
    backward_layer_s: float
    weight_gradient_layer_s: float
    forward_extra_s: Array
    """[V] embedding, head and loss, host overhead of the task."""
    backward_extra_s: Array
    """[V]"""
    weight_gradient_extra_s: Array
    """[V]"""

    # memory
    memory_layer_bytes: Array
    """[V] device memory per layer of virtual stage j."""
    memory_extra_bytes: Array
    """[p]"""
    memory_usable_bytes: float

    # nodes and links
    slots: IntArray
    """[N] cells a node can host."""
    latency_s: Array
    """[N, N] one way, between nodes; the diagonal is unused."""
    pair_bytes_per_s: Array
    """[N, N] row = sender; the diagonal is unused."""
    egress_bytes_per_s: Array
    """[N]"""
    ingress_bytes_per_s: Array
    """[N]"""
    port_bytes_per_s: float
    """Network ceiling of one GPU; may be inf."""
    local_bytes_per_s: Array
    """[N] scale-up port of one GPU inside the node."""
    local_latency_s: Array
    """[N]"""

    # communication
    hop_bytes: float
    """What one tensor rank sends over one boundary for one micro-batch."""
    hop_gather_s: float
    """All-gather inside the receiving cell where the framework scatters hops; else 0."""
    sync: Ring
    """Gradient synchronisation; its time is 0 when data == 1."""
    sync_buckets: int
    """1, or the number of buckets of stage 0 when its reduction overlaps the backward."""
    gather: Ring
    """Parameter all-gather of the sharded optimiser; all bytes 0 where there is none."""
    gather_exposed: bool
    """False when it hides under the next forward."""
    embedding_bytes: float
    embedding_latency_s: float
    optimizer_layer_s: float
    optimizer_extra_s: Array
    """[p]"""
    fixed_s: float
    uplinks: Uplinks = field(default_factory=Uplinks)
    """Groups of nodes with a shared way out."""
    detail: Detail | None = None
    """None: the figures above are exact."""
    gpu_level: GpuLevel | None = None
    """None where the GPUs of every node are joined alike."""

    @property
    def pipeline(self) -> int:
        return self.configuration.pipeline

    @property
    def tensor(self) -> int:
        """GPUs of a cell: as many ranks send their part of a hop, and have a ring, at once."""
        return self.configuration.cell_size

    @property
    def data(self) -> int:
        return self.configuration.data

    @property
    def num_virtual_stages(self) -> int:
        return self.configuration.num_virtual_stages

    @property
    def num_nodes(self) -> int:
        return int(self.slots.shape[0])

    def boundary_cells(self, boundary: int) -> tuple[int, int]:
        """Pipeline stages that boundary ``j`` connects: virtual stages ``j`` and ``j + 1``."""
        return boundary % self.pipeline, (boundary + 1) % self.pipeline
