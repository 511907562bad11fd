"""A legal configuration drawn at random, on the nodes in random order: what knowing nothing gives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipette_milp.baselines.choices import Choice, Resources, options
from pipette_milp.cost.build import CostModel
from pipette_milp.solvers.greedy import block_layouts


def rank(costs: CostModel, resources: Resources) -> Iterator[Choice]:
    """All legal configurations in random order; memory is not looked at."""
    found = options(costs)
    rng = resources.rng
    for index in rng.permutation(len(found)):
        option = found[int(index)]
        order = rng.permutation(costs.cluster.num_nodes).astype(np.int64)
        # the first layout fills the nodes in this order, rank by rank
        yield Choice(option.configuration, next(block_layouts(option.tables, [order])))
