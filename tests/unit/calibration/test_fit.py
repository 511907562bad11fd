"""The fit of the shipped constants: what is fitted, how figures are shared, memory, sources left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from pipette_milp.calibration.express import express
from pipette_milp.calibration.fit import Fitted, fit_constants, thinned, with_provenance
from pipette_milp.calibration.least_squares import Parameter, fit
from pipette_milp.calibration.leave_one_out import leave_one_source_out
from pipette_milp.calibration.memory_fit import fit_memory, memory_of, with_memory
from pipette_milp.calibration.parameters import (
    COMMUNICATOR,
    GPU_PARAMETERS,
    SAME_KERNELS,
    of_framework,
    time_parameters,
    touches,
    value_of,
    with_shared_values,
    with_unseen,
    with_values,
)
from pipette_milp.calibration.prepared import Prepared, prepare
from pipette_milp.calibration.runs import Run, parse_runs
from pipette_milp.schema.constants import CostConstants, default_constants
from tests.run_tables import table

METRIC = {"mem_metric": "GiB torch max_memory_allocated max over ranks"}
MIXED = {
    "gpu_model": "V100-16GB x12 + T4-16GB x4",
    "gpus_per_node": "4",
    "precision": "fp16",
    "framework": "DeepSpeed pipeline",
}


def runs(*changes: dict[str, str]) -> tuple[Run, ...]:
    return parse_runs(table(*changes)).runs


def timed(
    fields: Sequence[dict[str, str]], constants: CostConstants, factor: float = 1.0
) -> list[dict[str, str]]:
    """The rows with the times that these constants give."""
    items = prepare(runs(*fields))
    assert len(items) == len(fields)
    return [
        {**row, "measured_iter_time_s": f"{factor * item.time_s(constants)}"}
        for row, item in zip(fields, items, strict=True)
    ]


def test_shipped_constants_are_few_plausible_and_told_about() -> None:
    constants = default_constants()
    names = [parameter.name for parameter in (*GPU_PARAMETERS, COMMUNICATOR)]
    assert len(names) <= 12
    provenance = constants.provenance
    assert isinstance(provenance, dict)
    fitted = provenance["relative_standard_errors"]
    assert isinstance(fitted, dict)
    assert set(names) <= set(fitted)
    for profile in constants.frameworks:
        own = [name for name in fitted if name.startswith(f"frameworks.{profile}.")]
        assert len(own) <= 4
    for parameter in (*GPU_PARAMETERS, COMMUNICATOR):
        assert parameter.low <= value_of(constants, parameter.name) <= parameter.high
    assert {"fit", "date", "runs_sha256", "n", "n_by_subset"} <= set(provenance)


def test_frameworks_with_the_same_kernels_have_the_same_time_figures() -> None:
    constants = default_constants()
    for profile, kernels in SAME_KERNELS.items():
        for figure in ("launch_s", "elementwise_passes", "attention_efficiency", "tensor_overlap"):
            names = [f"frameworks.{name}.{figure}" for name in (profile, kernels)]
            assert value_of(constants, names[0]) == value_of(constants, names[1])
    changed = with_shared_values(constants, ["frameworks.megatron.launch_s"], [3e-5])
    assert changed.frameworks["nemo"].launch_s == changed.frameworks["megatron"].launch_s == 3e-5
    assert changed.frameworks["fsdp"] == constants.frameworks["fsdp"]


def test_every_gpu_of_a_mixed_cluster_is_touched() -> None:
    (item,) = prepare(runs(MIXED))
    assert item.architectures == {"volta", "turing"}
    assert all(touches(f"matrix_efficiency.{name}", item) for name in ("volta", "turing"))
    assert not touches("matrix_efficiency.ampere", item)
    assert touches("frameworks.deepspeed.launch_s", item)
    assert not touches("exponential_efficiency", item)
    found = {parameter.name for parameter in time_parameters([item])}
    assert "frameworks.deepspeed.launch_s" in found
    assert not found & {"fp8_matrix_efficiency", "exponential_efficiency", "matrix_efficiency.ampere"}


def test_an_architecture_nobody_measured_has_the_mean_of_the_others() -> None:
    base = with_values(
        default_constants(), ["matrix_efficiency.volta", "matrix_efficiency.ampere"], [0.5, 0.8]
    )
    constants = with_unseen(base, ["volta", "ampere"])
    assert set(constants.matrix_efficiency) == {"volta", "ampere", "other"}
    assert constants.efficiency_of("hopper") == pytest.approx(math.sqrt(0.5 * 0.8))


def test_the_fit_begins_at_the_priors_and_stays_within_the_plausible() -> None:
    """A bound is not passed by rounding, and a run far off does not carry a figure with it."""
    low, high = 2e-6, 1e-4
    at: list[float] = []

    def residuals(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        at.append(float(values[0]))
        return np.full(rows.size, 5.0) - np.log(values[0] / low)

    found = fit([Parameter("x", 2e-5, low, high, 9.0)], residuals, np.ones(9), [np.arange(9)], iterations=9)
    assert at[0] == pytest.approx(2e-5)
    assert max(at) <= high
    assert found.values[0] == high


def test_times_made_with_other_constants_are_fitted_back() -> None:
    truth = with_values(default_constants(), ["matrix_efficiency.ampere"], [0.7])
    fields = [{"hidden": str(hidden), "run_id": f"a_{hidden}"} for hidden in (4096, 6144, 8192)]
    fitted = fit_constants(prepare(runs(*timed(fields, truth))), iterations=6)
    assert np.abs(fitted.log_errors).max() < 0.02
    assert fitted.constants.matrix_efficiency["ampere"] == pytest.approx(0.7, rel=0.02)
    assert set(fitted.constants.matrix_efficiency) == {"ampere", "other"}


def left_out(factor: float) -> list[dict[str, float]]:
    """Two sources, the second slower by a factor than the constants behind it."""
    first = [{"hidden": h, "run_id": f"a_{h}"} for h in ("4096", "6144")]
    second = [{"hidden": h, "run_id": f"b_{h}"} for h in ("5120", "8192")]
    truth = default_constants()
    prepared = prepare(runs(*timed(first, truth), *timed(second, truth, factor)))
    names = [parameter.name for parameter in time_parameters(prepared)]
    fitted = Fitted(truth, (), fit_constants(prepared, iterations=1).result, tuple(prepared), np.zeros(4))
    assert names
    return leave_one_source_out(prepared, fitted, iterations=3)


def test_a_source_left_out_says_nothing() -> None:
    """Its runs may be any factor slower: constants, and its error after one scale, stay the same."""
    slow, slower = left_out(2.0)[1], left_out(20.0)[1]
    assert slow["source"] == slower["source"] == "b"
    assert slow["left_out_mape_one_scale"] == pytest.approx(slower["left_out_mape_one_scale"], rel=1e-9)
    assert slow["left_out_mape_one_scale"] < 0.05
    assert slow["left_out_mape"] == pytest.approx(0.5, abs=0.05)
    assert slower["left_out_mape"] == pytest.approx(0.95, abs=0.01)


def test_memory_figures_are_fitted_back() -> None:
    truth = with_values(
        default_constants(),
        ["communicator_bytes", "frameworks.nanotron.activation_factor"],
        [0.7 * 2**30, 1.3],
    )
    rows = [
        {**METRIC, "framework": "nanotron", "run_id": "n_1", "split_hint": "n", "micro_batch": "8"},
        {**METRIC, "framework": "nanotron", "run_id": "n_2", "split_hint": "n", "micro_batch": "4"},
        {"mem_metric": "GB nvidia-smi", "run_id": "m_1", "split_hint": "m"},
        {"mem_metric": "GB nvidia-smi", "run_id": "m_2", "split_hint": "m", "micro_batch": "1"},
    ]
    items = with_memory(runs(*({**row, "measured_peak_mem_gb": "1"} for row in rows)))
    measured = [
        {**row, "measured_peak_mem_gb": f"{memory_of(item, truth)}"}
        for row, item in zip(rows, items, strict=True)
    ]
    found = fit_memory(runs(*measured), default_constants(), subset_weight=1e4)
    assert found.constants.communicator_bytes == pytest.approx(0.7 * 2**30, rel=0.02)
    assert found.constants.frameworks["nanotron"].activation_factor == pytest.approx(1.3, rel=0.02)
    assert np.abs(found.log_errors).max() < 0.01
    assert not with_memory(runs({**rows[0], "measured_peak_mem_gb": "1", "status": "oom"}))


def test_provenance_counts_the_runs_of_both_fits() -> None:
    fields = [
        {**METRIC, "measured_peak_mem_gb": "6", "hidden": h, "run_id": f"a_{h}"} for h in ("2048", "4096")
    ]
    read = parse_runs(table(*timed(fields, default_constants())))
    prepared: list[Prepared] = prepare(read.runs)
    fitted = fit_constants(prepared, iterations=1)
    memory = fit_memory(read.runs, fitted.constants, subset_weight=2.0, iterations=1)
    constants = with_provenance(fitted, memory, read)
    provenance = constants.provenance
    assert isinstance(provenance, dict)
    assert (provenance["n"], provenance["n_memory"]) == (2, 2)
    assert provenance["runs_sha256"] == read.sha256
    assert constants.residuals.memory_sigma > 0


def test_runs_that_wait_for_the_network_are_left_out() -> None:
    slow = {"split_hint": "nanotron-h100", "measured_mfu": "0.05", "framework": "nanotron"}
    wide = {
        "split_hint": "nanotron-h100-tp-crossnode",
        "measured_mfu": "0.3",
        "tp": "16",
        "framework": "nanotron",
    }
    good = {"split_hint": "nanotron-h100", "measured_mfu": "0.3", "framework": "nanotron"}
    chosen = thinned(runs(slow, wide, good, {"split_hint": "megatron-sc21-zero3"}))
    assert [run.number("measured_mfu") for run in chosen] == [0.3]


def test_names_of_framework_figures() -> None:
    named = of_framework("nemo", Parameter("launch_s", 1.0, 0.5, 2.0))
    assert named.name == "frameworks.nemo.launch_s"
    assert express(runs({"framework": "NeMo 24.09"})[0]).instance.compute.framework_profile == "nemo"
