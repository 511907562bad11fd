"""Settings of frameworks, training logs, tests between two processes, topology dumps: what they say, what is
refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.calibration.express import express
from pipette_milp.calibration.runs import read_runs
from pipette_milp.errors import InputError
from pipette_milp.importers import deepspeed, megatron_log, nccl_xml, nemo, osu, perftest, torchtitan
from pipette_milp.importers.assemble import AssembleOptions, Found, assemble
from pipette_milp.importers.merge import merge_cluster
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.importers.registry import guess_kind, parse
from pipette_milp.importers.run_table import table
from pipette_milp.importers.yamltext import load_yaml
from pipette_milp.units import GIB, MIB
from tests.importer_samples import sample

GB = 1e9


# ---------------------------------------------------------------- NeMo
def nemo_with(**changes: Any) -> str:
    """The sample with lines of the section ``model`` in place of others."""
    lines = []
    for line in sample("settings/run.nemo.yaml").splitlines():
        name = line.strip().partition(":")[0]
        lines.append(f"  {name}: {changes.pop(name)}" if name in changes else line)
    lines += [f"  {name}: {value}" for name, value in changes.items()]
    return "\n".join(lines) + "\n"


def test_nemo_settings_say_what_megatron_arguments_would() -> None:
    run = nemo.parse(sample("settings/run.nemo.yaml"), "n.yaml")
    assert (run.tensor, run.pipeline, run.data, run.micro_batch) == (4, 2, 2, 1)
    assert run.model["gated_mlp"] is True
    assert run.model["tied_embeddings"] is False
    assert run.model["biases"] is False
    assert run.model["kv_heads"] == 8
    assert run.training["data_sharding"] == "optimizer"
    assert run.training["recompute"] == "selective"
    assert run.training["precision"] == "bf16"
    assert run.configuration is not None


def test_nemo_interpolations() -> None:
    text = nemo_with(ffn_hidden_size="${multiply:4,${.hidden_size}}")
    with pytest.raises(InputError, match="cannot be resolved here"):
        nemo.parse(text, "n.yaml")
    with pytest.raises(InputError, match="names nothing"):
        nemo.parse(nemo_with(num_layers="${model.layers}"), "n.yaml")
    with pytest.raises(InputError, match="circle"):
        nemo.parse(nemo_with(num_layers="${.hidden_size}", hidden_size="${.num_layers}"), "n.yaml")
    run = nemo.parse(nemo_with(num_layers="${trainer.devices}"), "n.yaml")
    assert run.model["layers"] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_parallel": "maybe"}, "true or false"),
        ({"num_layers": "many"}, "whole number"),
        ({"num_layers": 33}, "do not divide evenly"),
        ({"normalization": "batchnorm"}, "layernorm"),
        ({"virtual_pipeline_model_parallel_size": 3}, "3"),
        ({"hidden_size": "[1, 2]"}, "one value"),
        ({"tensor_model_parallel_size": 5}, "heads"),
        ({"num_layers": "16\n  num_layers: 32"}, "more than once"),
    ],
)
def test_nemo_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        nemo.parse(nemo_with(**changes), "n.yaml")


@pytest.mark.parametrize("text", ["model: 3\n", "a: 1\n", "- 1\n", "model: {}\n", "model:\n  x: [\n"])
def test_what_is_no_nemo_file(text: str) -> None:
    with pytest.raises(InputError, match=r"n\.yaml"):
        nemo.parse(text, "n.yaml")


def test_yaml_values_stay_what_they_are() -> None:
    assert load_yaml("a: 2024-01-01\nb: 3.0e-4\nc: no\n", "f") == {"a": "2024-01-01", "b": 3e-4, "c": False}
    with pytest.raises(InputError, match=r"f:2:1"):
        load_yaml("a: 1\n\tb: 2\n", "f")
    with pytest.raises(InputError, match=r"cannot be read|not YAML"):
        load_yaml("a: !!python/object:os.system x\n", "f")


# ---------------------------------------------------------------- torchtitan
def titan(**changes: str) -> str:
    lines = []
    for line in sample("settings/run.torchtitan.toml").splitlines():
        name = line.partition(" =")[0]
        lines.append(f"{name} = {changes.pop(name)}" if name in changes else line)
    assert not changes
    return "\n".join(lines) + "\n"


def test_torchtitan_settings() -> None:
    read = torchtitan.parse(titan(), "t.toml")
    assert (read.tensor, read.pipeline, read.data, read.schedule) == (2, 2, 4, "1f1b")
    assert (read.micro_batch, read.num_micro_batches) == (1, 16)
    assert read.training["global_batch_size"] == 64
    assert read.training["data_sharding"] == "parameters"
    assert read.model == {"sequence_length": 8192}
    rest = torchtitan.parse(titan(data_parallel_shard_degree="-1"), "t.toml", world_size=32)
    assert rest.data == 8
    unknown = torchtitan.parse(titan(data_parallel_shard_degree="-1"), "t.toml")
    assert unknown.data is None
    assert any("--world-size" in problem.message for problem in unknown.missing)


@pytest.mark.parametrize(
    ("changes", "world", "message"),
    [
        ({"tensor_parallel_degree": '"2"'}, None, "whole number"),
        ({"tensor_parallel_degree": "0"}, None, "at least 1"),
        ({}, 12, "multiply to 16"),
        ({"data_parallel_shard_degree": "-1"}, 6, "do not divide"),
        ({"pipeline_parallel_schedule": '"ZBVZeroBubble"'}, None, "not supported yet"),
        ({"global_batch_size": "30"}, None, "no multiple"),
        ({"mode": '"some"'}, None, "none, selective, full"),
        ({"mode": "selective"}, None, "not TOML"),
    ],
)
def test_torchtitan_settings_that_cannot_be(changes: dict[str, str], world: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        torchtitan.parse(titan(**changes), "t.toml", world_size=world)


# ---------------------------------------------------------------- DeepSpeed
def ds(**changes: Any) -> str:
    return json.dumps({**json.loads(sample("settings/run.deepspeed.json")), **changes})


def test_deepspeed_settings() -> None:
    read = deepspeed.parse(ds(), "d.json")
    assert (read.data, read.micro_batch, read.num_micro_batches) == (8, 2, 4)
    assert read.training == {
        "global_batch_size": 64,
        "precision": "bf16",
        "data_sharding": "optimizer",
        "framework": "deepspeed",
    }
    auto = deepspeed.parse(ds(train_batch_size="auto", gradient_accumulation_steps="auto"), "d.json")
    assert auto.data is None
    assert any("train_batch_size" in problem.path for problem in auto.missing)
    steps = deepspeed.parse(ds(gradient_accumulation_steps="auto"), "d.json", world_size=4)
    assert (steps.data, steps.num_micro_batches) == (4, 8)
    offloaded = ds(zero_optimization={"stage": 3, "offload_optimizer": {"device": "cpu"}})
    read = deepspeed.parse(offloaded, "d.json")
    assert read.training["data_sharding"] == "parameters"
    assert any("offload" in warning.message for warning in read.warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_batch_size": 63}, "no multiple"),
        ({"train_batch_size": "64"}, "whole number"),
        ({"zero_optimization": {"stage": 4}}, "0 to 3"),
        ({"zero_optimization": 2}, "section"),
        ({"fp16": {"enabled": True}}, "exclude each other"),
        ({"bf16": {"enabled": "yes"}}, "true or false"),
    ],
)
def test_deepspeed_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        deepspeed.parse(ds(**changes), "d.json")


# ---------------------------------------------------------------- Megatron logs
def test_a_log_with_its_arguments_is_a_row_that_accuracy_reads(tmp_path: Path) -> None:
    log = parse(sample("logs/run.megatron.log"), "run.log", "megatron-log")
    assert log.median_time_s == pytest.approx(4.7028)
    assert log.peak_allocated_bytes == pytest.approx(30987.66 * MIB)
    assert ("optimizer", pytest.approx(0.0962), pytest.approx(0.09775)) in log.timers
    arguments = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --seq-length 4096 --vocab-size 128256 --swiglu "
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 "
        "--global-batch-size 64 --bf16 --use-distributed-optimizer --attention-backend flash"
    )
    run = parse(arguments, "run.sh", "megatron", world_size=16)
    options = AssembleOptions(name="mine_1", cluster=ClusterOptions(gpu_type="h100-80gb", gpus_per_node=8))
    found = [Found("run.log", "megatron-log", log), Found("run.sh", "megatron", run)]
    (row,) = assemble(found, options).rows
    path = tmp_path / "runs.csv"
    path.write_text(table([row]))
    (read,) = read_runs(path).runs
    assert read.number("measured_iter_time_s") == pytest.approx(4.7028)
    assert read.number("measured_peak_mem_gb") == pytest.approx(30987.66 * MIB / GIB, rel=1e-5)
    assert (read.count("tp"), read.count("pp"), read.count("dp"), read.count("num_gpus")) == (2, 2, 4, 16)
    expressed = express(read)
    assert expressed.configuration.num_micro_batches == 16
    assert expressed.configuration.data_sharding == "optimizer"


def test_a_log_of_another_run_than_the_arguments() -> None:
    log = parse(sample("logs/run.megatron.log"), "logs/run.log", "megatron-log")
    assert dict(log.degrees) == {"num_gpus": 16, "dp": 4, "tp": 2, "pp": 2}
    run = parse(sample("settings/run.nemo.yaml"), "run.yaml", "nemo")
    result = assemble([Found("logs/run.log", "megatron-log", log), Found("run.yaml", "nemo", run)])
    assert any("the log has tp 2, the arguments 4" in warning.message for warning in result.warnings)
    (row,) = result.rows
    assert (row["run_id"], row["tp"], row["dp"]) == ("run.log", "2", "4")


def test_a_log_alone_says_what_its_row_lacks() -> None:
    log = parse(sample("logs/run.megatron.log"), "run.log", "megatron-log")
    result = assemble([Found("run.log", "megatron-log", log)])
    assert any("column layers is empty" in warning.message for warning in result.warnings)
    (row,) = list(csv.DictReader(io.StringIO(table(result.rows))))
    assert row["global_batch"] == "64"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteration 1/ 5 | elapsed time per iteration (ms): fast |\n", "expected a number"),
        ("iteration 1/ 5 | lm loss: 1.0 |\n", "found no complete line"),
        ("[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 |\n", "found no complete line"),
        (
            "[Rank 0] (after 1 iterations) memory (MB) | allocated: -1 | max allocated: 2 | reserved: 3 | "
            "max reserved: 4\n",
            "no negative",
        ),
        ("nothing here\n", "found no line"),
    ],
)
def test_damaged_logs(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        megatron_log.parse(text, "run.log")


def test_a_run_that_was_killed_and_started_again() -> None:
    line = "iteration {}/ 9 | elapsed time per iteration (ms): {} | global batch size: 8 |\n"
    report = "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1 | max allocated: {} | "
    report += "reserved: 3 | max reserved: {}\n"
    text = (
        line.format(1, 9000.0)
        + report.format(2.0, 4.0)
        + line.format(2, 100.0)
        + "iteration 3/ 9 | consumed\n"
    )
    text += line.format(1, 9500.0) + report.format(3.0, 5.0) + line.format(2, 110.0) + line.format(2, 110.0)
    log = megatron_log.parse(text, "run.log")
    assert [item.number for item in log.iterations] == [1, 2, 1, 2]
    assert log.median_time_s == pytest.approx(0.105)
    assert log.peak_allocated_bytes == 3 * MIB
    told = [warning.message for warning in log.warnings]
    assert any("iteration 3 is without" in message for message in told)
    assert sum("with other figures" in message for message in told) == 3


# ---------------------------------------------------------------- perftest, OSU
def test_perftest_bandwidth_latency_and_units() -> None:
    (bandwidth,) = perftest.parse(sample("fabric/write_bw.perftest.txt"), "bw.txt")
    assert bandwidth.plateau_bytes_per_s == pytest.approx(196.96e9 / 8)
    assert (bandwidth.device, bandwidth.both_ways) == ("mlx5_0", False)
    (latency,) = perftest.parse(sample("fabric/write_lat.perftest.txt"), "lat.txt")
    assert latency.small_message_latency_s == pytest.approx(1.93e-6)
    old = (
        "RDMA_Write Bidirectional BW Test\n #bytes #iterations BW peak[MB/sec] BW average[MB/sec]\n"
        " 65536 5000 200.0 100.0\n"
    )
    (both,) = perftest.parse(old, "old.txt")
    assert both.plateau_bytes_per_s == pytest.approx(100 * MIB / 2)
    data = {
        "test_info": {"test": "RDMA_Write BW", "Device": "mlx5_1"},
        "results": [
            {"MsgSize": 65536, "n_iterations": 10, "BW_peak": 199.0, "BW_average": 196.0, "MsgRate": 0.4}
        ],
    }
    (said,) = perftest.parse(json.dumps(data), "p.json", unit="Gbit/s")
    assert said.plateau_bytes_per_s == pytest.approx(196e9 / 8)
    assert guess_kind(json.dumps(data), "p.json") == "perftest"
    with pytest.raises(InputError, match="--unit"):
        perftest.parse(json.dumps(data), "p.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#bytes #iterations BW peak[GB/sec] BW average[GB/sec]\n65536 10 1 1\n", "unknown unit"),
        ("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n65536 10 1\n", "3 figures"),
        ("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n65536 10 1 0\n", "more than 0"),
        ("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n65536 10 1 5\n", "columns in order"),
        ("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\nfailed\n", "row of figures"),
        ("#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec]\n", "found no row"),
        ('{"results": [{"MsgSize": 1}]}', "BW_average or t_typical"),
        ('{"results": [{"MsgSize": "x", "t_avg": 1}]}', "whole number"),
    ],
)
def test_damaged_perftest_logs(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        perftest.parse(text, "p.txt")


def test_osu_between_two_hosts_gives_the_latency() -> None:
    tests = osu.parse(sample("fabric/two_hosts.osu.txt"), "o.txt")
    assert tests[0].both_ways
    assert tests[0].plateau_bytes_per_s == pytest.approx(45230.48e6 / 2)
    options = ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1, hosts=("a", "b"), measures="node_pair")
    links = parse("GB/s\ta\tb\na\t-\t20\nb\t20\t-\n", "l.tsv", "matrix")
    merged = merge_cluster([*tests, links], options)
    assert merged.section["network"]["inter_node"]["latency"] == "5.91 us"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# OSU MPI Bandwidth Test v7.5\n", "no row"),
        ("# OSU MPI Bandwidth Test v7.5\n# Size Latency (us)\n1 2.0\n", "the column is"),
        ("# OSU MPI Bandwidth Test v7.5\n# Size Bandwidth (GB/s)\n1 2.0\n", "the column is"),
        ("# OSU MPI All-to-All Latency Test v7.5\n# Size Bandwidth (MB/s)\n1 2.0\n", "the column is"),
        ("# OSU MPI Bandwidth Test v7.5\n# Size Bandwidth (MB/s) Validation\n1 2.0 Fail\n", "were wrong"),
        ("# OSU MPI Bandwidth Test v7.5\n# Size Bandwidth (MB/s)\n1 0\n", "more than 0"),
        ("# OSU MPI Message Rate Test v7.5\n# Size Rate\n1 2.0\n", "is a test of"),
    ],
)
def test_damaged_osu_logs(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        osu.parse(text, "o.txt")


# ---------------------------------------------------------------- NCCL topology dumps
def test_an_nccl_dump_is_a_node() -> None:
    dump = parse(sample("fabric/one_node.nccl.xml"), "topo.xml")
    (node,) = dump.nodes
    assert node.gpu_links[0][1].nvlinks == 12
    assert [[link.path for link in row] for row in node.nic_links] == [["PIX", "SYS"], ["SYS", "PIX"]]
    assert dump.nvlinks == ((12, 2), (12, 2))
    merged = merge_cluster([dump], ClusterOptions(gpu_type="a100-80gb"))
    assert merged.section["node_types"]["node"]["nics"] == {
        "count": 2,
        "bandwidth": "23 GB/s",
        "of_gpu": [0, 1],
    }


def test_two_hosts_of_one_domain_and_other_makers() -> None:
    text = sample("fabric/one_node.nccl.xml")
    second = text.replace('host_hash="0x12"', 'host_hash="0x13"').split("\n", 1)[1]
    both = text.replace("</system>\n", "") + second
    dump = nccl_xml.parse(both, "rack.xml")
    assert dump.is_domain
    assert any("NVLink domain" in warning.message for warning in dump.warnings)
    amd = (
        '<system version="2"><cpu numaid="0"><pci busid="a" class="0x03"><gpu dev="0" gcn="gfx942">'
        '<xgmi target="b" count="1"/></gpu></pci><pci busid="b" class="0x03"><gpu dev="1" gcn="gfx942">'
        '<xgmi target="a" count="1"/></gpu></pci></cpu></system>'
    )
    dump = nccl_xml.parse(amd, "amd.xml")
    assert dump.compute_capability == ("gfx942", "gfx942")
    assert dump.nodes[0].gpu_links[0][1].path == "NVLINK"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system><cpu>", "not XML"),
        ("<other/>", "expected <system>"),
        ("<system><cpu/></system>", "has no <gpu>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><system/>', "document type"),
        ('<system><cpu><pci><gpu dev="x"/></pci></cpu></system>', "whole number"),
        (
            '<system><cpu><pci><gpu dev="0"/></pci><nic><net speed="fast"/></nic></cpu></system>',
            "expected a number",
        ),
    ],
)
def test_damaged_nccl_dumps(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nccl_xml.parse(text, "topo.xml")
