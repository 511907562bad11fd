"""Pipette (Yim et al., DATE 2024; code: yimjinkyu1/date2024_pipette,
``llm_train_strategy_assignment_total_v3.py`` and ``mh_simulated_annealing_opt.py``).

Its latency model, with C forward and backward of a stage for one micro-batch, n micro-batches, nodes in
pipelines of whole nodes (``map``), r replicas of a stage on each node and N / p node pipelines:

    T = n/p * (p*C + T_PP) + (p - 1)*C + T_DP
    T_PP = max over node pipelines of sum over boundaries of 2 * msg_PP / BW(node, next node)
    T_DP = 4(r-1)/r * msg_DP / BW_intra + 2(m-1)/m * msg_DP / slowest edge of the ring of m = N/p nodes

Every legal (p, t, micro-batch) gets the node order that simulated annealing finds under this model, then the
best of all is launched. Configurations whose estimated memory exceeds a soft limit are dropped first. The
trained estimator was never published: our memory model stands in for it, with the released code's limits.

`rank_as_published` keeps the faults of the released code: only the first stage has a ring; embedding on every
stage and 16 h^2 parameters in a layer, of the training precision's size; n // p; acceptance by the decimal
mantissa of a loss from a random start. `rank` has all stages' rings with their own gradients, n / p,
acceptance by the relative loss, a start in default order, and our own limit on memory.

The search is best first: a configuration is annealed only when its model with every link at the best speed is
the smallest value left, so the order is that of annealing them all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.baselines.amp import gradient_element_bytes, stage_parameters
from pipette_milp.baselines.choices import Choice, Option, Resources, flows_per_node, options
from pipette_milp.cost.build import CostModel
from pipette_milp.solvers.annealing import COOLING, FIRST_TEMPERATURE, accepted, permuted

STEPS = 10_000
"""Moves of one annealing run. At 0.999 a step the temperature is 4.5e-5 after so many, and only descents are
left (the code stops by the clock instead)."""
STEPS_PER_ORDER = 20
"""With a few nodes there are fewer orders than steps; so many for each order there is."""
STOP_EVERY = 64
TENSOR = (1, 2, 4, 8)
MICRO_BATCH = (1, 2, 4, 8)
"""What the code goes through."""
GPT_LAYER_PARAMETERS = 16.0
"""Times hidden size squared, in the code."""
SOFT_LIMITS_BYTES = ((32 * 2**30, 20_000 * 2**20), (80 * 2**30, 70_000 * 2**20))
"""(capacity of the GPU, what an estimate may reach) in the code: V100 and A100. Other GPUs take the share of
the nearest of the two."""
WARMEST = 0.01
"""Mean relative loss accepted at first by the corrected walk, as in `pipette_milp.solvers.annealing`."""
COLDEST = 1e-6


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """The method without the faults of its code."""
    return _rank(costs, resources, as_published=False)


def rank_as_published(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """The method as the released code has it."""
    return _rank(costs, resources, as_published=True)


@dataclass(frozen=True)
class LatencyModel:
    """The formula of one configuration as a function of the order of nodes."""

    pipeline: int
    num_micro_batches: int
    compute_s: float
    hop_bytes: float
    ring_bytes: Array
    """[p] what a rank of each stage reduces; in the published model the first alone counts."""
    intra_s: float
    link_bytes_per_s: Array
    """[N, N] one flow; the diagonal is unused."""
    as_published: bool

    def iteration_s(self, order: IntArray) -> float:
        """Seconds for nodes in this order: node pipeline i is ``order[i*p : (i+1)*p]``."""
        nodes = order.reshape(-1, self.pipeline)
        hop_s = 0.0
        if self.pipeline > 1:
            rate = self.link_bytes_per_s[nodes[:, :-1], nodes[:, 1:]]
            hop_s = float((2.0 * self.hop_bytes / rate).sum(axis=1).max())
        ring_s = 0.0
        members = len(nodes)
        if members > 1:
            rate = self.link_bytes_per_s[nodes, np.roll(nodes, -1, axis=0)].min(axis=0)  # [p]
            times = 2.0 * (members - 1) / members * self.ring_bytes / rate
            ring_s = float(times[0] if self.as_published else times.max())
        return self.composed_s(hop_s, ring_s)

    def floor_s(self) -> float:
        """Every link at the best speed there is."""
        best = self.link_bytes_per_s.max()
        members = len(self.link_bytes_per_s) // self.pipeline
        ring = self.ring_bytes[0] if self.as_published else self.ring_bytes.max()
        ring_s = 2.0 * (members - 1) / members * ring / best
        return self.composed_s((self.pipeline - 1) * 2.0 * self.hop_bytes / best, ring_s)

    def composed_s(self, hop_s: float, ring_s: float) -> float:
        """The formula from its two placement-dependent parts."""
        stages, number, compute_s = self.pipeline, self.num_micro_batches, self.compute_s
        bubble_s = stages * compute_s + hop_s
        if number < stages:
            return bubble_s + (number - 1) * compute_s + ring_s + self.intra_s
        rounds = number // stages if self.as_published else number / stages
        return rounds * bubble_s + (stages - 1) * compute_s + ring_s + self.intra_s


def latency_model(option: Option, *, as_published: bool) -> LatencyModel:
    """The formula of a configuration; nodes must be alike."""
    costs, configuration = option.costs, option.configuration
    cluster, model = costs.cluster, costs.instance.model
    per_node = int(cluster.gpus_per_node[0]) // configuration.tensor
    if as_published:
        element = 4.0 if costs.instance.training.precision in ("fp32", "tf32") else 2.0
        parameters = GPT_LAYER_PARAMETERS * model.hidden_size**2 * option.layers
        parameters = parameters + float(model.hidden_size * model.vocab_size)
        ring_bytes = element * parameters / configuration.tensor
        reduced = float(ring_bytes[0])
    else:
        ring_bytes = stage_parameters(option) * gradient_element_bytes(option)
        reduced = float(ring_bytes.max())
    intra = 4.0 * (per_node - 1) / per_node * reduced / float(cluster.local_bytes_per_s.min())
    size = cluster.num_nodes
    if size > 1:
        link = np.where(np.eye(size, dtype=bool), 0.0, cluster.pair_bytes_per_s) / flows_per_node(costs)
    else:
        link = np.ones((1, 1))  # no transfer leaves a single node
    return LatencyModel(
        pipeline=configuration.pipeline,
        num_micro_batches=configuration.num_micro_batches,
        compute_s=float((option.forward_s + option.backward_s).max()),
        hop_bytes=option.activation_bytes,
        ring_bytes=np.asarray(ring_bytes, dtype=float),
        intra_s=float(intra),
        link_bytes_per_s=link,
        as_published=as_published,
    )


def _rank(costs: CostModel, resources: Resources, *, as_published: bool) -> Iterator[Choice]:
    waiting: list[tuple[float, int, Choice | None]] = []
    candidates: list[tuple[Option, LatencyModel]] = []
    for option in options(costs):
        limit = soft_limit_bytes(costs) if as_published else float(costs.usable_bytes_of_type.min())
        if considered(option) and float(option.memory_bytes.max()) <= limit:
            model = latency_model(option, as_published=as_published)
            heapq.heappush(waiting, (model.floor_s(), len(candidates), None))
            candidates.append((option, model))
    while waiting:
        predicted_s, number, choice = heapq.heappop(waiting)
        if choice is not None:
            yield choice
            continue
        option, model = candidates[number]
        order, predicted_s = annealed(model, costs.cluster.num_nodes, resources)
        cells = cells_of_order(option, order)
        choice = Choice(option.configuration, cells, predicted_s)
        heapq.heappush(waiting, (predicted_s, number, choice))


def considered(option: Option) -> bool:
    """Whole nodes make a stage, tensor degree and micro-batch of the code's lists, all nodes alike."""
    configuration, cluster = option.configuration, option.costs.cluster
    gpus = cluster.gpus_per_node
    return (
        option.even
        and configuration.context == 1
        and bool(np.all(gpus == gpus[0]))
        and int(gpus[0]) % configuration.tensor == 0
        and cluster.num_nodes % configuration.pipeline == 0
        and configuration.num_gpus == cluster.num_gpus
        and configuration.tensor in TENSOR
        and configuration.micro_batch in MICRO_BATCH
    )


def soft_limit_bytes(costs: CostModel) -> float:
    """What the estimate may reach in the released code, for this GPU."""
    capacity = costs.cluster.gpu.memory_bytes
    nominal, limit = min(SOFT_LIMITS_BYTES, key=lambda one: abs(math.log(capacity / one[0])))
    return capacity / nominal * limit if abs(capacity / nominal - 1) > 0.1 else float(limit)


def cells_of_order(option: Option, order: IntArray) -> IntArray:
    """[p, d] replicas fill node pipelines one after the other."""
    configuration = option.configuration
    per_node = int(option.costs.cluster.gpus_per_node[0]) // configuration.tensor
    nodes = order.reshape(-1, configuration.pipeline)
    return np.ascontiguousarray(np.repeat(nodes, per_node, axis=0).T)


def annealed(model: LatencyModel, num_nodes: int, resources: Resources) -> tuple[IntArray, float]:
    """The best order of nodes that one annealing run sees, and its modelled seconds."""
    rng = resources.rng
    order = np.arange(num_nodes, dtype=np.int64)
    if num_nodes == 1:
        return order, model.iteration_s(order)
    if model.as_published:
        order = rng.permutation(order)
    current_s = best_s = model.iteration_s(order)
    best = order
    steps = min(STEPS, STEPS_PER_ORDER * math.factorial(min(num_nodes, 10)))
    accepts = _mantissa_rule(rng) if model.as_published else _relative_rule(rng, steps)
    for step in range(steps):
        if step % STOP_EVERY == 0 and resources.stop():
            break
        proposed = permuted(order, rng)
        time_s = model.iteration_s(proposed)
        if accepts(time_s - current_s, current_s, step):
            order, current_s = proposed, time_s
            if time_s < best_s:
                best, best_s = order, time_s
    return best, best_s


def _mantissa_rule(rng: np.random.Generator) -> Callable[[float, float, int], bool]:
    def accepts(loss_s: float, current_s: float, step: int) -> bool:
        return accepted(loss_s, FIRST_TEMPERATURE * COOLING**step, rng)

    return accepts


def _relative_rule(rng: np.random.Generator, steps: int) -> Callable[[float, float, int], bool]:
    decay = math.log(COLDEST / WARMEST)

    def accepts(loss_s: float, current_s: float, step: int) -> bool:
        return loss_s <= rng.exponential() * WARMEST * math.exp(decay * step / steps) * current_s

    return accepts
