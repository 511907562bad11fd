"""Which rank of a plan runs on which host and GPU, and how much a launcher has to be able to say for that.

A launcher numbers ranks node by node and gives local rank i the i-th visible GPU, unless it is told
otherwise. So a plan that only permutes nodes needs their order (level 1), one that also permutes the GPUs
of a node needs CUDA_VISIBLE_DEVICES (level 2), and one that mixes nodes inside a block of ranks needs a
host for every rank (level 3).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from pipette_milp.errors import InputError, PlanError, Problem
from pipette_milp.schema.cluster import ClusterSection
from pipette_milp.schema.plan import Plan

# Names end up in shell scripts and host files, so nothing that either would interpret.
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


class Level(IntEnum):
    """What a launcher must be able to express, weakest first."""

    NODE_ORDER = 1
    LOCAL_ORDER = 2
    PER_RANK = 3

    @property
    def text(self) -> str:
        """In words."""
        return {1: "node order", 2: "node order and GPU order inside nodes", 3: "a host for every rank"}[self]


@dataclass(frozen=True)
class Host:
    """One node of a plan."""

    name: str
    ranks: tuple[int, ...]
    """Ascending."""
    gpus: tuple[int, ...]
    """Local index of the GPU of each of ``ranks``."""
    declared_gpus: int
    """GPUs the node has, used or not."""


@dataclass(frozen=True)
class RankMap:
    """All ranks of a plan by host, hosts in order of their first rank."""

    hosts: tuple[Host, ...]
    level: Level

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def by_rank(self) -> tuple[tuple[str, int], ...]:
        """(host name, local GPU) of every rank."""
        places = {
            rank: (host.name, gpu)
            for host in self.hosts
            for rank, gpu in zip(host.ranks, host.gpus, strict=True)
        }
        return tuple(places[rank] for rank in range(self.world_size))

    @property
    def position_on_host(self) -> dict[int, int]:
        """Of every rank its number among the ranks of its host, counted in the order of ranks."""
        return {rank: position for host in self.hosts for position, rank in enumerate(host.ranks)}

    @property
    def needs_device_order(self) -> bool:
        """Whether some host must list its GPUs (CUDA_VISIBLE_DEVICES)."""
        return any(host.gpus != tuple(range(len(host.gpus))) for host in self.hosts)

    @property
    def order_as_text(self) -> tuple[str, ...] | None:
        """Host names sorted as text, when that differs from the plan; None when it is the same."""
        names = [host.name for host in self.hosts]
        return tuple(sorted(names)) if sorted(names) != names else None


def rank_map(cluster: ClusterSection, plan: Plan) -> RankMap:
    """Hosts, local GPUs and level of a plan.

    Raises:
        PlanError: a wrong number of ranks, a GPU that is unknown, excluded or used twice.
        InputError: a node name that no launcher accepts as a host name.
    """
    gpus = plan.placement.gpu_of_rank
    places: list[tuple[int, int]] = [
        (index, local) for index, node in enumerate(cluster.nodes) for local in range(node.gpus)
    ]
    problems: list[Problem] = []
    if len(gpus) != plan.configuration.num_gpus:
        problems.append(
            Problem(
                "placement.gpu_of_rank",
                f"has {len(gpus)} entries, the configuration has {plan.configuration.num_gpus} ranks",
            )
        )
    excluded = cluster.excluded_gpu_ids()
    seen: dict[int, int] = {}
    for rank, gpu in enumerate(gpus):
        where = f"placement.gpu_of_rank[{rank}]"
        if not 0 <= gpu < len(places):
            problems.append(Problem(where, f"GPU {gpu} does not exist, the cluster has {len(places)}"))
        elif gpu in excluded:
            problems.append(Problem(where, f"GPU {gpu} is excluded"))
        elif gpu in seen:
            problems.append(Problem(where, f"GPU {gpu} is used by rank {seen[gpu]} already"))
        seen.setdefault(gpu, rank)
    if problems:
        raise PlanError(problems)
    ranks_of_node: dict[int, list[int]] = {}
    for rank, gpu in enumerate(gpus):
        ranks_of_node.setdefault(places[gpu][0], []).append(rank)
    hosts = tuple(
        Host(
            name=cluster.nodes[node].name,
            ranks=tuple(ranks),
            gpus=tuple(places[gpus[rank]][1] for rank in ranks),
            declared_gpus=cluster.nodes[node].gpus,
        )
        for node, ranks in ranks_of_node.items()
    )
    odd = [host.name for host in hosts if not _HOST.fullmatch(host.name)]
    if odd:
        raise InputError(
            [
                Problem("cluster.nodes", f"{name!r} is no host name (letters, digits, dots, dashes)")
                for name in odd
            ]
        )
    return RankMap(hosts, _level(hosts))


def _level(hosts: tuple[Host, ...]) -> Level:
    if any(host.ranks != tuple(range(host.ranks[0], host.ranks[0] + len(host.ranks))) for host in hosts):
        return Level.PER_RANK
    if any(host.gpus != tuple(range(len(host.gpus))) for host in hosts):
        return Level.LOCAL_ORDER
    return Level.NODE_ORDER
