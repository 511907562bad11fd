"""Which launched rank runs which rank of the plan: by node, whatever order the launcher numbers ranks in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.measure.program import ReplayPlan


@dataclass(frozen=True)
class Assignment:
    """Both directions of the map."""

    launched_of_plan: tuple[int, ...]
    plan_of_launched: tuple[int, ...]
    by_name: bool
    """Hosts have the names of the instance's nodes; else hosts were taken in the order of their ranks."""


def assign(replay: ReplayPlan, hosts: Sequence[str]) -> Assignment:
    """Put every rank of the plan on a launched rank of its node.

    Args:
        hosts: node name of every launched rank.

    Raises:
        InputError: another number of ranks than the plan has, or of ranks on a node.
    """
    wanted = len(replay.programs)
    if len(hosts) != wanted:
        raise InputError(f"the plan has {wanted} ranks, the launcher started {len(hosts)}: start {wanted}")
    launched: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        launched.setdefault(host, []).append(rank)
    gpus = replay.plan.placement.gpu_of_rank
    planned: dict[int, list[int]] = {}
    for rank in sorted(range(wanted), key=lambda rank: gpus[rank]):
        planned.setdefault(replay.node_of_rank[rank], []).append(rank)
    nodes = list(planned)  # in the order of the cluster: GPU ids count node by node
    names = {node: replay.node_names[node] for node in nodes}
    host_of_node = {node: host for node, name in names.items() for host in launched if same_host(name, host)}
    by_name = len(host_of_node) == len(nodes)
    if not by_name:
        if host_of_node:
            absent = ", ".join(name for node, name in names.items() if node not in host_of_node)
            raise InputError(f"no ranks were started on {absent}; hosts with ranks: {', '.join(launched)}")
        if len(launched) != len(nodes):
            raise InputError(
                f"the plan uses {len(nodes)} nodes, ranks were started on {len(launched)}: "
                f"{', '.join(launched)}"
            )
        host_of_node = dict(zip(nodes, launched, strict=True))
    problems = [
        Problem(
            "",
            f"{names[node]}: the plan has {len(ranks)} ranks there, the launcher started "
            f"{len(launched[host_of_node[node]])} on {host_of_node[node]}",
        )
        for node, ranks in planned.items()
        if len(launched[host_of_node[node]]) != len(ranks)
    ]
    if problems:
        raise InputError(problems)
    launched_of_plan = [0] * wanted
    plan_of_launched = [0] * wanted
    for node, ranks in planned.items():
        for plan_rank, rank in zip(ranks, launched[host_of_node[node]], strict=True):
            launched_of_plan[plan_rank] = rank
            plan_of_launched[rank] = plan_rank
    return Assignment(tuple(launched_of_plan), tuple(plan_of_launched), by_name)


def same_host(name: str, host: str) -> bool:
    """Whether a node of an instance and a host name are the same machine, with or without domain."""
    return name == host or name.split(".")[0] == host.split(".")[0]
