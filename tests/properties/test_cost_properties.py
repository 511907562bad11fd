"""What holds for every plan: more of a resource never harms, equal GPUs can be swapped."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_milp.assessment import Assessment, assess
from pipette_milp.cost.build import CostModel
from pipette_milp.plans import placement_of_cells
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.plan import Configuration, Placement
from pipette_milp.search_space import enumerate_space
from pipette_milp.units import Dimension, parse_quantity
from tests.conftest import INSTANCES

TINY = sorted(path.stem for path in INSTANCES.glob("tiny-*.json"))
UNIFORM = "tiny-2x2-a100-nominal"
ROUNDING = 1e-12
"""Relative; one more operation may round up where the true value stays."""
VARIED = {"training": {"sequence_parallel": [True, False], "recompute": ["none", "selective", "full"]},
          "search": {"schedules": ["1f1b", "gpipe", "zb-h1"]}}  # fmt: skip


def written(name: str) -> dict[str, Any]:
    """A shipped tiny instance with more options to choose from."""
    data: dict[str, Any] = json.loads((INSTANCES / f"{name}.json").read_text())
    for section, options in VARIED.items():
        data[section] |= options
    return data


@cache
def families(name: str) -> tuple[Configuration, ...]:
    space = enumerate_space(CostModel.of(load_instance(written(name))))
    return tuple(tables.configuration for tables in space.families)


@st.composite
def plans(draw: st.DrawFn, names: list[str] = TINY) -> tuple[str, Configuration, np.ndarray]:
    """A tiny instance, a configuration of its space with any split, any node for every cell."""
    name = draw(st.sampled_from(names))
    family = draw(st.sampled_from(families(name)))
    total, stages = sum(family.layers_per_stage), family.num_virtual_stages
    ends = sorted(draw(st.permutations(range(1, total)))[: stages - 1])
    split = tuple(int(value) for value in np.diff([0, *ends, total]))
    slots = CostModel.of(load_instance(written(name))).tables(family).slots
    places = draw(st.permutations([n for n, room in enumerate(slots) for _ in range(room)]))
    cells = np.array(places[: family.pipeline * family.data]).reshape(family.pipeline, family.data)
    return name, family.with_layers(split), cells


def judged(data: dict[str, Any], configuration: Configuration, cells: np.ndarray) -> Assessment:
    return assess(CostModel.of(load_instance(data)), configuration, cells)


def scale(data: dict[str, Any], place: str, factor: float) -> None:
    """Multiply a quantity, a plain number or a whole matrix of the file."""
    *parents, last = place.split("/")
    target = data
    for part in parents:
        if part not in target:
            return
        target = target[part]
    value = target.get(last)
    if isinstance(value, dict):
        target[last] = {
            **value, "values": [[None if x is None else x * factor for x in row] for row in value["values"]]
        }  # fmt: skip
    elif value is not None:
        dimension = Dimension.TIME if last == "latency" else Dimension.BANDWIDTH
        target[last] = parse_quantity(value, dimension) * factor


BANDWIDTHS = ("cluster/network/inter_node/bandwidth", "cluster/network/intra_node/bandwidth")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), factor=st.floats(1.0, 8.0), which=st.sampled_from(BANDWIDTHS))
def test_more_bandwidth_is_never_slower(
    plan: tuple[str, Configuration, np.ndarray], factor: float, which: str
) -> None:
    name, configuration, cells = plan
    faster = written(name)
    scale(faster, which, factor)
    before = judged(written(name), configuration, cells)
    assert judged(faster, configuration, cells).simulated_s <= before.simulated_s * (1 + ROUNDING)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans(), factor=st.floats(1.0, 8.0))
def test_faster_cards_are_never_slower(plan: tuple[str, Configuration, np.ndarray], factor: float) -> None:
    name, configuration, cells = plan
    faster = written(name)
    for node_type in faster["cluster"]["node_types"].values():
        nics = node_type["nics"]
        nics["bandwidth"] = parse_quantity(nics["bandwidth"], Dimension.BANDWIDTH) * factor
    before = judged(written(name), configuration, cells)
    assert judged(faster, configuration, cells).simulated_s <= before.simulated_s * (1 + ROUNDING)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans(), factor=st.floats(1.0, 8.0))
def test_less_latency_is_never_slower(plan: tuple[str, Configuration, np.ndarray], factor: float) -> None:
    name, configuration, cells = plan
    slower = written(name)
    for place in ("cluster/network/inter_node/latency", "cluster/network/intra_node/latency"):
        scale(slower, place, factor)
    before = judged(written(name), configuration, cells)
    assert before.simulated_s <= judged(slower, configuration, cells).simulated_s * (1 + ROUNDING)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), compute=st.floats(1.0, 8.0), memory=st.floats(1.0, 8.0))
def test_faster_gpus_are_never_slower(
    plan: tuple[str, Configuration, np.ndarray], compute: float, memory: float
) -> None:
    """Hidden collectives come out from under shorter products, but never for more than was saved."""
    name, configuration, cells = plan
    faster = written(name)
    for gpu in faster["cluster"]["gpu_types"].values():
        gpu["peak_flops"] = {
            key: parse_quantity(value, Dimension.FLOP_RATE) * compute
            for key, value in gpu["peak_flops"].items()
        }
        gpu["memory_bandwidth"] = parse_quantity(gpu["memory_bandwidth"], Dimension.BANDWIDTH) * memory
    before = judged(written(name), configuration, cells)
    assert judged(faster, configuration, cells).simulated_s <= before.simulated_s * (1 + ROUNDING)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans(), gib=st.floats(1.0, 6.0), more=st.floats(0.0, 6.0))
def test_more_memory_never_makes_a_plan_not_fit(
    plan: tuple[str, Configuration, np.ndarray], gib: float, more: float
) -> None:
    name, configuration, cells = plan
    found = []
    for size in (gib, gib + more):
        data = written(name)
        for gpu in data["cluster"]["gpu_types"].values():
            gpu["memory"] = size * 2**30
        found.append(judged(data, configuration, cells))
    assert found[1].fits or not found[0].fits
    assert found[0].simulated_s == found[1].simulated_s


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans([UNIFORM]), order=st.permutations(range(2)))
def test_nodes_of_a_uniform_cluster_can_be_renamed(
    plan: tuple[str, Configuration, np.ndarray], order: list[int]
) -> None:
    name, configuration, cells = plan
    before = judged(written(name), configuration, cells)
    after = judged(written(name), configuration, np.array(order)[cells])
    assert after.simulated_s == pytest.approx(before.simulated_s, rel=ROUNDING)
    assert after.durations == before.durations


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans(), data=st.data())
def test_gpus_of_a_node_can_be_swapped(
    plan: tuple[str, Configuration, np.ndarray], data: st.DataObject
) -> None:
    """Groups of one node trade places, and so do the ranks inside a group."""
    name, configuration, cells = plan
    costs = CostModel.of(load_instance(written(name)))
    gpus = list(placement_of_cells(costs.cluster, configuration, cells).gpu_of_rank)
    node_of = {gpu: node for node, ids in enumerate(costs.cluster.gpu_ids) for gpu in ids}
    swapped = list(gpus)
    for node in range(costs.cluster.num_nodes):
        ranks = [rank for rank, gpu in enumerate(gpus) if node_of[gpu] == node]
        for rank, gpu in zip(ranks, data.draw(st.permutations([gpus[r] for r in ranks])), strict=True):
            swapped[rank] = gpu
    before = assess(costs, configuration, Placement(gpu_of_rank=tuple(gpus)))
    after = assess(costs, configuration, Placement(gpu_of_rank=tuple(swapped)))
    assert after.simulated_s == before.simulated_s
    assert after.durations == before.durations


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans(), data=st.data())
def test_replicas_can_be_rotated_together(
    plan: tuple[str, Configuration, np.ndarray], data: st.DataObject
) -> None:
    name, configuration, cells = plan
    shift = data.draw(st.integers(0, configuration.data - 1))
    before = judged(written(name), configuration, cells)
    after = judged(written(name), configuration, np.roll(cells, shift, axis=1))
    if all(len(set(row)) == len(row) for row in cells.tolist()):
        assert after.simulated_s == pytest.approx(before.simulated_s, rel=ROUNDING)
    assert after.memory.peak_bytes == before.memory.peak_bytes


@settings(max_examples=60, deadline=None, derandomize=True)
@given(plan=plans())
def test_accounts_add_up(plan: tuple[str, Configuration, np.ndarray]) -> None:
    name, configuration, cells = plan
    found = judged(written(name), configuration, cells)
    path = found.critical_path.model_dump()
    whole = found.breakdown.model_dump(exclude={"stage", "replica"})
    assert sum(path.values()) == pytest.approx(found.simulated_s, rel=1e-11)
    assert sum(whole.values()) == pytest.approx(found.simulated_s, rel=1e-11)


def test_written_instances_are_copies() -> None:
    first = written(UNIFORM)
    kept = copy.deepcopy(first)
    scale(written(UNIFORM), BANDWIDTHS[0], 2.0)
    assert written(UNIFORM) == kept == first
    scale(first, BANDWIDTHS[0], 2.0)
    assert first != kept
