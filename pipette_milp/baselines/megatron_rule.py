"""Megatron-LM's rule of thumb (Narayanan et al., SC 2021, arXiv 2104.04473, takeaways 1 to 3).

1. Tensor parallelism up to the GPUs of a node, then pipeline parallelism across nodes.
2. The smallest model-parallel size t * p with which the model fits; data parallelism for the rest.
3. The micro-batch b that minimises ``(b' / b + p - 1) * (t_f(b) + t_b(b))``, b' = batch of one replica (their
   equation 1).

Whether a configuration fits is found by trying, so our memory model stands for the trial. Ranks are in
default order. The next choices are the other micro-batches of the size chosen, then the next larger sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipette_milp.baselines.choices import Choice, Option, Resources, options
from pipette_milp.cost.build import CostModel


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """Choices that fit, the rule's own first."""
    del resources
    found = [option for option in options(costs) if option.even]
    widest = max((option.configuration.tensor for option in found), default=1)
    fitting = [option for option in found if follows_takeaway_1(option, widest) and option.fits]
    for option in sorted(fitting, key=_order):
        choice = option.in_default_order(micro_batch_time_s(option))
        if choice is not None:
            yield choice


def follows_takeaway_1(option: Option, widest: int) -> bool:
    """Several stages only once tensor groups are as wide as they may be."""
    return option.configuration.pipeline == 1 or option.configuration.tensor == widest


def _order(option: Option) -> tuple[int, int, float]:
    configuration = option.configuration
    size = configuration.tensor * configuration.pipeline
    return size, configuration.pipeline, micro_batch_time_s(option)


def micro_batch_time_s(option: Option) -> float:
    """Equation 1: computation and bubble, no communication but that inside a stage."""
    configuration = option.configuration
    rounds = configuration.num_micro_batches + configuration.pipeline - 1
    return float(rounds * (option.forward_s + option.backward_s).max())
