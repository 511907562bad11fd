from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import registry
from pipette_milp.importers.assemble import Assembled, AssembleOptions, Found, assemble
from pipette_milp.importers.merge import ClusterImport, merge_cluster
from pipette_milp.importers.merge_nodes import gpu_preset_of_device
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.schema.instance import parse_instance
from pipette_milp.units import MIB
from tests.importer_samples import KIND_OF_SAMPLE, sample

TOPOLOGY = "topology/a100_nvswitch.topo.txt"
MODEL = "models/llama-3.1-8b.config.json"
A100 = ClusterOptions(gpu_type="a100-80gb")


def facts(*names: str) -> list[object]:
    found: list[object] = []
    for name in names:
        fact = registry.parse(sample(name), name, KIND_OF_SAMPLE[name])
        found += fact if isinstance(fact, tuple) else (fact,)
    return found


def merge(names: Sequence[str], **options: object) -> ClusterImport:
    return merge_cluster(facts(*names), ClusterOptions(**options))  # type: ignore[arg-type]


def assembled(names: Sequence[str], options: AssembleOptions) -> Assembled:
    found = [Found(name, KIND_OF_SAMPLE[name], fact) for name in names for fact in facts(name)]
    return assemble(found, options)


def inter_node(result: ClusterImport) -> dict[str, object]:
    return result.section["network"]["inter_node"]  # type: ignore[no-any-return]


def test_topology_and_matrix_make_a_cluster() -> None:
    result = merge(
        [TOPOLOGY, "bandwidth/matrix.tsv"], gpu_type="a100-80gb", simultaneous_flows=4, card_bytes_per_s=24e9
    )
    assert result.missing == ()
    assert result.unknown_pairs == (("n1", "n4"), ("n4", "n1"))
    node = result.section["node_types"]["node"]
    assert node["gpus"] == ["A100-SXM4-80GB", 8]
    assert node["scale_up"]["per_gpu_bandwidth"] == "240 GB/s"  # 12 NVLinks of 20 GB/s
    assert node["nics"] == {"count": 4, "bandwidth": "24 GB/s", "of_gpu": [0, 0, 1, 1, 2, 2, 3, 3]}
    network = inter_node(result)
    assert (network["measures"], network["simultaneous_flows"]) == ("flow", 4)
    assert network["bandwidth"]["values"][0] == [None, 19.25, 18.5, None]  # type: ignore[index]


def test_how_many_flows_ran_is_asked_for() -> None:
    with pytest.raises(InputError, match="--simultaneous-flows"):
        merge(["bandwidth/matrix.tsv"])
    assert inter_node(merge(["bandwidth/matrix.tsv"], measures="node_pair"))["measures"] == "node_pair"
    with pytest.raises(InputError, match="--simultaneous-flows"):
        merge(["bandwidth/pipette_mpigraph.json"])


def test_how_many_flows_ran_is_read_from_the_log() -> None:
    network = inter_node(merge(["bandwidth/mpigraph.out"]))
    assert (network["measures"], network["simultaneous_flows"]) == ("flow", 2)
    with pytest.raises(InputError, match="log itself shows 2 simultaneous flows"):
        merge(["bandwidth/mpigraph.out"], simultaneous_flows=4)


def test_figures_come_back_as_they_were_measured() -> None:
    network = inter_node(merge(["bandwidth/pipette_mpigraph.json"], simultaneous_flows=4))
    value = network["bandwidth"]["values"][0][1]  # type: ignore[index]
    assert value * 1e9 == pytest.approx(18400.5 * MIB, rel=1e-15)


def test_collectives_between_two_nodes() -> None:
    result = merge(["nccl/all_reduce_two_nodes.txt", "nccl/sendrecv_one_rank_per_node.txt"])
    network = inter_node(result)
    assert network["measures"] == "node_pair"  # one ring of all cards, one single flow: converted
    values = np.array(network["bandwidth"]["values"], dtype=float)  # type: ignore[index]
    names = [node["name"] for node in result.section["nodes"]]
    assert names == ["nodeb", "nodea", "nodec"]
    assert values[0, 1] == pytest.approx(90.5, rel=0.01)
    assert values[1, 2] == pytest.approx(22.9, rel=0.01)
    assert np.isnan(values[0, 2])
    assert network["latency"] == "23.9 us"
    assert next(iter(result.section["gpu_types"])) == "A100-SXM4-80GB"  # from the rank list


def test_measurements_inside_a_node() -> None:
    result = merge(["nccl/all_reduce_inside_old.txt"], gpu_type="a100-80gb", gpus_per_node=8)
    bandwidth = result.section["node_types"]["node"]["scale_up"]["per_gpu_bandwidth"]
    assert float(bandwidth.split()[0]) == pytest.approx(233.0, rel=0.01)


def test_contradictions_are_reported_with_both_sources() -> None:
    with pytest.raises(InputError) as raised:
        merge(["bandwidth/pipette_mpigraph.json", "bandwidth/pipette_nccl.json"], simultaneous_flows=4)
    text = str(raised.value)
    assert "pipette_nccl.json" in text
    assert "pipette_mpigraph.json" in text
    assert "hosta to hostb" in text
    assert len(raised.value.problems) == 5  # the sixth pair differs by 4 %


def test_sources_that_agree_are_averaged_and_complete_each_other() -> None:
    result = merge(["bandwidth/pipette_mpigraph.json"] * 2, simultaneous_flows=4)
    assert result.unknown_pairs == ()


def test_number_of_gpus_that_contradicts_the_topology() -> None:
    with pytest.raises(InputError, match="--gpus-per-node has 4 GPUs"):
        merge([TOPOLOGY], gpus_per_node=4)


def test_nodes_wired_differently_are_refused() -> None:
    other = registry.parse(sample(TOPOLOGY).replace("NV12", "NV8"), "other.txt", "nvidia-smi-topo")
    with pytest.raises(InputError, match=r"other\.txt: contradicts topology/a100_nvswitch"):
        merge_cluster([*facts(TOPOLOGY), other], A100)  # type: ignore[list-item]


def test_gpus_that_may_not_copy_to_each_other_need_a_measurement() -> None:
    result = merge(["topology/two_gpus_no_peer.topo.txt"], gpu_type="l40s")
    assert "measure it" in result.missing[0].message
    assert "scale_up" not in result.section["node_types"]["node"]
    told = merge(["topology/two_gpus_no_peer.topo.txt"], gpu_type="l40s", intra_node_bytes_per_s=10e9)
    assert told.missing == ()


def test_a_mesh_is_read_pair_by_pair() -> None:
    result = merge(["topology/pairs_old_driver.topo.txt"], gpu_type="v100-16gb")
    scale_up = result.section["node_types"]["node"]["scale_up"]
    assert scale_up["kind"] == "mesh"
    assert scale_up["per_gpu_bandwidth"] == "12 GB/s"  # PCIe, for the pairs without NVLink
    values = scale_up["pairs"]["values"]
    assert [b for b, rate in enumerate(values[0]) if rate is not None] == [1]
    assert values[0][1] == values[1][0] > 12
    assert any("groups with NVLink between all: GPUs 0,1; GPUs 2,3" in str(item) for item in result.warnings)


def test_hosts_give_the_order_of_nodes() -> None:
    result = merge(
        ["bandwidth/pipette_nccl.json"], simultaneous_flows=4, hosts=("hostc", "hosta", "hostb", "hostd")
    )
    values = inter_node(result)["bandwidth"]["values"]  # type: ignore[index]
    assert values[0] == [None, 17.25, 18.125, None]
    with pytest.raises(InputError, match="does not name hostb"):
        merge(["bandwidth/pipette_nccl.json"], simultaneous_flows=4, hosts=("hosta", "hostc"))


def test_what_is_missing_names_the_option() -> None:
    missing = " ".join(str(item) for item in merge(["bandwidth/mpigraph.out"]).missing)
    assert "--gpu-type" in missing
    assert "--gpus-per-node" in missing


@pytest.mark.parametrize(
    ("device", "preset"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA H200", "h200-141gb"),
        ("NVIDIA A100", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_device_names(device: str, preset: str | None) -> None:
    assert gpu_preset_of_device(device) == preset


def test_a_whole_instance() -> None:
    options = AssembleOptions(
        sequence_length=4096,
        global_batch_size=256,
        cluster=ClusterOptions(gpu_type="a100-80gb", simultaneous_flows=4),
    )
    result = assembled([MODEL, TOPOLOGY, "bandwidth/pipette_mpigraph.json"], options)
    assert result.complete
    instance = parse_instance(result.document)
    assert instance.model.name == "llama-3.1-8b"
    assert [node.name for node in instance.cluster.nodes] == ["hosta", "hostb", "hostc"]
    assert result.diagnosis is not None
    assert result.diagnosis.healthy


def test_a_run_gives_model_batch_and_plan() -> None:
    options = AssembleOptions(cluster=ClusterOptions(gpu_type="a100-80gb", simultaneous_flows=4))
    result = assembled(["megatron/llama_8b.sh", TOPOLOGY, "bandwidth/pipette_mpigraph.json"], options)
    assert result.complete
    assert result.document["training"]["global_batch_size"] == 256
    assert result.plan is not None
    assert result.plan.configuration.layers_per_stage == (9, 8, 8, 7)


def test_sections_alone_are_no_instance() -> None:
    result = assembled([MODEL], AssembleOptions())
    assert not result.complete
    assert result.document["model"]["layers"] == 32
    assert "--sequence-length" in str(result.missing[0])


def test_model_files_that_contradict_each_other() -> None:
    changed = sample("megatron/llama_8b.sh").replace("--vocab-size 128256", "--vocab-size 32000")
    found = [
        Found("config.json", "hf-config", registry.parse(sample(MODEL), "config.json", "hf-config")),
        Found("run.sh", "megatron", registry.parse(changed, "run.sh", "megatron")),
    ]
    with pytest.raises(InputError, match=r"run\.sh: vocab_size is 32000, but 128256 in config\.json"):
        assemble(found, AssembleOptions())
