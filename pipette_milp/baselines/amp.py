"""AMP (Li et al., NeurIPS 2022, arXiv 2210.07297; code: DachengLi1/AMP, ``cost_homo.py``, ``pipe.py``,
``sa.py``).

All tensor degrees up to the GPUs of a node, all data degrees and all micro-batches are ranked by

    T = (M - 1) * max_s e_s + sum_s e_s + sum_j c_j + max_s 2(d-1)/d * W_s / B_s

with e_s forward and backward of stage s for one micro-batch, M micro-batches, c_j the transfer over boundary
j, W_s the gradient bytes of a stage, B_s the slowest edge of its ring. The layer split minimises the slowest
stage. A link is as fast as the slower of its two nodes. Memory is not looked at. Ranks are in default order.

What the released code does otherwise, kept by `rank_as_published`:

* the slowest edge of a ring is compared after the loop over its edges, so only the closing edge counts;
* a boundary's transfer is averaged over the replicas, and counted once, not there and back;
* backward is taken as twice forward;
* a layer has 12 h^2 parameters, and every weight, gradient and activation 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.baselines.choices import Choice, Option, Resources, node_bytes_per_s, options
from pipette_milp.cost.build import CostModel
from pipette_milp.plans import default_cells

CODE_ELEMENT_BYTES = 4.0
"""Bandwidths of the code are in 32-bit elements per second (``50 * 1e9 / 32``)."""
CODE_LAYER_PARAMETERS = 12.0
"""Times hidden size squared."""


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """By the paper's model."""
    del resources
    return _rank(costs, as_published=False)


def rank_as_published(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """By the released code's."""
    del resources
    return _rank(costs, as_published=True)


def _rank(costs: CostModel, *, as_published: bool) -> Iterator[Choice]:
    found: list[tuple[float, int, Choice]] = []
    for number, option in enumerate(options(costs)):
        cells = default_cells(costs.cluster, option.configuration)
        if cells is None:
            continue
        split = option.with_layers(least_busy_split(option))
        predicted_s = iteration_s(split, cells, as_published=as_published)
        found.append((predicted_s, number, Choice(split.configuration, cells, predicted_s)))
    for _, _, choice in sorted(found, key=lambda one: one[:2]):
        yield choice


def iteration_s(option: Option, cells: IntArray, *, as_published: bool) -> float:
    """The model's iteration time of a configuration on a placement [p, d]."""
    configuration = option.configuration
    stage_s = 3.0 * option.forward_s if as_published else option.forward_s + option.backward_s
    time_s = (configuration.num_micro_batches - 1) * stage_s.max() + stage_s.sum()
    link = _link_bytes_per_s(option.costs)
    if configuration.pipeline > 1:
        sent = _activation_bytes(option, as_published=as_published)
        hop_s = sent / link[cells[:-1], cells[1:]]  # [p-1, d]
        time_s += hop_s.mean(axis=1).sum() if as_published else 2.0 * hop_s.max(axis=1).sum()
    if configuration.data > 1:
        edges = link[cells, np.roll(cells, -1, axis=1)]  # [p, d]; the last one closes the ring
        slowest = edges[:, -1] if as_published else edges.min(axis=1)
        share = 2.0 * (configuration.data - 1) / configuration.data
        time_s += float((share * _gradient_bytes(option, as_published=as_published) / slowest).max())
    return float(time_s)


def _link_bytes_per_s(costs: CostModel) -> Array:
    """[N, N] between nodes the slower node's figure, inside a node its scale-up network."""
    node = node_bytes_per_s(costs)
    link = np.minimum(node[:, None], node[None, :])
    np.fill_diagonal(link, costs.cluster.local_bytes_per_s)
    return np.asarray(link)


def _activation_bytes(option: Option, *, as_published: bool) -> float:
    if not as_published:
        return option.activation_bytes
    model = option.costs.instance.model
    tokens = option.configuration.micro_batch * model.sequence_length
    return CODE_ELEMENT_BYTES * tokens * model.hidden_size


def _gradient_bytes(option: Option, *, as_published: bool) -> Array:
    """[p] of each rank."""
    configuration = option.configuration
    tensor = configuration.tensor
    if as_published:
        model = option.costs.instance.model
        parameters = CODE_LAYER_PARAMETERS * model.hidden_size**2 * option.layers / tensor
        embedding = model.hidden_size * model.vocab_size / tensor
        parameters[0] += embedding
        if configuration.pipeline > 1:
            parameters[-1] += embedding
        return np.asarray(CODE_ELEMENT_BYTES * parameters)
    return stage_parameters(option) * gradient_element_bytes(option)


def stage_parameters(option: Option) -> Array:
    """[p] parameters of a rank of each stage."""
    configuration, transformer = option.configuration, option.costs.transformer
    tensor = configuration.tensor
    parameters = transformer.layer_parameters(tensor) * option.layers.astype(float)
    parameters[0] += transformer.embedding_parameters(tensor)
    parameters[-1] += transformer.head_parameters(tensor, embedding_on_same_stage=configuration.pipeline == 1)
    return np.asarray(parameters)


def gradient_element_bytes(option: Option) -> float:
    """Bytes of a gradient element."""
    return 4.0 if option.configuration.gradient_dtype == "fp32" else 2.0


def least_busy_split(option: Option) -> IntArray:
    """[p] the layer split whose slowest stage is fastest, whatever its memory."""
    tables = option.tables
    per_layer = tables.forward_layer_s + tables.backward_layer_s
    busy = tables.forward_extra_s + tables.backward_extra_s
    layers = np.ones(tables.pipeline, dtype=np.int64)
    for _ in range(tables.total_layers - tables.pipeline):
        layers[int(np.argmin(busy + per_layer * (layers + 1)))] += 1
    return layers
