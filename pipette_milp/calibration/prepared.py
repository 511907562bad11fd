"""Expressed runs ready to be estimated many times with other constants: cluster and cells are built once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipette_milp.calibration.evaluate import iteration_s
from pipette_milp.calibration.express import Expressed, express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.runs import Run
from pipette_milp.cluster import Cluster
from pipette_milp.cost.build import CostModel
from pipette_milp.presets import chip
from pipette_milp.schema.constants import CostConstants
from pipette_milp.transformer import Transformer


@dataclass(frozen=True)
class Prepared:
    """One run with everything that no constant changes."""

    expressed: Expressed
    cluster: Cluster
    transformer: Transformer

    @property
    def run(self) -> Run:
        return self.expressed.run

    @property
    def architectures(self) -> frozenset[str]:
        """Of all its kinds of GPU."""
        chips = [chip(gpu.name) for gpu in self.cluster.gpu_types]
        return frozenset("other" if found is None else found.architecture for found in chips)

    @property
    def profile(self) -> str:
        """Key of the framework's profile."""
        instance = self.expressed.instance
        return instance.compute.framework_profile or instance.training.framework

    def costs(self, constants: CostConstants) -> CostModel:
        """Cost model with these constants."""
        instance = self.expressed.instance
        training = instance.training
        compute = instance.compute.model_copy(update={"constants": constants})
        instance = instance.model_copy(update={"compute": compute, "training": training})
        return CostModel(instance, self.cluster, self.transformer)

    def time_s(self, constants: CostConstants) -> float:
        """Simulated seconds of one iteration."""
        expressed = self.expressed
        overlap = expressed.configuration.overlap
        if overlap.tensor > 0:
            # how much chunked overlap hides is a constant of the framework
            hidden = constants.profile(self.profile).tensor_overlap
            overlap = overlap.model_copy(update={"tensor": hidden})
            configuration = expressed.configuration.model_copy(update={"overlap": overlap})
            expressed = replace(expressed, configuration=configuration)
        return iteration_s(self.costs(constants), expressed)


def prepare(runs: Iterable[Run]) -> list[Prepared]:
    """All runs that can be expressed and were timed."""
    prepared = []
    for run in runs:
        if run.status != "ok" or run.number("measured_iter_time_s") is None:
            continue
        if run.subset.startswith("exclude-"):
            continue
        try:
            expressed = express(run)
        except Refused:
            continue
        prepared.append(prepared_run(expressed))
    return prepared


def prepared_run(expressed: Expressed) -> Prepared:
    """One run with everything that no constant changes."""
    return Prepared(expressed, Cluster.of(expressed.instance), Transformer(expressed.instance.model))
