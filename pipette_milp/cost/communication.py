"""Bytes and latencies of every collective and hop, as frameworks and NCCL make them.

Written from Megatron-LM's ``tensor_parallel/layers.py``, ``mappings.py``, ``cross_entropy.py``,
``schedules.py::get_tensor_shapes`` and NCCL's ``tuning.cc`` (costs, sections 3 and 4).
``V = e * b * S * h`` is the activation of one micro-batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array
from pipette_milp.cost.compute import TaskTime
from pipette_milp.cost.tables import Ring
from pipette_milp.schema.plan import DataSharding

COLLECTIVE_BASE_S = 8.4e-6
"""Start of a ring collective, simple protocol, seconds (NCCL ``tuning.cc``, baseLatencies)."""
LOCAL_STEP_S = 3.4e-6
"""One ring step inside a node, simple protocol, seconds (NCCL ``tuning.cc``, hwLatencies, NVLink)."""
NODE_STEP_S = 14e-6
"""One ring step between nodes, simple protocol, seconds (NCCL ``tuning.cc``, hwLatencies, network)."""
BUCKET_MIN_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_REPLICA = 1e6
"""Megatron-LM's bucket of overlapped gradient reduction: max(40e6, 1e6 * data degree) parameters."""


def ring_latency_s(ranks: int, passes: int, nodes: int = 1) -> float:
    """Latency of a ring collective; ``passes`` is 2 for all-reduce, 1 for one half of it."""
    return COLLECTIVE_BASE_S + passes * ((ranks - nodes) * LOCAL_STEP_S + (nodes - 1) * NODE_STEP_S)


@dataclass(frozen=True)
class TensorGroup:
    """Collectives of one tensor group, inside a node with a scale-up switch or over whole nodes.

    Every rank has its own port, so groups on one node do not slow each other.
    """

    ranks: int
    bytes_per_s: float
    hidden_fraction: float
    """Share of the exposed time that chunked overlap hides (``overlap.tensor``)."""
    asynchronous: bool = True
    """Whether the backward's collectives run under the weight gradient's products."""
    nodes: int = 1
    """Nodes it spans; more than one only with tensor degrees above the GPUs of a node."""

    def all_reduce_s(self, payload_bytes: float) -> float:
        """2(t-1)/t of the payload through each port."""
        if self.ranks == 1:
            return 0.0
        share = 2 * (self.ranks - 1) / self.ranks
        return ring_latency_s(self.ranks, 2, self.nodes) + share * payload_bytes / self.bytes_per_s

    def all_gather_s(self, payload_bytes: float) -> float:
        """(t-1)/t of the payload through each port; a reduce-scatter takes as long."""
        if self.ranks == 1:
            return 0.0
        share = (self.ranks - 1) / self.ranks
        return ring_latency_s(self.ranks, 1, self.nodes) + share * payload_bytes / self.bytes_per_s

    def exposed_s(self, collective_s: float, under_s: float = 0.0) -> float:
        """What is left of a collective that runs under ``under_s`` of compute."""
        return max(0.0, collective_s - under_s) * (1.0 - self.hidden_fraction)

    def layer(
        self,
        activation_bytes: float,
        compute: TaskTime,
        *,
        sequence_parallel: bool,
        recompute: str,
        mlp_bytes: float | None = None,
    ) -> TaskTime:
        """Exposed collectives of one layer and micro-batch; ``compute`` is the layer's compute time.

        A hidden collective runs under the products of one of the layer's two blocks, attention or MLP: half
        of those of the weight gradient, which are as large as those of the input's. ``mlp_bytes`` is what the
        second block gathers where that is not the activation itself: experts see a token once per choice.
        """
        under = compute.weight_gradient_s / 2 if self.asynchronous else 0.0
        payloads = (activation_bytes, activation_bytes if mlp_bytes is None else mlp_bytes)
        forward = backward = weight = 0.0
        for payload in payloads:
            if sequence_parallel:
                gather = self.all_gather_s(payload)
                forward += 2 * self.exposed_s(gather)
                backward += self.exposed_s(gather) + self.exposed_s(gather, under)
                weight += self.exposed_s(gather, under)
            else:
                reduce = self.all_reduce_s(payload)
                forward += self.exposed_s(reduce)
                weight += self.exposed_s(reduce, under)
        again = forward if recompute == "full" else 0.0
        return TaskTime(forward, backward + again, weight)

    def embedding(self, activation_bytes: float, *, sequence_parallel: bool) -> TaskTime:
        """One all-reduce forward (reduce-scatter with sequence parallel, gathered back in backward)."""
        if sequence_parallel:
            half = self.exposed_s(self.all_gather_s(activation_bytes))
            return TaskTime(half, 0.0, half)
        return TaskTime(self.exposed_s(self.all_reduce_s(activation_bytes)), 0.0, 0.0)

    def head(self, activation_bytes: float, loss_bytes: float, *, sequence_parallel: bool) -> TaskTime:
        """Head input gathered, its gradient reduced, three all-reduces of the loss (4 bytes a token)."""
        loss = 3 * self.exposed_s(self.all_reduce_s(loss_bytes))
        if sequence_parallel:
            half = self.exposed_s(self.all_gather_s(activation_bytes))
            return TaskTime(half + loss, half, half)
        return TaskTime(loss, self.exposed_s(self.all_reduce_s(activation_bytes)), 0.0)


def context_ring(
    steps: int, sent_bytes: float, bytes_per_s: float, latency_s: float, attention: tuple[float, float]
) -> TaskTime:
    """Exposed ring of keys and values of one layer: ``steps`` of ``sent_bytes`` forward, twice that backward.

    Each step runs under the attention over the block that came before; ``attention`` is the whole of it,
    forward and backward (costs, section 3).
    """
    if steps == 0:
        return TaskTime(0.0, 0.0, 0.0)
    forward, backward = (
        steps * max(0.0, latency_s + passes * sent_bytes / bytes_per_s - under_s / (steps + 1))
        for passes, under_s in zip((1, 2), attention, strict=True)
    )
    return TaskTime(forward, backward, 0.0)


def hop_bytes(activation_bytes: float, tensor: int, *, split: bool) -> float:
    """What each tensor rank sends over a boundary; ``split``: the sequence (or hidden) is divided.

    Without sequence parallel ``tensor`` identical copies cross the link.
    """
    return activation_bytes / tensor if split else activation_bytes


@dataclass(frozen=True)
class ReplicaGroup:
    """Ranks that hold the same parameters of a stage: ``data`` replicas of ``context`` ranks each.

    The tables see ``tensor * context`` ranks of a cell, each with a ring of its own, where NCCL makes
    ``tensor`` rings that enter a cell once and pass its ``context`` members. ``split`` divides the bytes
    accordingly: loads and network ports come out the same (the scale-up ports of a cell's members are seen
    to by `Detail.local_ring_share`). On one node only these ports count, so nothing is split there.
    """

    data: int
    context: int = 1
    split: float = 1.0
    """Members of a ring that share a node's ports (`CellLinks.ring_share`)."""
    nodes: int = 1
    """Nodes of a cell that a ring passes."""

    @property
    def ranks(self) -> int:
        return self.data * self.context

    def ring(self, passes: int, element_bytes: float, layer_parameters: float, extra: Array) -> Ring:
        """All-reduce (2 passes), reduce-scatter or all-gather (1), nothing (0) of what a stage holds."""
        if self.data == 1:
            passes = 0
        factor = passes * (self.ranks - 1) / self.ranks * element_bytes / self.split
        inside = self.data * (self.context - self.nodes) * LOCAL_STEP_S
        between = self.data * (self.nodes - 1) * NODE_STEP_S
        return Ring(
            bytes_per_layer=factor * layer_parameters,
            bytes_extra=factor * np.asarray(extra, dtype=float),
            latency_s=COLLECTIVE_BASE_S + passes * (inside + between) if passes else 0.0,
            latency_per_node_step_s=passes * NODE_STEP_S,
            latency_per_local_step_s=passes * LOCAL_STEP_S,
        )


def sync_passes(sharding: DataSharding) -> tuple[int, int]:
    """Passes over the gradients after the last backward, and over the parameters after the step.

    With sharded gradients or parameters the gradients are reduced in every backward, with sharded parameters
    these are gathered in every pass.
    """
    return {"none": (2, 0), "optimizer": (1, 1), "gradients": (0, 1), "parameters": (0, 0)}[sharding]


def bucket_count(parameters: float, data: int) -> int:
    """Buckets of an overlapped gradient reduction (Megatron-LM ``distributed_data_parallel.py``)."""
    size = max(BUCKET_MIN_PARAMETERS, BUCKET_PARAMETERS_PER_REPLICA * data)
    return max(1, math.ceil(parameters / size))
