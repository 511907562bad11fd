"""What every node runs, in few lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.plots.traffic import node_of_rank
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.wording import ranges

NODES_LISTED = 32
"""Larger clusters: neighbouring nodes of the same stages share a line."""


@dataclass(frozen=True)
class NodeLine:
    """One node, or neighbouring ones that run the same stages."""

    names: tuple[str, ...]
    hosted: dict[int, tuple[int, ...]]
    """Replicas by stage; a cell spread over several nodes counts for each of them."""

    @property
    def title(self) -> str:
        """The name, or the first and the last one with their number."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} to {self.names[-1]} ({len(self.names)})"

    @property
    def text(self) -> str:
        """``stage: replicas``"""
        listed = (f"{stage}: {ranges(list(replicas))}" for stage, replicas in self.hosted.items())
        return "; ".join(listed) or "idle"


def node_lines(instance: Instance, plan: Plan) -> list[NodeLine]:
    """All usable nodes with the stages and replicas they run.

    Raises:
        PlanError: the plan does not belong to this instance.
    """
    nodes = node_of_rank(instance, plan)
    replicas_of: dict[int, dict[int, list[int]]] = {}
    for stage, cells in enumerate(nodes):
        for replica, ranks in enumerate(cells):
            for node in np.unique(ranks).tolist():
                replicas_of.setdefault(node, {}).setdefault(stage, []).append(replica)
    usable = sorted(instance.cluster.usable_nodes())
    lines: list[NodeLine] = []
    for node in usable:
        name = instance.cluster.nodes[node].name
        hosted = {stage: tuple(found) for stage, found in replicas_of.get(node, {}).items()}
        last = lines[-1] if lines else None
        if last is not None and len(usable) > NODES_LISTED and set(last.hosted) == set(hosted):
            merged = {stage: last.hosted[stage] + hosted[stage] for stage in hosted}
            lines[-1] = NodeLine((*last.names, name), merged)
        else:
            lines.append(NodeLine((name,), hosted))
    return lines


def has_meshes(instance: Instance) -> bool:
    """Whether the GPUs of some node are not joined alike, so that a plan chooses them."""
    kinds = (instance.cluster.scale_up_of(node).kind for node in instance.cluster.nodes)
    return "mesh" in kinds


def tensor_groups(instance: Instance, plan: Plan, line: NodeLine) -> str:
    """``stage: GPUs of each tensor group`` of one node in the order of the ranks, numbered as in the node."""
    if len(line.names) > 1:
        return "see placement.gpu_of_rank of the result"
    local = [number for node in instance.cluster.nodes for number in range(node.gpus)]
    configuration = plan.configuration
    parts = []
    for stage, replicas in line.hosted.items():
        groups = []
        for replica in replicas:
            first = configuration.cell_size * (replica + configuration.data * stage)
            ranks = plan.placement.gpu_of_rank[first : first + configuration.cell_size]
            groups.append(",".join(str(local[gpu]) for gpu in ranks))
        parts.append(f"{stage}: {' | '.join(groups)}")
    return "; ".join(parts)
