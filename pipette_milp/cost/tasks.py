"""Time of one micro-batch's tasks on one kind of GPU: compute and the collectives inside a cell."""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.cost import communication
from pipette_milp.cost.cells import CellLinks
from pipette_milp.cost.compute import ComputeModel, TaskTime
from pipette_milp.cost.measured_layers import MeasuredLayers
from pipette_milp.layer_shapes import LayerKind
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.profile import ProfiledKind

NOTHING = TaskTime(0.0, 0.0, 0.0)


def add(left: TaskTime, right: TaskTime) -> TaskTime:
    """Part by part."""
    return TaskTime(
        left.forward_s + right.forward_s,
        left.input_gradient_s + right.input_gradient_s,
        left.weight_gradient_s + right.weight_gradient_s,
    )


@dataclass(frozen=True)
class TaskCosts:
    """Tasks of a configuration on one kind of GPU. Seconds of one micro-batch."""

    configuration: Configuration
    compute: ComputeModel
    group: communication.TensorGroup
    links: CellLinks
    measured: MeasuredLayers | None = None
    """What a profile says of this kind of GPU; None: everything is analytic."""

    @property
    def tokens(self) -> float:
        """Of one rank: the context degree divides the sequence."""
        sequence = self.compute.transformer.model.sequence_length
        return self.configuration.micro_batch * sequence / self.configuration.context

    @property
    def activation_bytes(self) -> float:
        """``e * b * S * h`` of one rank before the tensor degree divides it."""
        return float(self.compute.element_bytes * self.tokens * self.compute.transformer.model.hidden_size)

    def layer(self, kind: LayerKind) -> TaskTime:
        """One layer with its exposed collectives."""
        return add(self.layer_compute(kind), self.layer_collectives(kind))

    def embedding(self) -> TaskTime:
        """Embedding with its collective."""
        c = self.configuration
        own = None if self.measured is None else self.measured.embedding(c)
        if own is None:
            own = self.compute.embedding(self.tokens, sequence_parallel=c.sequence_parallel, tensor=c.tensor)
        return add(own, self.embedding_collectives())

    def head(self) -> TaskTime:
        """Head and loss with their collectives."""
        own = None if self.measured is None else self.measured.head(self.configuration)
        if own is None:
            own = self.compute.head(self.tokens, self.configuration.tensor)
        return add(own, self.head_collectives())

    def layer_compute(self, kind: LayerKind) -> TaskTime:
        """One layer without collectives, or with those that a profile's time includes."""
        c = self.configuration
        measured = None if self.measured is None else self.measured.layer(kind, c)
        if measured is not None:
            return measured
        return self.compute.layer(
            self.tokens,
            c.tensor,
            sequence_parallel=c.sequence_parallel,
            recompute=c.recompute,
            kind=kind,
            expert=c.expert,
        )

    def layer_collectives(self, kind: LayerKind) -> TaskTime:
        """Exposed collectives of one layer: of the tensor group, and the ring of keys and values."""
        c = self.configuration
        if self._includes_collectives(kind):
            return self._context_ring()
        model = self.compute.transformer.model
        experts_bytes = None
        if kind == "moe" and model.moe is not None and c.sequence_parallel:
            experts_bytes = self.activation_bytes * model.moe.top_k
        tensor = self.group.layer(
            self.activation_bytes,
            self.layer_compute(kind),
            sequence_parallel=c.sequence_parallel,
            recompute=c.recompute,
            mlp_bytes=experts_bytes,
        )
        return add(tensor, self._context_ring())

    def embedding_collectives(self) -> TaskTime:
        """Exposed collective of the embedding."""
        if self._includes_collectives("embedding"):
            return NOTHING
        return self.group.embedding(
            self.activation_bytes, sequence_parallel=self.configuration.sequence_parallel
        )

    def head_collectives(self) -> TaskTime:
        """Exposed collectives of head and loss."""
        if self._includes_collectives("head"):
            return NOTHING
        return self.group.head(
            self.activation_bytes,
            4.0 * self.tokens,
            sequence_parallel=self.configuration.sequence_parallel,
        )

    def _includes_collectives(self, kind: ProfiledKind) -> bool:
        """Whether the time of a kind is a measured one with the tensor group's collectives in it."""
        return self.measured is not None and self.measured.find(kind, self.configuration).includes_tensor_comm

    def _context_ring(self) -> TaskTime:
        c, transformer = self.configuration, self.compute.transformer
        width = transformer.key_value_width(c.tensor)
        ring = communication.context_ring(
            c.context - 1,
            self.compute.element_bytes * self.tokens * width,
            self.links.context_bytes_per_s,
            self.links.context_step_s,
            self.compute.attention(self.tokens, c.tensor),
        )
        again = 0.0 if c.recompute == "none" else ring.forward_s
        return TaskTime(ring.forward_s, ring.input_gradient_s + again, 0.0)
