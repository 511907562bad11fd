"""Which plans a model may leave out because an equal one remains.

Replicas. Everything but the rings treats replicas alike: hops and the embedding exchange count flows, a
path cut holds for every replica. Of a ring, the members per node, egress and ingress loads and latencies
do not depend on the order of the replicas; only the loads of node pairs and uplinks do, through the edges.
Hence, without uplinks for ``any``,

* ``any`` permutation of the replicas (of all stages at once) keeps the iteration time if no pair capacity
  can bind (each is at least the sender's egress or the receiver's ingress capacity), or if every node hosts
  at most one cell (no two rings share an edge) and all pair capacities are equal;
* a ``rotation`` keeps it if the ring follows the replicas one by one, which holds when every node hosts at
  most one cell, and for up to three replicas. With four, nodes A B A C give the ring A B C; rotated,
  B A C A gives B A C, its reverse, and links are directed;
* else ``none`` is used.

Nodes. Two nodes may change places if they agree in slots, capacities, local links, uplinks, in their links
to and from every other node, and in both directions between them.

Both can be used together, see `canonical_placement`: relabelling nodes inside a class in the order of
first use moves no cell to another class, and sorting or rotating replicas by a key that names the class
first commutes with it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from pipette_milp.cost.tables import CostTables, IntArray

ReplicaSymmetry = Literal["any", "rotation", "none"]


def binding_pairs(tables: CostTables) -> np.ndarray:
    """[N, N] whether the pair's capacity can be what limits a ring edge: below egress and ingress."""
    egress = tables.egress_bytes_per_s[:, None]
    ingress = tables.ingress_bytes_per_s[None, :]
    binding = tables.pair_bytes_per_s < np.minimum(egress, ingress)
    np.fill_diagonal(binding, False)
    hosts = tables.slots > 0
    return np.asarray(binding & hosts[:, None] & hosts[None, :])


def replica_symmetry(tables: CostTables) -> ReplicaSymmetry:
    """Which permutations of the replicas keep every iteration time (module docstring)."""
    if tables.data == 1:
        return "none"
    if not binding_pairs(tables).any() and not len(tables.uplinks):
        return "any"
    hosts = np.flatnonzero(tables.slots > 0)
    if tables.slots.max() <= 1:
        off_diagonal = ~np.eye(len(hosts), dtype=bool)
        pairs = tables.pair_bytes_per_s[np.ix_(hosts, hosts)][off_diagonal]
        alike = np.all(pairs == pairs[0]) and not len(tables.uplinks)
        return "any" if alike else "rotation"
    return "rotation" if tables.data <= 3 else "none"


def node_classes(tables: CostTables) -> list[list[int]]:
    """Nodes that host cells, grouped so that any two of a group may change places; ascending."""
    classes: list[list[int]] = []
    for node in np.flatnonzero(tables.slots > 0).tolist():
        for members in classes:
            if all(_interchangeable(tables, member, node) for member in members):
                members.append(node)
                break
        else:
            classes.append([node])
    return classes


def _interchangeable(tables: CostTables, a: int, b: int) -> bool:
    vectors = (
        tables.slots,
        tables.egress_bytes_per_s,
        tables.ingress_bytes_per_s,
        tables.local_bytes_per_s,
        tables.local_latency_s,
    )
    if any(vector[a] != vector[b] for vector in vectors):
        return False
    if len(tables.uplinks) and set(tables.uplinks.of_node[a]) != set(tables.uplinks.of_node[b]):
        return False
    others = np.ones(tables.num_nodes, dtype=bool)
    others[[a, b]] = False
    for matrix in (tables.pair_bytes_per_s, tables.latency_s):
        if matrix[a, b] != matrix[b, a]:
            return False
        if np.any(matrix[a, others] != matrix[b, others]) or np.any(matrix[others, a] != matrix[others, b]):
            return False
    return True


def canonical_placement(tables: CostTables, node_of_cell: IntArray) -> IntArray:
    """An equal placement [p, d] that the symmetry rows of the models keep.

    Replicas come first in the order of the class (named by its smallest node) of their cell of stage 0, then
    in the order in which nodes are relabelled: first use inside each class, stage by stage.
    """
    nodes = np.array(node_of_cell, dtype=np.int64)
    class_of = np.arange(tables.num_nodes)
    for members in node_classes(tables):
        class_of[members] = members[0]
    symmetry = replica_symmetry(tables)
    first = nodes[0]
    if symmetry == "rotation":
        start = int(np.argmin(class_of[first]))
        nodes = np.roll(nodes, -start, axis=1)
    elif symmetry == "any":
        nodes = nodes[:, np.lexsort((first, class_of[first]))]
    nodes = _relabelled(tables, nodes)
    if symmetry == "any":
        nodes = _relabelled(tables, nodes[:, np.argsort(nodes[0], kind="stable")])
    return nodes


def _relabelled(tables: CostTables, nodes: IntArray) -> IntArray:
    """Inside each class, nodes take the class's indices in the order of their first use."""
    label = np.full(tables.num_nodes, -1)
    for members in node_classes(tables):
        used = [node for node in dict.fromkeys(nodes.ravel().tolist()) if node in members]
        for old, new in zip(used, members, strict=False):
            label[old] = new
    return np.asarray(label[nodes])
