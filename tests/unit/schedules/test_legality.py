from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pipette_milp.errors import IllegalConfigurationError
from pipette_milp.schedules import SCHEDULES, get_schedule
from pipette_milp.schedules.interleaved import virtual_stages_from_layers
from pipette_milp.simulator import event_graph
from tests.conftest import shared_data


def test_unknown_schedule_lists_the_known() -> None:
    with pytest.raises(IllegalConfigurationError) as caught:
        get_schedule("2f2b")
    for name in SCHEDULES:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "pipeline", "chunk", "accepted"),
    [(80, 16, 2, "1, 5"), (40, 8, 2, "1, 5")],
)
def test_layers_that_do_not_divide_are_refused(layers: int, pipeline: int, chunk: int, accepted: str) -> None:
    """Megatron-LM issues 468 and 326: the remaining layers were dropped without a word."""
    with pytest.raises(IllegalConfigurationError, match=f"not divisible.*accepted: {accepted}"):
        virtual_stages_from_layers(layers, pipeline, chunk)


def test_layers_that_divide() -> None:
    assert virtual_stages_from_layers(80, 16, 5) == 1
    assert virtual_stages_from_layers(96, 16, 2) == 3


def test_uneven_chunks_need_a_layout() -> None:
    interleaved = get_schedule("interleaved")
    assert interleaved.legality(2, 2, 4, "async", [2, 3, 2, 3]) is None
    reason = interleaved.legality(2, 2, 4, "async", [3, 3, 2, 3])
    assert reason is not None
    assert "divisible by 2 virtual stages" in reason
    assert interleaved.legality(2, 2, 4, "async", [3, 3, 2]) is not None
    assert interleaved.legality(2, 2, 4, "async") is None


def test_interleaved_needs_as_many_micro_batches_as_stages() -> None:
    """NeMo issue 14288."""
    with pytest.raises(IllegalConfigurationError, match="pipeline <= micro-batch group size"):
        event_graph("interleaved", 6, 2, 3, "async")


@pytest.mark.parametrize(("micro_batches", "legal"), [(4, True), (6, False), (7, False), (8, True)])
def test_interleaved_needs_whole_groups(micro_batches: int, legal: bool) -> None:
    reason = get_schedule("interleaved").legality(4, 2, micro_batches, "async")
    assert (reason is None) == legal


@pytest.mark.parametrize(("pipeline", "virtual_stages"), [(1, 2), (2, 1)])
def test_interleaved_needs_stages_of_both_sorts(pipeline: int, virtual_stages: int) -> None:
    assert get_schedule("interleaved").legality(pipeline, virtual_stages, 4, "async") is not None


@pytest.mark.parametrize("name", ["interleaved", "zb-h1"])
def test_no_exchange_mode(name: str) -> None:
    virtual_stages = 2 if name == "interleaved" else 1
    reason = get_schedule(name).legality(2, virtual_stages, 4, "exchange")
    assert reason is not None
    assert "accepted: async" in reason


def test_deepspeed_keeps_two_buffers() -> None:
    schedule = get_schedule("1f1b")
    assert [schedule.in_flight(s, 4, 1, 8, "deepspeed").full for s in range(4)] == [4, 3, 2, 2]
    assert [schedule.in_flight(s, 4, 1, 8, "megatron").full for s in range(4)] == [4, 3, 2, 1]


def test_interleaved_first_stage_factor() -> None:
    """Megatron's own factor: p (1 + (p-1)/(p v)) micro-batches of full depth."""
    p, v = 4, 3
    chunks = get_schedule("interleaved").in_flight(0, p, v, 16, "megatron").full
    assert chunks / v == pytest.approx(p * (1 + (p - 1) / (p * v)))


@pytest.mark.parametrize("case", ["p02_80_layers_pp16_vpp", "p03_40_layers_pp8_vpp"])
def test_field_cases_of_chunks(case: str) -> None:
    given = json.loads(shared_data(f"data/field_cases/{case}.json").read_text())
    with pytest.raises(IllegalConfigurationError):
        virtual_stages_from_layers(
            given["num_layers"],
            given["pipeline_model_parallel_size"],
            given["num_layers_per_virtual_pipeline_stage"],
        )


def test_field_case_of_micro_batches() -> None:
    given = json.loads(shared_data("data/field_cases/p05_vpp_needs_microbatches.json").read_text())
    sizes = (
        given["pipeline_model_parallel_size"],
        given["virtual_pipeline_model_parallel_size"],
        given["num_microbatches"],
    )
    assert get_schedule("interleaved").legality(*sizes, "async") is not None


def test_listing_the_schedules_loads_no_arrays() -> None:
    code = "import sys, pipette_milp.schedules as s; s.get_schedule('1f1b'); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
