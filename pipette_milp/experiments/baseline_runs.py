"""One run of the table of published methods: the first choices of one of them, simulated."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from pipette_milp.baselines.choices import Resources, judge, ranking
from pipette_milp.cost.build import CostModel
from pipette_milp.experiments.log import Record
from pipette_milp.schema.instance import Instance
from pipette_milp.solvers.state import describe

CHOICES = 10
"""As many as the paper on Pipette looks at."""


@dataclass(frozen=True)
class BaselineJob:
    """The ten first choices of a method of `pipette_milp.baselines.BASELINES`."""

    instance: Instance
    method: str
    seed: int = 0

    @property
    def key(self) -> str:
        return f"baseline {self.instance.name}@{self.instance.sha256()[:12]} {self.method} seed={self.seed}"

    def facts(self) -> Record:
        """Instance, method and seed."""
        return {
            "instance": self.instance.name,
            "instance_sha256": self.instance.sha256(),
            "method": self.method,
            "seed": self.seed,
        }

    def run(self) -> Record:
        """Each choice with its predicted and simulated seconds and whether it fits."""
        costs = CostModel.of(self.instance)
        choices = ranking(self.method)(costs, Resources(np.random.default_rng(self.seed)))
        found = []
        for choice in itertools.islice(choices, CHOICES):
            judged = judge(costs, choice)
            found.append(
                {
                    "family": describe(costs.tables(choice.configuration)),
                    "configuration": choice.configuration.model_dump(mode="json"),
                    "node_of_cell": choice.node_of_cell.tolist(),
                    "predicted_s": choice.predicted_s,
                    "simulated_s": judged.simulated_s,
                    "fits": judged.fits,
                    "global_batch_size": choice.configuration.global_batch_size,
                }
            )
        return {"choices": found}
