"""Between plans as files hold them (a GPU for every rank) and as the models see them (a node for every cell).

Rank ``r = tensor_index + tensor * (context_index + context * (replica + data * stage))``; cell
``(stage, replica)`` is what talks inside a layer: ``tensor * context`` ranks in a row.
"""

from __future__ import annotations

import numpy as np

from pipette_milp.arrays import IntArray
from pipette_milp.cluster import Cluster
from pipette_milp.errors import PlanError, Problem
from pipette_milp.schema.plan import Configuration, Placement, Plan


def degrees_product(configuration: Configuration) -> str:
    """``pipeline x tensor x data``, with the context degree where there is one."""
    c = configuration
    degrees = (c.pipeline, c.tensor, *((c.context,) if c.context > 1 else ()), c.data)
    return " x ".join(map(str, degrees))


def cell_name(configuration: Configuration) -> str:
    """What a cell is called in messages."""
    return "tensor group" if configuration.context == 1 else "tensor and context group"


def _places(cluster: Cluster, configuration: Configuration) -> Cluster:
    """Whole nodes joined where cells take several (`Cluster.for_cells`)."""
    return cluster.for_cells(configuration.cell_size) or cluster


def placement_of_cells(
    cluster: Cluster,
    configuration: Configuration,
    node_of_cell: IntArray,
    gpus_of_cell: IntArray | None = None,
) -> Placement:
    """GPUs of every rank.

    Args:
        node_of_cell: [p, d]; no node may host more cells than it has room for.
        gpus_of_cell: [p, d, t] local numbers among the usable GPUs of the cell's node; None: each cell takes
            the next ``tensor`` ones.
    """
    if gpus_of_cell is not None:
        ranks = np.broadcast_to(node_of_cell[:, :, None], gpus_of_cell.shape).reshape(-1)
        chosen = zip(ranks.tolist(), gpus_of_cell.reshape(-1).tolist(), strict=True)
        return Placement(gpu_of_rank=tuple(cluster.gpu_ids[node][gpu] for node, gpu in chosen))
    cluster = _places(cluster, configuration)
    used = [0] * cluster.num_nodes
    gpus: list[int] = []
    for node in node_of_cell.reshape(-1):
        start = used[node]
        gpus.extend(cluster.gpu_ids[node][start : start + configuration.cell_size])
        used[node] += configuration.cell_size
    return Placement(gpu_of_rank=tuple(gpus))


def default_cells(cluster: Cluster, configuration: Configuration) -> IntArray | None:
    """[p, d] of the default rank order, rank r on the r-th usable GPU; None if a cell straddles nodes."""
    cluster = _places(cluster, configuration)
    node_of_gpu = np.repeat(np.arange(cluster.num_nodes), cluster.gpus_per_node)
    groups = node_of_gpu[: configuration.num_gpus].reshape(-1, configuration.cell_size)
    if np.any(groups != groups[:, :1]):
        return None
    return groups[:, 0].reshape(configuration.pipeline, configuration.data).astype(np.int64)


def gpus_of_placement(cluster: Cluster, configuration: Configuration, placement: Placement) -> IntArray:
    """[p, d, t] local numbers among the usable GPUs of the cell's node, of a placement `cells_of_plan`
    accepts."""
    local = {gpu: number for ids in cluster.gpu_ids for number, gpu in enumerate(ids)}
    numbers = [local[gpu] for gpu in placement.gpu_of_rank]
    shape = (configuration.pipeline, configuration.data, configuration.tensor)
    return np.array(numbers, dtype=np.int64).reshape(shape)


def node_crossings(node_of_cell: IntArray) -> int:
    """How many hops between consecutive stages leave their node, over all replicas of [p, d]."""
    return int(np.count_nonzero(node_of_cell[1:] != node_of_cell[:-1]))


def cells_of_plan(cluster: Cluster, plan: Plan) -> IntArray:
    """[p, d] the node of every cell of a plan.

    Raises:
        PlanError: wrong length, a GPU unknown, excluded or used twice, a tensor group that crosses nodes;
            every fault is named by its place.
    """
    configuration = plan.configuration
    gpus = plan.placement.gpu_of_rank
    if len(gpus) != configuration.num_gpus:
        raise PlanError(
            Problem(
                "placement.gpu_of_rank",
                f"has {len(gpus)} entries, {degrees_product(configuration)} needs {configuration.num_gpus}",
            )
        )
    cluster = _places(cluster, configuration)
    node_of_gpu = {gpu: node for node, ids in enumerate(cluster.gpu_ids) for gpu in ids}
    problems = []
    first_rank: dict[int, int] = {}
    for rank, gpu in enumerate(gpus):
        if gpu not in node_of_gpu:
            problems.append(
                Problem(f"placement.gpu_of_rank[{rank}]", f"GPU {gpu} does not exist or is excluded")
            )
        elif gpu in first_rank:
            problems.append(
                Problem(f"placement.gpu_of_rank[{rank}]", f"GPU {gpu} already runs rank {first_rank[gpu]}")
            )
        first_rank.setdefault(gpu, rank)
    if problems:
        raise PlanError(problems)
    nodes = np.array([node_of_gpu[gpu] for gpu in gpus], dtype=np.int64).reshape(-1, configuration.cell_size)
    for cell in np.flatnonzero(np.any(nodes != nodes[:, :1], axis=1)):
        stage, replica = divmod(int(cell), configuration.data)
        problems.append(
            Problem(
                f"placement.gpu_of_rank[{int(cell) * configuration.cell_size}]",
                f"the {cell_name(configuration)} of stage {stage}, replica {replica} crosses nodes: not "
                "supported yet",
            )
        )
    if problems:
        raise PlanError(problems)
    return nodes[:, 0].reshape(configuration.pipeline, configuration.data)
