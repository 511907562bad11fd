"""More memory, bandwidth or speed never makes an estimate worse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipette_milp.cost.uncertainty import fit_probability
from pipette_milp.estimate import estimate
from pipette_milp.schema.constants import default_constants
from tests.instance_cases import configuration, instance

PLACES = {
    "peak": "cluster/gpu_types/gpu/peak_flops/bf16",
    "memory_bandwidth": "cluster/gpu_types/gpu/memory_bandwidth",
    "intra_node": "cluster/network/intra_node/bandwidth",
    "inter_node": "cluster/network/inter_node/bandwidth",
}
USUAL = {"peak": 312e12, "memory_bandwidth": 2039e9, "intra_node": 200e9, "inter_node": 20e9}


@settings(max_examples=25, deadline=None)
@given(
    what=st.sampled_from(sorted(PLACES)),
    factor=st.floats(1.01, 20.0),
    tensor=st.sampled_from([1, 2]),
    micro_batch=st.sampled_from([1, 4]),
    recompute=st.sampled_from(["none", "selective", "full"]),
)
def test_faster_parts_never_slow_an_iteration(
    what: str, factor: float, tensor: int, micro_batch: int, recompute: str
) -> None:
    def seconds(value: float) -> float:
        changes: dict[str, Any] = {PLACES[what]: value}
        wanted = configuration(
            (3, 3),
            tensor=tensor,
            data=2 // tensor,
            micro_batch=micro_batch,
            num_micro_batches=16 * tensor // 2 // micro_batch,
            recompute=recompute,
        )
        return float(estimate(instance(changes), wanted)["simulated_s"])

    assert seconds(USUAL[what] * factor) <= seconds(USUAL[what]) * (1 + 1e-12)


def test_more_memory_never_lowers_the_probability_of_fit() -> None:
    residuals = default_constants().residuals.model_copy(update={"memory_sigma": 0.1, "memory_bias": 0.0})
    probabilities = [
        fit_probability([(60e9, capacity), (50e9, capacity)], residuals) for capacity in (40e9, 60e9, 80e9)
    ]
    assert probabilities[0] < 0.01
    assert probabilities[1] == pytest.approx(0.5, abs=0.1)
    assert probabilities[2] > 0.99
    certain = residuals.model_copy(update={"memory_sigma": 0.0})
    assert fit_probability([(60e9, 61e9)], certain) == 1.0
    assert fit_probability([(62e9, 61e9)], certain) == 0.0
