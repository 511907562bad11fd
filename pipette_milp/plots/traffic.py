"""Which GPUs and nodes a plan uses, and which links between nodes it loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.errors import InputError, PlanError, Problem
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.result import RankedPlan, SolveResult

Source = SolveResult | RankedPlan | Plan
LONGEST_NAME = 14
"""Characters of a node's name that a tick has room for."""


def plan_of(source: Source) -> Plan:
    """The plan of a result.

    Raises:
        InputError: it has none.
    """
    if isinstance(source, Plan):
        return source
    if isinstance(source, RankedPlan):
        return Plan(configuration=source.configuration, placement=source.placement)
    if source.plan is None:
        raise InputError("this result has no plan to draw")
    return source.plan


@dataclass(frozen=True)
class GpuPlaces:
    """Where the GPUs of an instance are, by global id."""

    node: IntArray
    """[GPUs] index of the declared node."""
    local: IntArray
    """[GPUs] index inside the node."""

    @classmethod
    def of(cls, instance: Instance) -> GpuPlaces:
        counts = [node.gpus for node in instance.cluster.nodes]
        node = np.repeat(np.arange(len(counts)), counts)
        local = np.concatenate([np.arange(count) for count in counts])
        return cls(node, local)


def node_of_rank(instance: Instance, plan: Plan) -> IntArray:
    """[p, d, t] declared node of every rank.

    Raises:
        PlanError: a wrong number of ranks, or a GPU that the instance does not declare.
    """
    places = GpuPlaces.of(instance)
    configuration = plan.configuration
    gpus = np.array(plan.placement.gpu_of_rank, dtype=np.int64)
    if len(gpus) != configuration.num_gpus or gpus.min() < 0 or gpus.max() >= len(places.node):
        raise PlanError(
            Problem("placement.gpu_of_rank", "does not belong to this instance and configuration")
        )
    return places.node[gpus].reshape(
        configuration.pipeline, configuration.data, configuration.tensor * configuration.context
    )


def hop_links(nodes: IntArray, *, wraps: bool) -> set[tuple[int, int]]:
    """Directed node pairs that carry activations or gradients between neighbouring stages.

    Args:
        nodes: [p, d, t]
        wraps: virtual stages also join the last stage with the first one.
    """
    stages = len(nodes)
    pairs = [(s, s + 1) for s in range(stages - 1)]
    if wraps and stages > 1:
        pairs.append((stages - 1, 0))
    links = set()
    for source, target in pairs:
        both = np.unique(np.stack([nodes[source].ravel(), nodes[target].ravel()]), axis=1)
        links |= {(int(a), int(b)) for a, b in both.T if a != b}
    return links | {(b, a) for a, b in links}


def ring_links(nodes: IntArray) -> set[tuple[int, int]]:
    """Directed node pairs of the gradient rings: the nodes of each group in order of first appearance by
    replica, and back to the first (formulation, section 2).

    Args:
        nodes: [p, d, t]
    """
    links = set()
    for stage in nodes:
        for group in stage.T:
            ring = list(dict.fromkeys(group.tolist()))
            if len(ring) > 1:
                links |= set(zip(ring, [*ring[1:], ring[0]], strict=True))
    return links


def tick_names(names: Sequence[str]) -> list[str]:
    """Names short enough for ticks: without a domain or a common beginning where they are long."""
    short = [name.split(".")[0] for name in names]
    if len(set(short)) < len(short):
        short = list(names)
    if max(map(len, short)) <= LONGEST_NAME:
        return [literal(name) for name in short]
    start = 0
    while len({name[: start + 1] for name in short}) == 1 and start < min(map(len, short)) - 1:
        start += 1
    kept = [name[start:] for name in short]
    return [literal(f"…{name[-LONGEST_NAME + 1 :]}") for name in kept]


def literal(text: str) -> str:
    """Text that matplotlib shows as it is: dollar signs would start a formula."""
    return text.replace("$", r"\$")
