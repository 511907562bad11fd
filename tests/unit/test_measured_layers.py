"""Measured layer times in place of analytic ones: interpolation, what they include, and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.cost.build import CostModel
from pipette_milp.estimate import estimate
from pipette_milp.schema.plan import Configuration
from pipette_milp.solvers.run import solve
from tests.detail_cases import mixture
from tests.instance_cases import configuration, costs, instance

KEPT = 5e7
TIMES = {"dense": (0.010, 0.021), "moe": (0.030, 0.050), "embedding": (0.001, 0.002), "head": (0.004, 0.007)}


def entry(kind: str = "dense", tensor: int = 1, micro_batch: int = 1, **fields: Any) -> dict[str, Any]:
    """An entry whose times are far from the analytic ones."""
    forward, backward = TIMES.get(kind, (0.003, 0.0))
    return {
        "gpu_type": "gpu",
        "layer_kind": kind,
        "tensor": tensor,
        "micro_batch": micro_batch,
        "sequence_length": 512,
        "precision": "bf16",
        "forward_s": forward,
        "backward_s": backward,
        "activation_bytes": 0 if kind == "optimizer" else KEPT,
    } | fields


def model(*entries: dict[str, Any], **training: Any) -> CostModel:
    return costs(compute={"kind": "profile", "entries": list(entries)}, training=training)


def layer_s(costs: CostModel, **fields: Any) -> np.ndarray:
    """Forward and backward seconds of one layer, collectives included."""
    return np.asarray(costs.parts(configuration(**fields)).layer_s[0, 0, :2])


def test_a_measured_point_is_used_as_it_is() -> None:
    assert layer_s(model(entry())) == pytest.approx([0.010, 0.021], rel=1e-12)


def test_between_micro_batches_times_and_bytes_are_linear() -> None:
    both = model(entry(), entry(micro_batch=4, forward_s=0.034, backward_s=0.06, activation_bytes=4 * KEPT))
    assert layer_s(both, micro_batch=2) == pytest.approx([0.018, 0.034], rel=1e-12)
    assert both.measured_layers[0].kept_bytes("dense", configuration(micro_batch=2)) == pytest.approx(
        2 * KEPT
    )
    assert both.warnings([configuration(micro_batch=2)])[0].startswith("compute.entries: embedding")


def test_between_tensor_degrees_times_are_linear_in_its_inverse() -> None:
    both = model(entry(), entry(tensor=4, forward_s=0.004, backward_s=0.006))
    found = both.measured_layers[0].find("dense", configuration(tensor=2))
    # a + b / t through (1, 0.010) and (4, 0.004) is 0.002 + 0.008 / t
    assert found.figures is not None
    assert found.figures[:2] == pytest.approx([0.006, 0.011], rel=1e-12)
    assert found.note == ""


@pytest.mark.parametrize(("tensor", "micro_batch"), [(1, 8), (2, 1), (2, 8)])
def test_outside_the_measured_range_the_analytic_ratio_scales_and_a_warning_says_so(
    tensor: int, micro_batch: int
) -> None:
    profiled, analytic = model(entry()), costs()
    to = configuration(tensor=tensor, micro_batch=micro_batch)
    found = profiled.tasks(to).layer_compute("dense").forward_s
    ratio = (
        analytic.tasks(to).layer_compute("dense").forward_s
        / analytic.tasks(configuration()).layer_compute("dense").forward_s
    )
    assert found == pytest.approx(0.010 * ratio, rel=1e-9)
    assert any("dense on gpu is extrapolated" in warning for warning in profiled.warnings([to]))


def test_what_has_no_entry_is_analytic_and_said() -> None:
    profiled, plain = model(entry("head")), configuration()
    assert layer_s(profiled) == pytest.approx(layer_s(costs()), rel=1e-12)
    said = profiled.warnings([plain])
    assert [text.split(" on ")[0].removeprefix("compute.entries: ") for text in said] == [
        "dense",
        "embedding",
        "optimizer",
    ]
    whole = model(*(entry(kind) for kind in ("dense", "embedding", "head", "optimizer")))
    assert whole.warnings([plain]) == []


def test_another_context_degree_is_not_covered() -> None:
    found = model(entry()).measured_layers[0].find("dense", configuration(context=2))
    assert found.figures is None
    assert "context 2" in found.note


def test_embedding_and_head_go_to_their_stages() -> None:
    profiled = model(entry("embedding"), entry("head"))
    task_s = profiled.parts(configuration((3, 3))).task_s[0]
    host = profiled.compute.host_overhead_per_task_s
    assert task_s[0, :2] == pytest.approx([0.001 + host, 0.002 + host])
    assert task_s[1, :2] == pytest.approx([0.004 + host, 0.007 + host])


def test_collectives_are_added_unless_the_entry_includes_them() -> None:
    cell = configuration(tensor=2)
    without, included = model(entry(tensor=2)), model(entry(tensor=2, includes_tensor_comm=True))
    added = costs().tasks(cell).group.all_reduce_s(2 * 512 * 1024)
    assert layer_s(without, tensor=2)[0] == pytest.approx(0.010 + 2 * added)
    assert layer_s(included, tensor=2) == pytest.approx([0.010, 0.021], rel=1e-12)
    assert not included.tasks(cell).layer_collectives("dense").forward_s


def test_times_with_communication_are_not_carried_to_other_tensor_degrees() -> None:
    profiled = model(entry(tensor=2, includes_tensor_comm=True))
    assert layer_s(profiled) == pytest.approx(layer_s(costs()), rel=1e-12)
    assert any("dense on gpu is analytic" in warning for warning in profiled.warnings([configuration()]))


def test_without_tensor_parallelism_there_is_no_communication_to_include() -> None:
    profiled = model(entry(includes_tensor_comm=True), entry(tensor=4, forward_s=0.004, backward_s=0.006))
    assert layer_s(profiled) == pytest.approx([0.010, 0.021], rel=1e-12)
    assert layer_s(profiled, tensor=2)[0] > 0.006  # interpolated compute, and collectives on top


def test_recompute_adds_the_measured_forward() -> None:
    found = layer_s(model(entry(), recompute="full"), recompute="full")
    assert found == pytest.approx([0.010, 0.031], rel=1e-12)
    selective = layer_s(model(entry(), recompute="selective", flash_attention=False), recompute="selective")
    assert selective[0] == pytest.approx(0.010)
    assert 0.021 < selective[1] < 0.031


def test_sequence_parallelism_shortens_by_the_analytic_share() -> None:
    profiled, analytic = model(entry(tensor=2, micro_batch=64)), costs()
    one, split = (
        configuration(tensor=2, micro_batch=64, sequence_parallel=parallel) for parallel in (False, True)
    )
    ratio = (
        analytic.tasks(split).layer_compute("dense").forward_s
        / analytic.tasks(one).layer_compute("dense").forward_s
    )
    assert ratio < 1
    assert profiled.tasks(split).layer_compute("dense").forward_s == pytest.approx(0.010 * ratio)


def test_the_separated_weight_gradient_is_a_part_of_the_measured_backward() -> None:
    plan = configuration((3, 3), schedule="zb-h1")
    parts = model(entry()).parts(plan).layer_s[0, 0]
    assert parts[1] + parts[2] == pytest.approx(0.021)
    assert 0 < parts[2] < 0.021


def test_experts_have_entries_of_their_own() -> None:
    section = {"kind": "profile", "entries": [entry("moe")]}
    profiled = mixture(compute=section)
    length, name = profiled.instance.model.sequence_length, profiled.cluster.gpu.name
    section["entries"] = [entry("moe", sequence_length=length, gpu_type=name)]
    profiled = mixture(compute=section)
    plan = configuration((profiled.instance.model.layers,))
    assert profiled.tasks(plan).layer_compute("moe").forward_s == pytest.approx(0.030)


def test_an_optimizer_step_counts_by_parameter() -> None:
    profiled, analytic, plan = model(entry("optimizer")), costs(), configuration()
    parameters = profiled.transformer.layer_parameters(1, "dense", 1)
    gradient_pass = 8.0 * parameters / 2039e9
    assert profiled.parts(plan).optimizer_layer_s[0, 0] == pytest.approx(0.003 + gradient_pass)
    sharded = configuration(data=4, data_sharding="optimizer")
    assert profiled.parts(sharded).optimizer_layer_s[0, 0] == pytest.approx(0.003 / 4 + gradient_pass)
    extra, own = (c.parts(plan).optimizer_extra_s[0, 0] for c in (analytic, profiled))
    assert own > extra  # the embedding's parameters too


def test_measured_bytes_replace_those_of_layers() -> None:
    def activations(costs: CostModel, plan: Configuration) -> float:
        return costs.stage_memory(plan)[0].activations_bytes

    plan = configuration((3, 3), num_micro_batches=4)
    more = activations(model(entry(activation_bytes=2 * KEPT)), plan) - activations(model(entry()), plan)
    assert more == pytest.approx(3 * 2 * KEPT)  # 1F1B: two micro-batches in flight on the first of two
    left_out = entry()
    del left_out["activation_bytes"]
    assert activations(model(left_out), plan) == pytest.approx(activations(costs(), plan))
    assert any("no activation_bytes" in text for text in model(left_out).warnings([plan]))


def test_head_bytes_never_lower_the_peak() -> None:
    plan = configuration()
    small, large = (model(entry("head", activation_bytes=size)) for size in (1.0, 1e9))
    assert small.stage_memory(plan)[0].activations_bytes == costs().stage_memory(plan)[0].activations_bytes
    assert large.stage_memory(plan)[0].activations_bytes > 1e9


def test_estimate_and_solve_use_the_profile_and_say_what_it_does_not_cover() -> None:
    section = {"kind": "profile", "entries": [entry()]}
    problem = instance(compute=section, search={"tensor": 1, "pipeline": 1, "micro_batch": [1, 2]})
    answer = estimate(problem, configuration(data=4, num_micro_batches=4))
    assert answer["durations"]["forward_s"][0][0] > 6 * 0.010
    assert any("no entry" in warning for warning in answer["warnings"])
    result = solve(problem, solver="greedy", time_limit_s=5)
    assert any("micro-batch 2" in warning for warning in result.warnings)
