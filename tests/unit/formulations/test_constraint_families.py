"""Every constraint family alone, on both back ends: build it, fix a plan, read what it forces.

Placements are written as node of cell [stage][replica]. Expected times come from the plain evaluation
of the cost tables, which the oracle tests hold against an independent one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipette_milp.cost.placement import placement_durations, ring_times
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.formulations import cpsat, milp
from pipette_milp.formulations.cuts import PathCut
from pipette_milp.formulations.problem import CONSTRAINT_FAMILIES, JointProblem, ModelPlan
from pipette_milp.schema.plan import Configuration, split_stages
from pipette_milp.uplinks import Uplinks
from tests.unit.formulations.model_harness import BACKENDS, TOLERANCE_S, fix_plan, harness

PLACES = ("one_family", "cell_on_one_node", "node_slots", "layer_split")
HOPS = ("hop_arcs", "hop_time")
RINGS = ("ring_members", "ring_arcs", "ring_order", "ring_time")

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def tables(
    pipeline: int = 2, data: int = 2, slots: tuple[int, ...] = (2, 2, 2), **changes: object
) -> CostTables:
    """Three nodes with different directed links; every kind of communication takes about 0.1 s."""
    nodes = len(slots)
    rng = np.random.default_rng(7)
    layers = 3 * pipeline
    base = CostTables(
        configuration=Configuration(
            pipeline=pipeline,
            tensor=2,
            data=data,
            micro_batch=1,
            num_micro_batches=4,
            stages=split_stages((3,) * pipeline),
        ),
        total_layers=layers,
        min_layers=np.ones(pipeline, dtype=int),
        max_layers=np.full(pipeline, layers - pipeline + 1),
        forward_layer_s=0.01,
        backward_layer_s=0.02,
        weight_gradient_layer_s=0.0,
        forward_extra_s=np.linspace(0.001, 0.003, pipeline),
        backward_extra_s=np.linspace(0.002, 0.004, pipeline),
        weight_gradient_extra_s=np.zeros(pipeline),
        memory_layer_bytes=np.full(pipeline, 1e9),
        memory_extra_bytes=np.linspace(2e9, 1e9, pipeline),
        memory_usable_bytes=100e9,
        slots=np.array(slots),
        latency_s=rng.uniform(1e-3, 5e-3, (nodes, nodes)),
        pair_bytes_per_s=rng.uniform(1e9, 3e9, (nodes, nodes)),
        egress_bytes_per_s=np.linspace(2.5e9, 3.5e9, nodes),
        ingress_bytes_per_s=np.linspace(3.5e9, 2.5e9, nodes),
        port_bytes_per_s=2e9,
        local_bytes_per_s=np.linspace(5e9, 9e9, nodes),
        local_latency_s=np.full(nodes, 1e-4),
        hop_bytes=5e7,
        hop_gather_s=1e-3,
        sync=Ring(2e7, np.linspace(1e7, 3e7, pipeline), 1e-3, 2e-3, 5e-4),
        sync_buckets=1,
        gather=Ring(1e7, np.linspace(3e7, 1e7, pipeline), 1e-3, 2e-3, 5e-4),
        gather_exposed=True,
        embedding_bytes=6e7,
        embedding_latency_s=1e-3,
        optimizer_layer_s=2e-3,
        optimizer_extra_s=np.linspace(1e-3, 2e-3, pipeline),
        fixed_s=5e-3,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def problem(*families: CostTables, **changes: object) -> JointProblem:
    return JointProblem(families, (1.0,) * len(families), reference_s=1.0, **changes)  # type: ignore[arg-type]


def value(
    backend: str, of: JointProblem, only: tuple[str, ...], plan: ModelPlan, name: str, key: object = None
) -> float:
    """Least value of a variable with a plan fixed."""
    model = harness(backend, of, only)
    fix_plan(model, plan)
    result = model.minimise(name, key, plan.family)
    assert result is not None, "infeasible"
    return result


def feasible(backend: str, of: JointProblem, only: tuple[str, ...], plan: ModelPlan) -> bool:
    model = harness(backend, of, only)
    fix_plan(model, plan)
    return model.minimise() is not None


def plan(*nodes: tuple[int, ...], layers: tuple[int, ...] | None = None) -> ModelPlan:
    return ModelPlan(0, layers or (3,) * len(nodes), nodes)


def test_back_ends_have_the_same_families(backend: str) -> None:
    builders = milp.BUILDERS if backend == "milp" else cpsat.BUILDERS
    assert set(builders) == set(CONSTRAINT_FAMILIES)


def test_an_unknown_family_is_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="no constraint family"):
        harness(backend, problem(tables()), ("hop_tme",))


def test_one_family(backend: str) -> None:
    for used in ((0, 0), (0, 1), (1, 0), (1, 1)):
        model = harness(backend, problem(tables(), tables()), ("one_family",))
        for family, use in enumerate(used):
            model.fix("use", None, use, family)
        assert (model.minimise() is not None) == (sum(used) == 1)


def test_cell_on_one_node(backend: str) -> None:
    of = problem(tables())
    for count, possible in ((0, False), (1, True), (2, False)):
        model = harness(backend, of, ("cell_on_one_node",))
        model.fix("use", None, 1)
        for n in range(3):
            model.fix("on", (1, 0, n), int(n < count))
        assert (model.minimise() is not None) == possible


def test_node_slots(backend: str) -> None:
    of = problem(tables(slots=(2, 1, 2)))
    assert feasible(backend, of, ("node_slots",), plan((0, 1), (0, 2)))
    assert not feasible(backend, of, ("node_slots",), plan((0, 1), (1, 2)))
    assert not feasible(backend, of, ("node_slots",), plan((0, 0), (0, 2)))


def test_layer_split(backend: str) -> None:
    of = problem(tables(min_layers=np.array([1, 2]), max_layers=np.array([4, 5])))
    for layers, possible in (
        ((3, 3), True),
        ((4, 2), True),
        ((3, 2), False),
        ((5, 1), False),
        ((0, 6), False),
    ):
        assert feasible(backend, of, ("layer_split",), plan((0, 1), (0, 1), layers=layers)) == possible


def test_memory_of_each_stage(backend: str) -> None:
    of = problem(tables(memory_usable_bytes=6e9))  # 2e9 + 1e9 a layer on stage 0, 1e9 + 1e9 on stage 1
    for layers, possible in (((4, 2), True), ((5, 1), False), ((1, 5), True)):
        assert feasible(backend, of, ("memory",), plan((0, 1), (0, 1), layers=layers)) == possible


def test_memory_of_chunks_that_weigh_differently(backend: str) -> None:
    configuration = Configuration(
        pipeline=1,
        virtual_stages=2,
        tensor=1,
        data=1,
        micro_batch=1,
        num_micro_batches=1,
        stages=split_stages((1, 2)),
    )
    of = problem(
        tables(
            pipeline=1,
            data=1,
            configuration=configuration,
            min_layers=np.zeros(2, dtype=int),
            max_layers=np.array([3, 3]),
            memory_layer_bytes=np.array([1e9, 2e9]),
            memory_extra_bytes=np.array([1e9]),
            memory_usable_bytes=6e9,
            forward_extra_s=np.zeros(2),
            backward_extra_s=np.zeros(2),
        )
    )
    for layers, possible in (((1, 2), True), ((3, 0), True), ((0, 3), False)):
        candidate = ModelPlan(0, layers, ((0,),))
        assert feasible(backend, of, ("memory",), candidate) == possible


def test_hop_arcs_join_the_two_cells(backend: str) -> None:
    model = harness(backend, problem(tables()), ("hop_arcs",))
    fix_plan(model, plan((0, 1), (2, 1)))
    model.fix("hop", (0, 0, 0, 2), 0)
    assert model.minimise() is None
    model = harness(backend, problem(tables()), ("hop_arcs",))
    fix_plan(model, plan((0, 1), (2, 1)))
    model.fix("hop", (0, 0, 0, 2), 1)
    model.fix("hop", (0, 1, 1, 1), 1)
    assert model.minimise() is not None


@pytest.mark.parametrize("nodes", [((0, 1), (2, 0)), ((1, 1), (1, 2)), ((0, 2), (0, 2))])
def test_hop_time_in_each_direction(backend: str, nodes: tuple) -> None:
    family = tables()  # no two flows of these placements share a resource
    durations = placement_durations(family, np.array([3, 3]), np.array(nodes))
    for z in range(2):
        for name in ("hop_forward", "hop_backward"):
            found = value(backend, problem(family), HOPS, plan(*nodes), name, (0, z))
            assert found == pytest.approx(getattr(durations, f"{name}_s")[0, z], abs=TOLERANCE_S)


@pytest.mark.parametrize("nodes", [((0, 0), (1, 1)), ((0, 0), (1, 2)), ((1, 2), (0, 0)), ((1, 1), (1, 0))])
def test_hop_sharing_of_pair_egress_and_ingress(backend: str, nodes: tuple) -> None:
    family = tables()
    durations = placement_durations(family, np.array([3, 3]), np.array(nodes))
    longer = 0
    for z in range(2):
        for name in ("hop_forward", "hop_backward"):
            expected = getattr(durations, f"{name}_s")[0, z]
            alone = value(backend, problem(family), HOPS, plan(*nodes), name, (0, z))
            shared = value(backend, problem(family), (*HOPS, "hop_sharing"), plan(*nodes), name, (0, z))
            assert shared == pytest.approx(expected, abs=TOLERANCE_S)
            longer += shared > alone + TOLERANCE_S
    assert longer or nodes == ((1, 1), (1, 0)), "nothing was shared"


def test_ring_members_are_counted(backend: str) -> None:
    for count, possible in ((1, False), (2, True)):
        model = harness(backend, problem(tables()), ("ring_members",))
        fix_plan(model, plan((0, 0), (1, 2)))
        model.fix("members", (0, 0, count), 1)
        assert (model.minimise() is not None) == possible


def test_ring_arcs_follow_the_replicas(backend: str) -> None:
    for arc, possible in (((0, 0, 1, 2), True), ((0, 0, 2, 1), False)):
        model = harness(backend, problem(tables()), ("ring_arcs",))
        fix_plan(model, plan((1, 2), (0, 0)))
        model.fix("ring", arc, 1)
        assert (model.minimise() is not None) == possible


def test_ring_order_is_that_of_first_appearance(backend: str) -> None:
    family = tables(pipeline=1, data=4, slots=(2, 2, 2), embedding_bytes=0.0)
    order = plan((1, 0, 1, 2))  # ring 1 -> 0 -> 2 -> 1, the third replica adds nothing
    right = {(0, 0, 1, 0): 1, (0, 1, 0, 0): 1, (0, 2, 0, 2): 1, (0, 3, 2, 1): 1}
    for arc, expected in right.items():
        model = harness(backend, problem(family), ("ring_arcs", "ring_order"))
        fix_plan(model, order)
        model.fix("ring", arc, 1 - expected)
        assert model.minimise() is None, arc


@pytest.mark.parametrize("data", [2, 3, 4])
@pytest.mark.parametrize("layers", [(1,), (3,)])
def test_ring_time_of_a_single_stage(backend: str, data: int, layers: tuple[int, ...]) -> None:
    rings = [(0, 1, 0, 2), (2, 2, 1, 1), (1, 0, 1, 2), (0, 2, 2, 1)]
    family = tables(pipeline=1, data=data, embedding_bytes=0.0, total_layers=layers[0])
    of = problem(family)
    for ring in rings:
        nodes = (ring[:data],)
        for name in ("sync", "gather"):
            expected = ring_times(family, getattr(family, name), np.array(layers), np.array(nodes))[0]
            model = harness(backend, of, RINGS)
            fix_plan(model, ModelPlan(0, layers, nodes))
            assert model.minimise(name, 0) == pytest.approx(expected, abs=TOLERANCE_S)


def test_ring_latency_counts_distinct_nodes_whichever_step_is_dearer(backend: str) -> None:
    for node_step, local_step in ((2e-2, 1e-3), (1e-3, 2e-2)):
        ring = Ring(1.0, np.zeros(1), 1e-3, node_step, local_step)
        family = tables(pipeline=1, data=3, embedding_bytes=0.0, sync=ring)
        for nodes in (((0, 0, 1),), ((0, 1, 2),)):
            distinct = len(set(nodes[0]))
            expected = 1e-3 + (distinct - 1) * node_step + (3 - distinct) * local_step
            found = value(backend, problem(family), RINGS, ModelPlan(0, (3,), nodes), "sync", 0)
            assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("nodes", [((0, 1), (0, 1)), ((0, 1), (1, 0)), ((0, 1), (1, 2)), ((0, 0), (1, 1))])
@pytest.mark.parametrize("layers", [(3, 3), (5, 1)])
def test_ring_sharing_between_stages(backend: str, nodes: tuple, layers: tuple[int, int]) -> None:
    family = tables()
    expected = ring_times(family, family.sync, np.array(layers), np.array(nodes))
    for s in range(2):
        candidate = ModelPlan(0, layers, nodes)
        found = value(backend, problem(family), (*RINGS, "ring_sharing"), candidate, "sync", s)
        assert found == pytest.approx(expected[s], abs=TOLERANCE_S)
    if nodes == ((0, 1), (0, 1)):
        alone = value(backend, problem(family), RINGS, ModelPlan(0, layers, nodes), "sync", 0)
        assert alone < expected[0] - TOLERANCE_S, "nothing was shared"


@pytest.mark.parametrize(
    "nodes",
    [
        ((0, 1), (0, 1)),
        ((0, 2), (0, 2)),
        ((0, 2), (1, 2)),
        ((0, 2), (2, 1)),
        ((0, 2, 1), (1, 0, 2)),
        ((0, 0, 2), (2, 1, 1)),
        ((0, 2, 1, 2), (1, 2, 0, 1)),
    ],
)
@pytest.mark.parametrize("layers", [(3, 3), (5, 1)])
def test_rings_on_uplinks(backend: str, nodes: tuple, layers: tuple[int, int]) -> None:
    """Nodes 0 and 1 share one uplink, node 0 has another."""
    family = tables(data=len(nodes[0]), slots=(4, 4, 4))
    family = replace(family, uplinks=Uplinks.of([([0, 1], 1e9), ([0], 9e8)], 3))
    for name in ("sync", "gather"):
        expected = ring_times(family, getattr(family, name), np.array(layers), np.array(nodes))
        for s in range(2):
            only = (*RINGS, "ring_order", "ring_sharing", "ring_uplinks")
            found = value(backend, problem(family), only, ModelPlan(0, layers, nodes), name, s)
            assert found == pytest.approx(expected[s], abs=TOLERANCE_S)


@pytest.mark.parametrize("nodes", [((0, 1), (2, 2)), ((0, 2), (1, 1)), ((0, 1), (1, 0)), ((2, 2), (0, 2))])
def test_flows_on_uplinks(backend: str, nodes: tuple) -> None:
    family = tables(slots=(4, 4, 4))
    family = replace(family, uplinks=Uplinks.of([([0, 1], 1e9), ([0], 9e8)], 3))
    expected = placement_durations(family, np.array([3, 3]), np.array(nodes))
    only = ("hop_arcs", "hop_time", "hop_sharing", "embedding_arcs", "embedding_time")
    for z in range(2):
        for name in ("hop_forward", "hop_backward"):
            found = value(backend, problem(family), only, plan(*nodes), name, (0, z))
            assert found == pytest.approx(getattr(expected, f"{name}_s")[0, z], abs=TOLERANCE_S)
    found = value(backend, problem(family), only, plan(*nodes), "embedding")
    assert found == pytest.approx(expected.embedding_sync_s, abs=TOLERANCE_S)


@pytest.mark.parametrize("backward_layer_s", [1e-3, 2e-2])
def test_sync_overlap_of_stage_0(backend: str, backward_layer_s: float) -> None:
    family = tables(sync_buckets=3, backward_layer_s=backward_layer_s)
    nodes = ((0, 1), (2, 2))
    expected = placement_durations(family, np.array([3, 3]), np.array(nodes)).gradient_sync_s[0]
    only = (*RINGS, "ring_sharing", "sync_overlap")
    found = value(backend, problem(family), only, plan(*nodes), "exposed_sync")
    assert found == pytest.approx(expected, abs=TOLERANCE_S)


def test_embedding_arcs_join_first_and_last_stage(backend: str) -> None:
    family = tables(pipeline=3)
    for arc, possible in (((0, 0, 2), True), ((0, 0, 1), False)):
        model = harness(backend, problem(family), ("embedding_arcs",))
        fix_plan(model, plan((0, 1), (1, 2), (2, 0)))
        model.fix("exchange", arc, 1)
        assert (model.minimise() is not None) == possible


@pytest.mark.parametrize(
    "nodes",
    [((0, 1), (2, 2), (0, 1)), ((0, 0), (2, 2), (1, 1)), ((0, 1), (2, 2), (1, 0)), ((0, 1), (1, 2), (2, 0))],
)
def test_embedding_time(backend: str, nodes: tuple) -> None:
    family = tables(pipeline=3)
    expected = placement_durations(family, np.array([3, 3, 3]), np.array(nodes)).embedding_sync_s
    found = value(backend, problem(family), ("embedding_arcs", "embedding_time"), plan(*nodes), "embedding")
    assert found == pytest.approx(expected, abs=TOLERANCE_S)


def test_step_time_is_the_slowest_stage(backend: str) -> None:
    family = tables()
    nodes, layers = ((0, 1), (2, 2)), (2, 4)
    durations = placement_durations(family, np.array(layers), np.array(nodes))
    expected = max(durations.optimizer_s + durations.parameter_gather_s) + family.fixed_s
    only = (*RINGS, "ring_sharing", "step_time")
    found = value(backend, problem(family), only, ModelPlan(0, layers, nodes), "step")
    assert found == pytest.approx(expected, abs=TOLERANCE_S)


@pytest.mark.parametrize("end_stage", [0, 1, 2])
def test_path_cuts_add_up_the_durations(backend: str, end_stage: int) -> None:
    family = tables(pipeline=3)
    cut = PathCut(0, end_stage, (4, 1, 1), (4, 1, 2), (0, 0, 0), (1, 2), (3, 1))
    nodes, layers = ((0, 0), (1, 1), (2, 2)), (2, 4, 3)
    expected = cut.value_s(placement_durations(family, np.array(layers), np.array(nodes)))
    of = problem(family, cuts=(cut,))
    candidate = ModelPlan(0, layers, nodes)
    symmetry = ("replica_symmetry", "node_symmetry", "cutoff", "family_bound")
    only = tuple(name for name in CONSTRAINT_FAMILIES if name not in symmetry)
    assert value(backend, of, only, candidate, "time_s") == pytest.approx(expected, abs=3e-6)
    alone = value(backend, of, ("path_cuts",), candidate, "time_s")
    durations = placement_durations(family, np.array(layers), np.array(nodes))
    compute = np.array(cut.forward) @ durations.forward_s + np.array(cut.backward) @ durations.backward_s
    assert alone == pytest.approx(compute[0], abs=TOLERANCE_S)


def test_family_bound(backend: str) -> None:
    of = problem(tables(), tables(), bounds_s=(0.25, float("inf")))
    model = harness(backend, of, ("one_family", "family_bound"))
    assert model.minimise() == pytest.approx(0.25, abs=TOLERANCE_S)
    model.fix("use", None, 1, 1)
    assert model.minimise() is None


def test_cutoff(backend: str) -> None:
    for cutoff_s, possible in ((0.26, True), (0.24, False)):
        of = problem(tables(), bounds_s=(0.25,), cutoff_s=cutoff_s)
        model = harness(backend, of, ("one_family", "family_bound", "cutoff"))
        assert (model.minimise() is not None) == possible


def test_replica_symmetry(backend: str) -> None:
    of = problem(tables(data=3))  # directed links: rotations only
    for stage_0, possible in (((0, 1, 2), True), ((0, 2, 1), True), ((1, 0, 2), False), ((2, 2, 0), False)):
        candidate = plan(stage_0, (0, 1, 2))
        assert feasible(backend, of, ("replica_symmetry",), candidate) == possible


def test_node_symmetry(backend: str) -> None:
    uniform = {
        "latency_s": np.full((3, 3), 1e-3),
        "pair_bytes_per_s": np.full((3, 3), 2e9),
        "egress_bytes_per_s": np.full(3, 3e9),
        "ingress_bytes_per_s": np.full(3, 3e9),
        "local_bytes_per_s": np.full(3, 9e9),
    }
    nodes = {((0, 1), (0, 2)): True, ((0, 2), (0, 1)): False, ((1, 0), (0, 2)): False, ((0, 0), (1, 1)): True}
    for placement, possible in nodes.items():
        candidate = plan(*placement)
        assert feasible(backend, problem(tables(**uniform)), ("node_symmetry",), candidate) == possible
        assert feasible(backend, problem(tables()), ("node_symmetry",), candidate)
