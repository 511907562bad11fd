"""Compute time of one layer, the embedding and the head: a roofline over products and element-wise kernels.

Every product is timed by its shape (`products`), element-wise kernels by the bytes they move, and a layer
lasts at least as long as the host needs to issue its kernels. Forward, gradient of the input and gradient
of the weights are kept apart; recompute is part of the backward. All fitted figures are `CostConstants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pipette_milp.cluster import GpuType
from pipette_milp.cost.products import Products
from pipette_milp.layer_shapes import LayerKind, layer_matrices, query_width, value_width
from pipette_milp.schema.constants import CostConstants, FrameworkProfile
from pipette_milp.schema.training import TrainingSection
from pipette_milp.transformer import Transformer

FLASH_BACKWARD_FLOP = 2.5
"""Backward over forward operations of fused attention: five products for two (arXiv 2205.14135)."""
ELEMENTWISE_KERNELS = 20
"""Kernels of a layer's forward besides its products: two norms, two residual additions, activation function,
position embedding, splitting of heads, biases, casts. Nominal: ``launch_s`` is fitted on top of it."""
SCORE_KERNELS = 4
"""More of them without fused attention: scale and mask, softmax, dropout, transposition."""

ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
"""Bytes of an activation element by training precision; fp8 is what products read, the rest stays bf16."""


@dataclass(frozen=True)
class TaskTime:
    """Seconds of forward, gradient of the input (recompute included) and gradient of the weights."""

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float

    @property
    def backward_s(self) -> float:
        return self.input_gradient_s + self.weight_gradient_s


@dataclass(frozen=True)
class ComputeModel:
    """Compute times on one GPU type for one set of training options.

    ``tokens`` of a task are micro-batch times sequence length over the context degree.
    """

    transformer: Transformer
    gpu: GpuType
    training: TrainingSection
    constants: CostConstants
    profile: FrameworkProfile

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.training.precision]

    @cached_property
    def products(self) -> Products:
        return Products(self.gpu, self.training.precision, self.element_bytes, self.constants)

    @property
    def host_overhead_per_task_s(self) -> float:
        """Host time exposed once per forward or backward of a stage."""
        return self.profile.host_overhead_per_task_s

    def layer(
        self,
        tokens: float,
        tensor: int,
        *,
        sequence_parallel: bool,
        recompute: str,
        kind: LayerKind = "dense",
        expert: int = 1,
    ) -> TaskTime:
        """One layer of a kind, one micro-batch, without communication.

        ``tokens`` are those of one rank (context degree divided out); scores still span the whole sequence.
        """
        shapes = layer_matrices(self.transformer.model, tensor, kind, expert)
        product = self.products.product_s
        forward = sum(product(m.tokens * tokens, m.inputs, m.outputs, m.count) for m in shapes)
        input_gradient = sum(product(m.tokens * tokens, m.outputs, m.inputs, m.count) for m in shapes)
        weight_gradient = sum(product(m.inputs, m.tokens * tokens, m.outputs, m.count) for m in shapes)
        weight_gradient += self._accumulation_s(sum(m.parameters for m in shapes))
        core, core_backward, scores = self._attention(tokens, tensor)
        traffic = self._elementwise_s(tokens, tensor, sequence_parallel=sequence_parallel, kind=kind)
        # scores and values have no weights: both of their gradients belong to the input's part
        forward += core + scores + traffic
        input_gradient += core_backward + 2 * (scores + traffic)

        issue = self.profile.launch_s * (len(shapes) + self._other_kernels)
        forward = max(forward, issue)
        weight_gradient = max(weight_gradient, self.profile.launch_s * len(shapes))
        input_gradient = max(input_gradient, issue)
        again = {"none": 0.0, "selective": core + scores, "full": forward}[recompute]
        scale = self.constants.time_scale
        return TaskTime(scale * forward, scale * (input_gradient + again), scale * weight_gradient)

    def attention(self, tokens: float, tensor: int) -> tuple[float, float]:
        """Seconds of scores and values alone, forward and backward: what a ring of keys and values runs
        under."""
        forward, backward, scores = self._attention(tokens, tensor)
        scale = self.constants.time_scale
        return scale * (forward + scores), scale * (backward + 2 * scores)

    def embedding(self, tokens: float, *, sequence_parallel: bool, tensor: int) -> TaskTime:
        """Look-up, addition of positions and dropout."""
        hidden = self.transformer.model.hidden_size / (tensor if sequence_parallel else 1)
        moved = self.products.traffic_s(3.0 * tokens * hidden * self.element_bytes)
        rows = self.transformer.padded_vocabulary(tensor) / tensor
        gradient = moved + self._accumulation_s(rows * self.transformer.model.hidden_size)
        scale = self.constants.time_scale
        return TaskTime(scale * moved, 0.0, scale * gradient)

    def head(self, tokens: float, tensor: int) -> TaskTime:
        """Final norm, output matrix and loss; the loss works on fp32 copies of the logits."""
        hidden = self.transformer.model.hidden_size
        rows = self.transformer.padded_vocabulary(tensor) / tensor
        product = self.products.product_s
        logits = tokens * rows
        loss = self.products.traffic_s(logits * (self.element_bytes + 3 * 4.0))
        gradient = self.products.traffic_s(logits * (4.0 + self.element_bytes))
        scale = self.constants.time_scale
        return TaskTime(
            scale * (product(tokens, hidden, rows) + loss),
            scale * (product(tokens, rows, hidden) + gradient),
            scale * (product(hidden, tokens, rows) + self._accumulation_s(hidden * rows)),
        )

    def _accumulation_s(self, parameters: float) -> float:
        """Adding a micro-batch's weight gradients to the buffer: read once, the buffer read and written."""
        buffer = 4.0 if self.training.gradient_dtype == "fp32" else 2.0
        return self.products.traffic_s(parameters * (self.element_bytes + 2 * buffer))

    def _attention(self, tokens: float, tensor: int) -> tuple[float, float, float]:
        """Core of attention: forward and backward seconds of its products, seconds of softmax and
        dropout."""
        transformer, model = self.transformer, self.transformer.model
        if self.training.flash_attention:
            flop = tokens * transformer.attention_flop(tensor, causal=True)
            efficiency = self.profile.attention_efficiency
            # half of the scores are masked; the backward takes the exponentials again
            exponentials = tokens * model.attention_heads / tensor * model.sequence_length / 2
            backward_s = self.products.flash_s(FLASH_BACKWARD_FLOP * flop, exponentials, efficiency)
            return self.products.flash_s(flop, exponentials, efficiency), backward_s, 0.0
        length = model.sequence_length
        batch = tokens / length * model.attention_heads / tensor
        product = self.products.product_s
        # the gradient of the probabilities has the shape of the scores; both gradients of the scores' factors
        # and the gradient of the values have the shape of the output
        scores = product(length, query_width(model) / model.attention_heads, length, batch)
        values = product(length, length, value_width(model) / model.attention_heads, batch)
        traffic = self.products.traffic_s(
            self.profile.elementwise_passes
            * tokens
            * transformer.scores_memory_traffic_bytes(tensor, element_bytes=self.element_bytes, flash=False)
        )
        return scores + values, scores + 3 * values, traffic

    def _elementwise_s(
        self, tokens: float, tensor: int, *, sequence_parallel: bool, kind: LayerKind
    ) -> float:
        """Norms, residual additions and activation function of the forward."""
        moved = self.transformer.layer_memory_traffic_bytes(
            tensor,
            element_bytes=self.element_bytes,
            sequence_parallel=sequence_parallel,
            flash=True,
            kind=kind,
        )
        kernels = ELEMENTWISE_KERNELS * self.constants.kernel_s
        return self.products.traffic_s(self.profile.elementwise_passes * tokens * moved) + kernels

    @property
    def _other_kernels(self) -> int:
        """Kernels besides the products that the host issues for a layer's forward, and again for its input
        gradient."""
        fused = self.training.flash_attention
        return ELEMENTWISE_KERNELS + (1 if fused else 2 + SCORE_KERNELS)
