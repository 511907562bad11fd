"""Random tiny cost tables, an evaluation of them written from their docstring, and exhaustive search.

Nothing here calls the cost package's own evaluation, so it is also a check of that code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pipette_milp.cost.durations import Durations
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.simulator import compose_iteration, event_graph, finish_times
from pipette_milp.uplinks import Uplinks

Placement = tuple[tuple[int, ...], ...]

SHAPES = (
    # pipeline, data, virtual stages, nodes, slots of each node
    (1, 1, 1, 2, (1, 1)),
    (1, 1, 1, 1, (2,)),
    (2, 1, 1, 3, (1, 1, 1)),
    (3, 1, 1, 3, (1, 2, 1)),
    (4, 1, 1, 4, (1, 1, 1, 1)),
    (4, 1, 1, 3, (2, 2, 1)),
    (1, 2, 1, 3, (1, 1, 2)),
    (1, 3, 1, 4, (1, 1, 1, 1)),
    (1, 4, 1, 4, (2, 1, 2, 1)),
    (1, 4, 1, 3, (2, 2, 2)),
    (1, 5, 1, 3, (2, 2, 2)),
    (2, 2, 1, 4, (1, 1, 1, 1)),
    (2, 2, 1, 3, (2, 2, 1)),
    (2, 2, 1, 2, (2, 2)),
    (2, 3, 1, 3, (2, 2, 2)),
    (3, 2, 1, 3, (2, 2, 2)),
    (2, 2, 2, 2, (2, 2)),
    (2, 1, 2, 3, (1, 1, 1)),
)
"""Pipeline only, data only, one GPU, several stages and several replicas a node, virtual stages."""


def random_tables(rng: np.random.Generator, shape: tuple | None = None) -> CostTables:
    """One family: every feature of the tables appears with a fair chance."""
    if shape is None:
        shape = SHAPES[int(rng.integers(len(SHAPES)))]
    pipeline, data, virtual, nodes, slots = shape
    stages = pipeline * virtual
    layers = int(rng.integers(max(2, stages), 7))
    schedule = "interleaved" if virtual > 1 else str(rng.choice(["1f1b", "1f1b", "gpipe", "zb-h1"]))
    micro_batches = int(rng.integers(1, 9))
    if schedule == "interleaved":
        micro_batches = pipeline * int(rng.integers(1, 8 // pipeline + 1))
    transfers = "async" if schedule in ("interleaved", "zb-h1") else str(rng.choice(["exchange", "async"]))
    separate = schedule == "zb-h1"
    tensor = int(rng.choice([1, 2]))
    configuration = Configuration(
        pipeline=pipeline,
        virtual_stages=virtual,
        tensor=tensor,
        data=data,
        micro_batch=1,
        num_micro_batches=micro_batches,
        schedule=schedule,
        pipeline_transfers=transfers,  # type: ignore[arg-type]
        stages=split_stages(_even(layers, stages)),
    )
    wild = rng.random() < 0.5
    rate = (
        (lambda size: rng.uniform(1e9, 30e9, size)) if wild else (lambda size: rng.choice([5e9, 20e9], size))
    )
    pair = rate((nodes, nodes))
    if rng.random() < 0.15:
        pair = np.full((nodes, nodes), 12e9)
    node_rate = float(rng.choice([8e9, 25e9, 60e9]))
    even_nodes = rng.random() < 0.5
    egress = np.full(nodes, node_rate) if even_nodes else node_rate * rng.uniform(0.4, 1.6, nodes)
    ingress = np.full(nodes, node_rate) if even_nodes else node_rate * rng.uniform(0.4, 1.6, nodes)
    latency = np.full((nodes, nodes), 1e-5) if rng.random() < 0.3 else rng.uniform(1e-6, 2e-3, (nodes, nodes))
    sharded = data > 1 and rng.random() < 0.4
    memory_layer = np.tile(rng.uniform(1.0, 2.0, pipeline), virtual)
    memory_extra = rng.uniform(0.0, 2.0, pipeline)
    even_share = -(-layers // pipeline)
    tightness = rng.choice([0.85, 1.0, 1.0, 1.15, 1.15, 9.0, 9.0, 9.0, 9.0])
    usable = float((memory_layer[:pipeline] * even_share + memory_extra).max() * tightness)
    low = 0 if virtual == 1 and rng.random() < 0.2 else 1
    embedding = pipeline > 1 and rng.random() < 0.5
    node_step, local_step = (14e-5, 3e-5) if rng.random() < 0.7 else (3e-5, 14e-5)

    def ring(active: bool) -> Ring:
        size = float(rng.uniform(1e6, 3e7)) if active else 0.0
        return Ring(
            bytes_per_layer=size,
            bytes_extra=size * rng.uniform(0.0, 3.0, pipeline) * active,
            latency_s=1e-4 if active else 0.0,
            latency_per_node_step_s=node_step,
            latency_per_local_step_s=local_step,
        )

    return CostTables(
        configuration=configuration,
        total_layers=layers,
        min_layers=np.full(stages, low),
        max_layers=np.full(stages, layers - low * (stages - 1)),
        forward_layer_s=float(rng.uniform(1e-3, 4e-3)),
        backward_layer_s=float(rng.uniform(2e-3, 8e-3)),
        weight_gradient_layer_s=float(rng.uniform(1e-3, 4e-3)) if separate else 0.0,
        forward_extra_s=rng.uniform(0.0, 6e-3, stages) * (rng.random(stages) < 0.5),
        backward_extra_s=rng.uniform(0.0, 12e-3, stages) * (rng.random(stages) < 0.5),
        weight_gradient_extra_s=rng.uniform(0.0, 1e-3, stages) if separate else np.zeros(stages),
        memory_layer_bytes=memory_layer,
        memory_extra_bytes=memory_extra,
        memory_usable_bytes=usable,
        slots=np.array(slots),
        latency_s=latency,
        pair_bytes_per_s=pair,
        egress_bytes_per_s=egress,
        ingress_bytes_per_s=ingress,
        port_bytes_per_s=float(rng.choice([np.inf, 10e9])),
        local_bytes_per_s=np.full(nodes, 100e9) if even_nodes else rng.uniform(20e9, 200e9, nodes),
        local_latency_s=np.full(nodes, 4e-6) if even_nodes else rng.uniform(1e-6, 1e-4, nodes),
        hop_bytes=float(rng.uniform(1e6, 2e7)),
        hop_gather_s=float(rng.choice([0.0, 2e-4])),
        sync=ring(data > 1),
        sync_buckets=int(rng.choice([1, 1, 3])) if data > 1 else 1,
        gather=ring(sharded),
        gather_exposed=bool(rng.random() < 0.7),
        embedding_bytes=float(rng.uniform(1e6, 4e7)) if embedding else 0.0,
        embedding_latency_s=5e-5 if embedding else 0.0,
        optimizer_layer_s=float(rng.uniform(1e-4, 1e-3)),
        optimizer_extra_s=rng.uniform(0.0, 2e-3, pipeline),
        fixed_s=1e-3,
    )


def with_uplinks(tables: CostTables, seed: int) -> CostTables:
    """Two groups of nodes with narrow ways out, at times a third inside the first."""
    rng, nodes = np.random.default_rng(seed), tables.num_nodes
    first = int(rng.integers(1, nodes + 1))
    groups = [(range(first), rng.uniform(1e9, 8e9)), (range(first, nodes), rng.uniform(1e9, 8e9))]
    if rng.random() < 0.5:
        groups.append((range(int(rng.integers(1, first + 1))), rng.uniform(1e9, 8e9)))
    return replace(tables, uplinks=Uplinks.of(groups, nodes))


def _even(layers: int, stages: int) -> tuple[int, ...]:
    return tuple(layers // stages + (index < layers % stages) for index in range(stages))


# evaluation, from the docstring of CostTables


def evaluate_durations(tables: CostTables, layers: tuple[int, ...], placement: Placement) -> Durations:
    """Durations of one plan, flow by flow and edge by edge."""
    p, d, stages = tables.pipeline, tables.data, tables.num_virtual_stages
    split = np.array(layers)
    columns = np.ones((1, d))
    hops = [hop_times(tables, placement, j) for j in range(stages - 1)]
    stage_layers = [sum(layers[j] for j in range(stages) if j % p == s) for s in range(p)]
    sync = ring_times(tables, tables.sync, stage_layers, placement)
    if tables.sync_buckets > 1:
        backward_0 = tables.backward_layer_s * layers[0] + tables.backward_extra_s[0]
        k, m = tables.sync_buckets, len(set(placement[0]))
        if d > 1 and (tables.sync.bytes_per_layer > 0 or tables.sync.bytes_extra.any()):
            steps = (m - 1) * tables.sync.latency_per_node_step_s
            steps += (d - m) * tables.sync.latency_per_local_step_s
            sync[0] += (k - 1) * (tables.sync.latency_s + steps)  # every bucket has its own latency
        sync[0] = max(sync[0] / k, sync[0] - backward_0 * (k - 1) / k)
    gather = (
        ring_times(tables, tables.gather, stage_layers, placement) if tables.gather_exposed else [0.0] * p
    )
    weight = None
    if tables.weight_gradient_layer_s > 0:
        weight = (tables.weight_gradient_layer_s * split + tables.weight_gradient_extra_s)[:, None] * columns
    return Durations(
        forward_s=(tables.forward_layer_s * split + tables.forward_extra_s)[:, None] * columns,
        backward_s=(tables.backward_layer_s * split + tables.backward_extra_s)[:, None] * columns,
        weight_gradient_s=weight,
        hop_forward_s=np.array([there for there, _ in hops]).reshape(stages - 1, d),
        hop_backward_s=np.array([back for _, back in hops]).reshape(stages - 1, d),
        gradient_sync_s=np.array(sync),
        embedding_sync_s=embedding_time(tables, placement),
        optimizer_s=tables.optimizer_layer_s * np.array(stage_layers) + tables.optimizer_extra_s,
        parameter_gather_s=np.array(gather),
        fixed_s=tables.fixed_s,
    )


def flow_times(tables: CostTables, flows: list[tuple[int, int]], size: float) -> list[float]:
    """All flows at once, ``size`` bytes from each tensor rank."""
    crossing = [(a, b) for a, b in flows if a != b]
    times = []
    for a, b in flows:
        if a == b:
            times.append(tables.local_latency_s[a] + size / tables.local_bytes_per_s[a])
            continue
        load = tables.tensor * size
        on_uplinks = [
            sum(u in out_of(tables, *flow) for flow in crossing) * load / tables.uplinks.bytes_per_s[u[0]]
            for u in out_of(tables, a, b)
        ]
        times.append(
            tables.latency_s[a, b]
            + max(
                size / tables.port_bytes_per_s,
                crossing.count((a, b)) * load / tables.pair_bytes_per_s[a, b],
                sum(c == a for c, _ in crossing) * load / tables.egress_bytes_per_s[a],
                sum(e == b for _, e in crossing) * load / tables.ingress_bytes_per_s[b],
                *on_uplinks,
            )
        )
    return times


def out_of(tables: CostTables, a: int, b: int) -> list[tuple[int, str]]:
    """Uplinks that a flow passes, with the direction."""
    inside = [set(row[row >= 0].tolist()) for row in tables.uplinks.of_node] or [set()] * tables.num_nodes
    return [(u, "out") for u in inside[a] - inside[b]] + [(u, "in") for u in inside[b] - inside[a]]


def hop_times(tables: CostTables, placement: Placement, boundary: int) -> tuple[list[float], list[float]]:
    source, target = (placement[s] for s in tables.boundary_cells(boundary))
    there = flow_times(tables, list(zip(source, target, strict=True)), tables.hop_bytes)
    back = flow_times(tables, list(zip(target, source, strict=True)), tables.hop_bytes)
    return [t + tables.hop_gather_s for t in there], [t + tables.hop_gather_s for t in back]


def embedding_time(tables: CostTables, placement: Placement) -> float:
    if tables.embedding_bytes == 0:
        return 0.0
    first, last = placement[0], placement[-1]
    flows = list(zip(first, last, strict=True)) + list(zip(last, first, strict=True))
    return max(flow_times(tables, flows, tables.embedding_bytes)) + tables.embedding_latency_s


def ring_times(tables: CostTables, ring: Ring, stage_layers: list[int], placement: Placement) -> list[float]:
    if tables.data == 1 or (ring.bytes_per_layer == 0 and not ring.bytes_extra.any()):
        return [0.0] * tables.pipeline
    sent = [
        ring.bytes_per_layer * count + extra
        for count, extra in zip(stage_layers, ring.bytes_extra, strict=True)
    ]
    edges: list[list[tuple[int, int]]] = []
    for nodes in placement:
        order = list(dict.fromkeys(nodes))
        closed = [*order, order[0]]
        edges.append(list(zip(order, closed[1:], strict=True)) if len(order) > 1 else [])
    times = []
    for s, nodes in enumerate(placement):
        terms = [0.0]
        for n in set(nodes):
            members = nodes.count(n)
            if members >= 2:
                terms.append(sent[s] / tables.local_bytes_per_s[n])
            if edges[s]:
                terms.append(sent[s] / (members * tables.port_bytes_per_s))
        for a, b in edges[s]:
            on_edge = sum(tables.tensor * sent[k] for k in range(len(edges)) if (a, b) in edges[k])
            out = sum(tables.tensor * sent[k] for k in range(len(edges)) if any(c == a for c, _ in edges[k]))
            into = sum(tables.tensor * sent[k] for k in range(len(edges)) if any(e == b for _, e in edges[k]))
            terms += [
                on_edge / tables.pair_bytes_per_s[a, b],
                out / tables.egress_bytes_per_s[a],
                into / tables.ingress_bytes_per_s[b],
            ]
            group = [k for k in range(len(edges)) if set(placement[k]) & set(nodes)]
            for u in out_of(tables, a, b):
                load = sum(
                    tables.tensor * sent[k] for k in group for edge in edges[k] if u in out_of(tables, *edge)
                )
                terms.append(load / tables.uplinks.bytes_per_s[u[0]])
        m = len(set(nodes))
        latency = (
            ring.latency_s
            + (m - 1) * ring.latency_per_node_step_s
            + (tables.data - m) * ring.latency_per_local_step_s
        )
        times.append(latency + max(terms))
    return times


# exhaustive search


def layer_splits(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """All splits that bounds and memory allow."""
    p = tables.pipeline
    ranges = [range(low, high + 1) for low, high in zip(tables.min_layers, tables.max_layers, strict=True)]
    for split in itertools.product(*ranges):
        if sum(split) != tables.total_layers:
            continue
        used = [
            tables.memory_layer_bytes[s] * sum(split[s::p]) + tables.memory_extra_bytes[s] for s in range(p)
        ]
        if all(u <= tables.memory_usable_bytes * (1 + 1e-12) for u in used):
            yield split


def placements(tables: CostTables) -> Iterator[Placement]:
    """All assignments of cells to nodes within the slots."""
    p, d = tables.pipeline, tables.data
    for nodes in itertools.product(range(tables.num_nodes), repeat=p * d):
        if all(nodes.count(n) <= tables.slots[n] for n in range(tables.num_nodes)):
            yield tuple(nodes[s * d : (s + 1) * d] for s in range(p))


@dataclass(frozen=True)
class Optimum:
    """Best plan of a family by enumeration."""

    simulated_s: float
    layers: tuple[int, ...]
    placement: Placement
    num_plans: int


def graph_of(tables: CostTables):
    configuration = tables.configuration
    return event_graph(
        configuration.schedule,
        configuration.pipeline,
        configuration.virtual_stages,
        configuration.num_micro_batches,
        configuration.pipeline_transfers,
    )


def simulate_all(tables: CostTables, durations: list[Durations]) -> np.ndarray:
    """[K] iteration times."""

    def stack(name: str) -> np.ndarray:
        return np.array([getattr(duration, name) for duration in durations])

    weight = None if durations[0].weight_gradient_s is None else stack("weight_gradient_s")
    finish = finish_times(
        graph_of(tables),
        stack("forward_s"),
        stack("backward_s"),
        stack("hop_forward_s"),
        stack("hop_backward_s"),
        weight,
    )
    return compose_iteration(
        finish,
        stack("gradient_sync_s"),
        stack("embedding_sync_s"),
        stack("optimizer_s"),
        stack("parameter_gather_s"),
        stack("fixed_s"),
    )


def exhaustive(tables: CostTables) -> Optimum | None:
    """The best of all plans; None if there is none."""
    splits = list(layer_splits(tables))
    plans = [(split, placement) for placement in placements(tables) for split in splits]
    if not plans:
        return None
    times = simulate_all(tables, [evaluate_durations(tables, *plan) for plan in plans])
    best = int(np.argmin(times))
    return Optimum(float(times[best]), *plans[best], num_plans=len(plans))
