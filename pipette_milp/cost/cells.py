"""Links inside the cells of a configuration: within a node, or between the whole nodes that a cell takes.

``t`` tensor ranks in a row make a context rank, ``c`` of these a cell. A cell larger than a node takes whole
nodes (`Cluster.for_cells`). With t above the GPUs of a node the tensor collectives run between nodes, over
the cards of all GPUs at once, and every context ring stays on one card a node; else the context ring leaves
its node, as do the rings of the gradients, one for each tensor rank of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.cluster import Cluster
from pipette_milp.cost.communication import LOCAL_STEP_S, NODE_STEP_S
from pipette_milp.schema.plan import Configuration


@dataclass(frozen=True)
class CellLinks:
    """What the collectives of a cell attain; bytes/s are those of one ring or flow."""

    tensor_bytes_per_s: float
    tensor_nodes: int
    """Nodes a tensor group spans."""
    context_bytes_per_s: float
    """Of keys and values from one context rank to the next."""
    context_step_s: float
    ring_bytes_per_s: float
    """Of a gradient ring between the members of one cell."""
    ring_nodes: int
    """Nodes of a cell that a gradient ring passes."""
    ring_share: float
    """Members of a gradient ring on one node of a cell: their ports serve it together. 1 where only scale-up
    ports count."""


def cell_links(cluster: Cluster, configuration: Configuration) -> CellLinks:
    """Links inside the cells of a configuration.

    Raises:
        ValueError: cells of this size do not come out even on the nodes.
    """
    places = cluster.for_cells(configuration.cell_size)
    if places is None:
        raise ValueError(f"no places for cells of {configuration.cell_size} GPUs")
    tensor, context = configuration.tensor, configuration.context
    local = float(cluster.local_bytes_per_s.min())
    if places.joined == 1:
        share = float(context) if cluster.num_nodes > 1 else 1.0
        return CellLinks(local, 1, local, LOCAL_STEP_S, local, 1, share)
    per_node = int(cluster.gpus_per_node[0])
    card = min(float(cluster.egress_bytes_per_s.min()), float(cluster.ingress_bytes_per_s.min()))
    card = min(card, places.joining_bytes_per_s)
    port = cluster.port_bytes_per_s
    lanes = min(tensor, per_node)  # tensor ranks of a node, each with flows and rings of its own
    if tensor > per_node:
        share, ring_nodes, tensor_nodes = 1.0, context, tensor // per_node
        tensor_rate = min(local, card, per_node * port)
    else:
        share, ring_nodes, tensor_nodes = context / places.joined, places.joined, 1
        tensor_rate = local
    return CellLinks(
        tensor_bytes_per_s=tensor_rate,
        tensor_nodes=tensor_nodes,
        context_bytes_per_s=min(local, port, card / lanes),
        context_step_s=NODE_STEP_S,
        ring_bytes_per_s=min(local, share * port, card / lanes),
        ring_nodes=ring_nodes,
        ring_share=share,
    )
