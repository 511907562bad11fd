"""Tables of measured runs and what one row becomes."""

from __future__ import annotations

import pytest

from pipette_milp.calibration.express import Expressed, express, layer_counts
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.runs import Run, parse_runs
from pipette_milp.errors import InputError
from tests.run_tables import table


def run(**fields: str) -> Run:
    return parse_runs(table(fields)).runs[0]


def expressed(**fields: str) -> Expressed:
    return express(run(**fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a header"),
        ("gpu_model,num_gpus\n", "column 'layers' is required"),
        (table({}).replace("heads", "hidden", 1), "occurs twice"),
        (table({}) + "a,b\n", "has 2 fields, the header has"),
        (table({}).splitlines()[0] + "\n", "has no rows"),
        (table({}) + '"open\n', "no CSV"),
    ],
)
def test_tables_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_runs(text)


def test_unknown_columns_are_named_and_read_over() -> None:
    assert parse_runs(table({"my_note": "x"})).unknown_columns == ("my_note",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": "eight"}, "line 2, layers: expected a number, got 'eight'"),
        ({"layers": "7.5"}, "expected a whole number of at least 1"),
        ({"layers": "nan"}, "expected a number"),
        ({"layers": ""}, "layers: is required"),
        ({"flash_attention": "perhaps"}, "expected True or False"),
        ({"gpu_model": "Voodoo 2"}, "unknown gpu"),
        ({"gpu_model": "A100-80GB x9 + T4 x7"}, "cannot read the mixed GPUs"),
        ({"num_gpus": "12"}, "no multiple of 8 per node"),
        ({"precision": "int4"}, "unknown precision"),
        ({"precision": "NVFP4"}, "fp4 training is not supported"),
        ({"offload": "cpu"}, "offloading"),
        ({"zero_stage_or_dist_opt": "4"}, "unknown sharding"),
        ({"schedule": "zigzag"}, "unknown schedule"),
        ({"tp": "16"}, "needs 32 GPUs, 16 are usable"),
        ({"heads": "15"}, "no multiple of 15 heads"),
        ({"moe_experts": "8", "moe_topk": "2"}, "experts' width"),
        ({"layer_partition": "0-x"}, "unknown layer partition"),
        ({"global_batch": "63"}, "64 sequences, the global batch is 63|no multiple"),
    ],
)
def test_rows_that_cannot_be_expressed_say_why(fields: dict[str, str], message: str) -> None:
    with pytest.raises((Refused, InputError), match=message):
        expressed(**fields)


def test_a_row_becomes_instance_and_configuration() -> None:
    found = expressed(zero_stage_or_dist_opt="1", recompute="full")
    configuration = found.configuration
    assert (configuration.tensor, configuration.pipeline, configuration.data) == (2, 2, 4)
    assert configuration.num_micro_batches == 8
    assert configuration.layers_per_stage == (4, 4)
    assert (configuration.recompute, configuration.data_sharding) == ("full", "optimizer")
    assert found.instance.compute.framework_profile == "megatron"
    assert found.instance.cluster.num_gpus == 16


def test_precisions_gradients_and_sharding_are_read() -> None:
    found = expressed(
        precision="fp16 (fp32_allreduce=true)", zero_stage_or_dist_opt="3 (FSDP FULL_SHARD)", pp="1"
    )
    assert found.instance.training.precision == "fp16"
    assert found.configuration.gradient_dtype == "fp32"
    assert found.configuration.data_sharding == "parameters"


def test_mixed_gpus_keep_the_slower_card() -> None:
    found = expressed(
        gpu_model="V100-16GB x12 + T4-16GB x4", gpu_mem_gb="16", gpus_per_node="4", precision="fp16"
    )
    cluster = found.instance.cluster
    assert [node.gpu_type for node in cluster.nodes] == ["V100-SXM2-16GB"] * 3 + ["T4-16GB"]
    assert cluster.network.inter_node is not None
    assert cluster.network.inter_node.bandwidth == pytest.approx(0.92 * 1.25e9)


def test_an_nvlink_domain_counts_as_a_node() -> None:
    found = expressed(
        gpu_model="GB200", gpu_mem_gb="186", gpus_per_node="4", num_gpus="128", tp="8", global_batch="256"
    )
    assert len(found.instance.cluster.nodes) == 2


def test_layers_are_split_as_the_framework_does() -> None:
    plain = run()
    assert layer_counts("Megatron-LM", 78, 12, plain) == [7] * 6 + [6] * 6
    # embedding and head count as layers where layers alone do not divide
    assert layer_counts("NeMo", 126, 8, plain) == [15, *[16] * 6, 15]
    # nanotron: the head of a small model is worth four layers
    nanotron = run(hidden="2048", ffn_hidden="8192", vocab="131072")
    counts = layer_counts("nanotron", 16, 4, nanotron)
    assert sum(counts) == 16
    assert counts[-1] < counts[0]


def test_a_list_of_layers_with_embedding_and_head_of_their_own() -> None:
    found = expressed(
        framework="DeepSpeed pipeline + Megatron-LM v1.1.5",
        layers="24",
        layer_partition="0-1-2-26-30",
        pp="4",
        tp="1",
        precision="fp16",
    )
    assert found.configuration.layers_per_stage == (0, 0, 24, 0)
