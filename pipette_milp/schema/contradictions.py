"""What no single section of an instance can see: fields of different sections that exclude each other."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from pipette_milp.schema.cluster import ClusterSection, NodeSpec
from pipette_milp.schema.link_groups import LinkGroups
from pipette_milp.schema.model import ModelSection
from pipette_milp.schema.search import ComputeSection, SearchSection
from pipette_milp.schema.strict import Location
from pipette_milp.schema.training import TrainingSection


def contradictions(
    model: ModelSection | None,
    training: TrainingSection | None,
    cluster: ClusterSection | None,
    search: SearchSection | None,
    compute: ComputeSection | None = None,
) -> list[tuple[Location, str]]:
    """Problems between fields of valid sections; a section that is not valid is None."""
    problems: list[tuple[Location, str]] = []
    if cluster is not None:
        problems += _cluster_contradictions(cluster)
    if training is not None and cluster is not None:
        for name in dict.fromkeys(node.gpu_type for node in cluster.nodes):
            peaks = cluster.gpu_types[name].peak_flops
            if training.precision not in peaks:
                problems.append(
                    (
                        ("cluster", "gpu_types", name, "peak_flops"),
                        f"has no entry for precision {training.precision!r}, only {', '.join(peaks)}",
                    )
                )
    if model is not None and search is not None and search.layers_per_stage is not None:
        total = sum(search.layers_per_stage)
        if total != model.layers:
            problems.append(
                (("search", "layers_per_stage"), f"adds up to {total} layers, the model has {model.layers}")
            )
    if compute is not None:
        problems += _profile_problems(compute, model, cluster)
    return problems


def _profile_problems(
    compute: ComputeSection, model: ModelSection | None, cluster: ClusterSection | None
) -> list[tuple[Location, str]]:
    """Entries for GPUs that are not declared or layers that the model cannot have."""
    problems: list[tuple[Location, str]] = []
    for index, entry in enumerate(compute.entries):
        place: Location = ("compute", "entries", index)
        if cluster is not None and entry.gpu_type not in cluster.gpu_types:
            known = ", ".join(cluster.gpu_types)
            problems.append(((*place, "gpu_type"), f"there is no {entry.gpu_type!r}, only {known}"))
        if model is None:
            continue
        if model.attention_heads % entry.tensor:
            message = f"{entry.tensor} does not divide the model's {model.attention_heads} attention heads"
            problems.append(((*place, "tensor"), message))
        if entry.layer_kind == "moe" and model.moe is None:
            problems.append(((*place, "layer_kind"), "is moe, the model has no experts"))
    return problems


def _cluster_contradictions(cluster: ClusterSection) -> list[tuple[Location, str]]:
    problems: list[tuple[Location, str]] = []
    network = cluster.network
    size = len(cluster.nodes)
    place: Location = ("cluster", "network", "inter_node")
    if network.inter_node is None:
        if size > 1:
            problems.append((place, f"is required: there are {size} nodes"))
    elif isinstance(network.inter_node.bandwidth, tuple) and len(network.inter_node.bandwidth) != size:
        problems.append(
            (
                (*place, "bandwidth", "values"),
                f"has {len(network.inter_node.bandwidth)} rows, expected one per node, {size}",
            )
        )
    elif isinstance(network.inter_node.bandwidth, LinkGroups):
        problems += _group_problems(cluster, network.inter_node.bandwidth)
    typed = [name for name, node_type in cluster.node_types.items() if node_type.scale_up is not None]
    if network.intra_node is not None and typed:
        problems.append(
            (
                ("cluster", "network", "intra_node"),
                f"is the short form for all nodes, but node type {typed[0]!r} has a scale_up: give one",
            )
        )
    if network.intra_node is None:
        bare = [node for node in cluster.nodes if node.gpus > 1 and not _has_scale_up(cluster, node)]
        if bare:
            problems.append(
                (
                    ("cluster", "network", "intra_node"),
                    f"is required (or a scale_up in its node type): {bare[0].name!r} has {bare[0].gpus} GPUs",
                )
            )
    problems += _uplink_problems(cluster)
    problems += _exclusion_problems(cluster)
    return problems


def _group_problems(cluster: ClusterSection, links: LinkGroups) -> list[tuple[Location, str]]:
    place: Location = ("cluster", "network", "inter_node", "bandwidth", "groups")
    names = {node.name for node in cluster.nodes}
    problems: list[tuple[Location, str]] = [
        ((*place, g, i), f"there is no node {name!r}")
        for g, group in enumerate(links.groups)
        for i, name in enumerate(group)
        if name not in names
    ]
    grouped = links.group_of()
    left = [node.name for node in cluster.nodes if node.name not in grouped]
    if left:
        problems.append((place, f"every node must be in a group: {left[0]!r} is in none, {len(left)} in all"))
    return problems


def _uplink_problems(cluster: ClusterSection) -> list[tuple[Location, str]]:
    """Unknown or repeated names, and groups that overlap without one holding the other.

    Of two such groups it is not known which uplink a flow takes.
    """
    problems: list[tuple[Location, str]] = []
    known = {node.name for node in cluster.nodes}
    place: Location = ("cluster", "network", "uplinks")
    uplinks = cluster.network.uplinks
    holding: dict[str, list[int]] = {}
    for index, uplink in enumerate(uplinks):
        unknown = [name for name in uplink.nodes if name not in known]
        if unknown:
            problems.append(((*place, index, "nodes"), f"there is no node {unknown[0]!r}"))
        repeated = [name for name, count in Counter(uplink.nodes).items() if count > 1]
        if repeated:
            problems.append(((*place, index, "nodes"), f"names {repeated[0]!r} more than once"))
        if uplink.name in [other.name for other in uplinks[:index]]:
            problems.append(((*place, index, "name"), f"the name {uplink.name!r} occurs more than once"))
        for name in dict.fromkeys(uplink.nodes):
            holding.setdefault(name, []).append(index)
    sets = [set(uplink.nodes) for uplink in uplinks]
    meeting = {pair for indices in holding.values() for pair in combinations(indices, 2)}
    for one, other in sorted(meeting):
        if not (sets[one] <= sets[other] or sets[other] <= sets[one]):
            problems.append(
                (
                    (*place, other, "nodes"),
                    f"shares {sorted(sets[one] & sets[other])[0]!r} with {uplinks[one].name!r} but neither "
                    f"holds the other: groups must be nested or apart",
                )
            )
    return problems


def _exclusion_problems(cluster: ClusterSection) -> list[tuple[Location, str]]:
    problems: list[tuple[Location, str]] = []
    sizes = {node.name: node.gpus for node in cluster.nodes}
    for index, name in enumerate(cluster.exclude.nodes):
        if name not in sizes:
            problems.append((("cluster", "exclude", "nodes", index), f"there is no node {name!r}"))
    for index, item in enumerate(cluster.exclude.gpus):
        name, _, local = item.rpartition(":")
        if name not in sizes or not local.isdecimal():
            message = f'expected "node:local index", for example "{cluster.nodes[0].name}:0", got {item!r}'
            problems.append((("cluster", "exclude", "gpus", index), message))
        elif int(local) >= sizes[name]:
            message = f"node {name!r} has GPUs 0 to {sizes[name] - 1}, got {local}"
            problems.append((("cluster", "exclude", "gpus", index), message))
    if not problems and len(cluster.excluded_gpu_ids()) == cluster.num_gpus:
        problems.append((("cluster", "exclude"), "leaves no GPU to use"))
    return problems


def _has_scale_up(cluster: ClusterSection, node: NodeSpec) -> bool:
    return node.type is not None and cluster.node_types[node.type].scale_up is not None
