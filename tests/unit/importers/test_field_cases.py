"""Real inputs from public reports, with what a correct tool reads from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import IllegalConfigurationError, InputError
from pipette_milp.exporters.megatron import rank_order_argument
from pipette_milp.exporters.megatron_split import split_arguments
from pipette_milp.exporters.registry import export
from pipette_milp.importers import registry
from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.diagnose import diagnose
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.matrix_table import parse as parse_matrix
from pipette_milp.importers.megatron import parse as parse_megatron
from pipette_milp.importers.megatron_model import padded_vocabulary
from pipette_milp.importers.megatron_split import SplitFlags, split_of
from pipette_milp.importers.merge import merge_cluster
from pipette_milp.importers.merge_options import ClusterOptions
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.nccl_xml import NcclTopology
from pipette_milp.importers.node_topology import Link, NodeTopology
from pipette_milp.importers.scheduler_topology import SchedulerTopology
from pipette_milp.importers.training_log import TrainingLog
from pipette_milp.schema.model import ModelSection
from pipette_milp.transformer import Transformer
from pipette_milp.units import GB, MIB
from tests.conftest import shared_data
from tests.launch_cases import configuration, instance, plan


def text_of(name: str) -> str:
    return Path(shared_data(f"data/field_cases/{name}")).read_bytes().decode()


def fact(name: str, **options: Any) -> Any:
    """The one fact of a file, its kind guessed."""
    found = registry.parse(text_of(name), name, **options)
    return found[0] if isinstance(found, tuple) else found


def topology(name: str) -> NodeTopology:
    found = fact(f"{name}.topo.txt")
    assert isinstance(found, NodeTopology)
    return found


def run(name: str) -> CollectiveRun:
    found = fact(name)
    assert isinstance(found, CollectiveRun)
    return found


def nvlink_pairs(node: NodeTopology) -> set[tuple[int, int]]:
    return {
        (a, b)
        for a in range(len(node.gpus))
        for b in range(a)
        if (link := node.gpu_links[a][b]) is not None and link.path == "NVLINK"
    }


def test_t01_cube_mesh() -> None:
    node = topology("t01_8xV100_1nic")
    assert (len(node.gpus), node.nics) == (8, ("mlx5_2",))
    assert [node.nearest_nics(gpu) for gpu in range(8)] == [(0,)] * 4 + [()] * 4
    assert [node.nvlinks_of(gpu) for gpu in range(8)] == [6] * 8
    assert len(nvlink_pairs(node)) == 16
    assert node.cliques()[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert node.slowest_link(tuple(range(8))) == Link("SYS")


def test_t03_another_wiring() -> None:
    node = topology("t03_8xV100_cloud_vm")
    assert node.gpu_links[0][6] == Link("NVLINK", 2)
    assert node.gpu_links[0][4] == Link("SYS")
    assert [node.nvlinks_of(gpu) for gpu in range(8)] == [6] * 8
    assert node.cliques()[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    crossing = {pair for pair in nvlink_pairs(node) if (pair[0] < 4) != (pair[1] < 4)}
    assert crossing == {(6, 0), (7, 1), (4, 2), (5, 3)}
    assert node.nics == ()
    assert node.numa_affinity == (None,) * 8


def test_t05_unknown_numa() -> None:
    node = topology("t05_4xV100_numa_na")
    assert node.fully_linked((0, 1, 2, 3))
    assert [node.nvlinks_of(gpu) for gpu in range(4)] == [4, 4, 5, 5]
    assert node.numa_affinity == (None,) * 4
    assert node.cpu_affinity == ("0-31",) * 4


def test_t06_cards_on_one_socket() -> None:
    node = topology("t06_8xA100_nics_one_socket")
    assert len(nvlink_pairs(node)) == 28
    assert node.slowest_link(tuple(range(8))) == Link("NVLINK", 12)
    assert [bool(node.nearest_nics(gpu)) for gpu in range(8)] == [True] * 4 + [False] * 4


def test_t07_indented_and_shared_cards() -> None:
    node = topology("t07_8xA100_2hca_indented")
    assert node.nics == ("mlx5_0", "mlx5_1")
    assert [node.nearest_nics(gpu) for gpu in range(8)] == [(0,)] * 4 + [(1,)] * 4


def test_t08_cut_after_a_card() -> None:
    node = topology("t08_8xH100_12nic_truncated")
    assert [node.nearest_nics(gpu) for gpu in range(8)] == [(0,), (3,), (4,), (5,), (6,), (9,), (10,), (11,)]
    assert node.compute_nics() == (0, 3, 4, 5, 6, 9, 10, 11)
    assert node.nic_nic_links[1][2] == Link("PIX")
    (warning,) = node.warnings
    assert "NIC6, NIC7, NIC8, NIC9, NIC10, NIC11" in warning.message


def test_t09_colours_and_a_bond() -> None:
    node = topology("t09_8xH200_ansi")
    assert node.gpus == tuple(range(8))
    assert node.nics[0] == "mlx5_10"
    assert node.nics[8] == "mlx5_bond_0"
    assert node.compute_nics() == tuple(range(8))


def test_t11_bridges_in_pairs() -> None:
    node = topology("t11_4xA100_nvlink_pairs")
    assert node.cliques() == ((0, 1), (2, 3))
    assert node.slowest_link((0, 1, 2, 3)) == Link("SYS")
    assert node.numa_affinity == ("0", "1", "2", "3")


def test_t13_no_peer_access() -> None:
    node = topology("t13_2x5090_p2p_gns")
    assert node.gpu_links[0][1] == Link("PHB")
    assert node.peer_access == ((None, False), (False, None))
    merged = merge_cluster([node], ClusterOptions(gpu_type="l40s"))
    assert any("measure it" in problem.message for problem in merged.missing)


def test_t14_no_nvlink() -> None:
    node = topology("t14_4gpu_all_sys")
    assert node.cliques() == ()
    assert node.slowest_link((0, 1, 2, 3)) == Link("SYS")


def test_n01_what_can_and_cannot_be_told() -> None:
    found = diagnose(fact("n01_pairwise_busbw.txt"))
    assert found is not None
    assert found.good_level == pytest.approx(87.6, abs=0.05)
    assert found.slow_level == pytest.approx(49.3, abs=0.05)
    assert found.slow_level / found.good_level == pytest.approx(0.56, abs=0.005)
    assert found.slow_nodes == (("node-a", "both ways"),)
    (undecided,) = found.undecided
    assert {node for node, _ in undecided.suspects} == {"node-e", "node-f"}
    assert undecided.measure == (("node-e", "node-c"), ("node-f", "node-c"))
    assert found.cleared == ("node-b", "node-c", "node-d", "node-g")
    assert any("not the cause" in remark for remark in found.remarks)


def test_n01_needs_unit_and_meaning_before_it_is_a_cluster() -> None:
    with pytest.raises(InputError) as raised:
        merge_cluster([fact("n01_pairwise_busbw.txt")])
    assert "--unit" in str(raised.value)
    assert "--measures" in str(raised.value)


def test_n03_no_mpi() -> None:
    with pytest.raises(InputError, match="independent runs"):
        fact("n03_not_mpi_build.txt")


def test_n04_tagged_lines() -> None:
    found = run("n04_mpirun_tagged.txt")
    assert len(found.rows) == 3
    latencies = [row.in_place.time_s for row in found.rows if row.in_place]
    assert 12.8e-6 <= min(latencies) <= max(latencies) <= 13.4e-6
    assert found.plateau_busbw_bytes_per_s is None


def test_n06_ranks_from_the_ratio_and_plateau() -> None:
    found = run("n06_nvl72_allreduce.txt")
    assert (found.collective, found.rank_count) == ("all_reduce", 72)
    assert found.average_busbw_bytes_per_s == pytest.approx(745.53e9)
    mean = np.mean([timing.busbw_bytes_per_s for row in found.rows for timing in row.timings])
    assert mean == pytest.approx(745.53e9, rel=1e-4)
    assert found.plateau_busbw_bytes_per_s is not None
    assert 830e9 < found.plateau_busbw_bytes_per_s < 846.82e9


def test_n07_cut_banner() -> None:
    found = run("n07_ring_2nodes.txt")
    assert found.rank_count == 8
    assert found.plateau_busbw_bytes_per_s == pytest.approx(95.3e9, rel=0.02)


def test_n09_latency_of_one_pair() -> None:
    found = run("n09_sendrecv_a40.txt")
    assert found.hosts == ("node-a", "node-b")
    assert found.small_message_latency_s == pytest.approx(31e-6, rel=0.02)
    assert found.plateau_busbw_bytes_per_s is None
    assert found.rows[0].in_place is not None
    assert found.rows[0].in_place.wrong is None


def test_n11_hosts_by_rank() -> None:
    found = run("n11_rank_list_not_sorted.txt")
    assert found.hosts == ("node-1", "node-0")
    assert [rank.host for rank in found.ranks] == ["node-1"] * 8 + ["node-0"] * 8


def test_m01_mpigraph() -> None:
    log = fact("m01_mpigraph_2nodes.out")
    assert isinstance(log, MpiGraph)
    there, back = log.send[0, 1], log.send[1, 0]
    assert there == pytest.approx(14493.357 * MIB)
    assert there / GB == pytest.approx(15.197, abs=5e-4)
    assert back / GB == pytest.approx(11.610, abs=5e-4)
    assert (there - back) / there == pytest.approx(0.236, abs=5e-4)
    assert log.receive[1, 0] == pytest.approx(there, rel=5e-4)
    assert np.isnan(log.send[0, 0])
    assert log.harmonic_mean_bytes_per_s() / MIB == pytest.approx(12554.06, abs=0.01)
    assert log.warnings == ()


def test_m02_sixteen_nodes() -> None:
    name = "m02_pipette_16nodes_send_MiBps.tsv"
    found = parse_matrix(text_of(name), name)
    assert registry.guess_kind(text_of(name), name) == "matrix"
    assert found.unit == "MiB/s"
    assert np.nanmin(found.values) == pytest.approx(16361.7 * MIB)
    assert np.nanmax(found.values) == pytest.approx(19506.6 * MIB)
    assert np.nanmax(found.values) / np.nanmin(found.values) == pytest.approx(1.192, abs=5e-4)
    assert found.unknown_pairs == ()
    asymmetry = np.abs(found.values - found.values.T) / np.maximum(found.values, found.values.T)
    assert 0.13 < np.nanmax(asymmetry) < 0.15


def parameters(name: str, **more: Any) -> int:
    section = {**fact(name).section, "name": "m", "sequence_length": 1024, **more}
    return Transformer(ModelSection.model_validate(section)).parameters


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("h01_llama31_405b.config.json", 405_853_388_800),
        ("h04_gpt2_xl.config.json", 1_557_611_200),
        ("h11_llama32_1b_tied.config.json", 1_235_814_400),
    ],
)
def test_h01_h04_h11_parameters(name: str, count: int) -> None:
    assert parameters(name) == count


def test_h01_splits_of_126_layers() -> None:
    accounted = SplitFlags(126, 16, account_for_embedding=True, account_for_loss=True)
    assert split_of(accounted, "").layers_per_stage == (7, *[8] * 14, 7)
    assert split_of(SplitFlags(126, 16, first=7, last=7), "").layers_per_stage == (7, *[8] * 14, 7)
    with pytest.raises(InputError, match="126 layers do not divide evenly by 16"):
        split_of(SplitFlags(126, 16), "")
    assert split_of(SplitFlags(126, 9), "").layers_per_stage == (14,) * 9


@pytest.mark.parametrize(
    ("name", "heads", "legal", "illegal"),
    [
        ("h04_gpt2_xl.config.json", 25, (1, 5, 25), (2, 4, 8)),
        ("h05_llama1_33b.config.json", 52, (1, 2, 4), (8,)),
    ],
)
def test_h04_h05_heads(name: str, heads: int, legal: tuple[int, ...], illegal: tuple[int, ...]) -> None:
    section = fact(name).section
    assert section["attention_heads"] == section["kv_heads"] == heads
    shape = f"--num-layers 8 --hidden-size {section['hidden_size']} --num-attention-heads {heads}"
    for tensor in legal:
        parse_megatron(f"{shape} --tensor-model-parallel-size {tensor}", "f")
    for tensor in illegal:
        with pytest.raises(InputError, match=f"{heads} heads"):
            parse_megatron(f"{shape} --tensor-model-parallel-size {tensor}", "f")


def test_h04_h09_padded_vocabularies() -> None:
    assert fact("h04_gpt2_xl.config.json").section["ffn_hidden_size"] == 6400
    assert [padded_vocabulary(50257, tensor) for tensor in (1, 5)] == [50304, 50560]
    vocabulary = fact("h09_vocab_151669.config.json").section["vocab_size"]
    assert [padded_vocabulary(vocabulary, tensor) for tensor in (1, 4, 8)] == [151680, 152064, 152576]


def test_h11_is_tied() -> None:
    section = fact("h11_llama32_1b_tied.config.json").section
    assert section["tied_embeddings"]
    assert section["vocab_size"] * section["hidden_size"] == 262_668_288


def test_p01_layers_are_never_lost() -> None:
    data = json.loads(text_of("p01_30_layers_pp4.json"))
    with pytest.raises(InputError, match="30 layers do not divide evenly by 4"):
        parse_megatron(text_of("p01_30_layers_pp4.json"), "p01.json")
    assert split_arguments(configuration((8, 8, 7, 7))) == (
        "--pipeline-model-parallel-layout Et*8|t*8|t*7|t*7L",
    )
    assert sum((8, 8, 7, 7)) == data["num_layers"]
    assert all("layout" not in word for word in split_arguments(configuration((8, 7, 7, 8))))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("p02_80_layers_pp16_vpp.json", "possible are 1, 5"),
        ("p03_40_layers_pp8_vpp.json", "possible are 1, 5"),
        ("p04_last_stage_with_pp1.json", "contradict"),
        ("p05_vpp_needs_microbatches.json", "micro-batches"),
    ],
)
def test_p02_to_p05_are_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_megatron(text_of(name), name)


def test_p16_host_names_as_text() -> None:
    names = text_of("p16_hostnames.txt").split()
    exported = export("torchrun", instance(names=names, gpus=2), plan(list(range(2 * len(names)))))
    assert "--rdzv-backend=static" in exported.files["launch_torchrun.sh"]
    assert any("node66, node7, node70, node8" in note for note in exported.notes)


def test_p17_a_host_file_is_no_order() -> None:
    names = text_of("p17_hostfile_not_ordered.hostfile").split()
    exported = export("openmpi", instance(names=names, gpus=4), plan(list(range(8))))
    assert exported.files["rankfile.txt"].startswith(f"rank 0={names[0]} ")
    assert not [name for name in exported.files if "hostfile" in name]


def test_p19_experts_forbid_the_mapping_flag() -> None:
    case = json.loads(text_of("p19_ep_forbids_tp_pp_dp.json"))
    axes = {"tp": "tensor", "cp": "context", "pp": "pipeline", "dp": "data"}
    order = [axes[axis] for axis in case["order_wanted"].split("-") if axis in axes]
    with pytest.raises(IllegalConfigurationError, match="order the nodes"):
        rank_order_argument(order, case["pp"], expert=case["ep"], dense_group=case["tp"])
    flags = (
        f"--num-layers 8 --pipeline-model-parallel-size {case['pp']} --expert-model-parallel-size "
        f"{case['ep']}"
    )
    with pytest.raises(InputError, match="order the nodes"):
        parse_megatron(f"{flags} --use-tp-pp-dp-mapping", "f")


# ---------------------------------------------------------------- fabrics, schedulers, logs
def test_m04_two_leaves_of_a_fabric() -> None:
    fabric = fact("m04_ibnetdiscover_two_leaves.txt")
    assert isinstance(fabric, Fabric)
    leaf = next(guid for guid, name in fabric.switch_names.items() if name == "leaf-01")
    up = fabric.ports_up(leaf)
    assert sorted(up.values()) == [2] * 8
    group = next(group for group in fabric.groups(0) if group.name == "leaf-01")
    assert (len(group.nodes), group.cables) == (17, 16)
    assert group.bytes_per_s == pytest.approx(16 * 50 * GB)
    assert not any("Aggregation" in str(adapter.host) for adapter in fabric.adapters)
    assert {adapter.device for adapter in fabric.adapters if adapter.host} == {"mlx5_5", "HCA-6"}
    (unresolved,) = [adapter for adapter in fabric.adapters if adapter.host is None]
    assert any(unresolved.guid in warning.message for warning in fabric.warnings)
    assert {adapter.bytes_per_s for adapter in fabric.adapters} == {50 * GB}
    merged = merge_cluster([fabric], ClusterOptions(gpu_type="h100-80gb", gpus_per_node=1))
    assert any("nothing joins" in problem.message for problem in merged.missing)


def test_m06_three_tests_in_one_log() -> None:
    found = registry.parse(text_of("m06_osu_bw_cuda.txt"), "m06")
    assert [test.metric for test in found] == ["bandwidth", "bandwidth", "latency"]
    assert found[0].rows[0][1] == pytest.approx(279.57325 * GB)
    assert found[0].plateau_bytes_per_s == found[0].rows[0][1]
    assert found[1].plateau_bytes_per_s is None
    assert found[2].small_message_latency_s == pytest.approx(2.37e-6)
    assert {test.hosts for test in found} == {("node-a",)}


def test_m07_one_gpu_and_its_card() -> None:
    dump = fact("m07_nccl_topo_h100_fragment.xml")
    assert isinstance(dump, NcclTopology)
    (node,), ((card,),) = dump.nodes, dump.cards
    assert (node.gpus, dump.compute_capability, dump.nvlinks) == ((7,), (90,), ((18, 4),))
    assert card.bytes_per_s == pytest.approx(50 * GB)
    assert node.nic_links[0][0].path in ("PIX", "PXB")
    assert card.gpu_direct is False
    assert any("GPUDirect" in warning.message for warning in dump.warnings)


def test_s01_two_trees_have_no_path() -> None:
    forest = fact("s01_slurm_forest.topology.conf")
    assert isinstance(forest, SchedulerTopology)
    assert len(forest.nodes) == 400
    assert [len(part) for part in forest.components()] == [200, 200]
    assert forest.lowest_common("peta10000", "peta10399") is None
    assert forest.lowest_common("peta10000", "peta10020") == "grp10"
    merged = merge_cluster([forest], ClusterOptions(gpu_type="h100-80gb", gpus_per_node=8))
    assert any("nothing joins" in problem.message for problem in merged.missing)
    part = ClusterOptions(gpu_type="h100-80gb", gpus_per_node=8, hosts=("peta10000", "peta10020"))
    assert not any("nothing joins" in problem.message for problem in merge_cluster([forest], part).missing)


def test_s02_blocks() -> None:
    blocks = fact("s02_slurm_block.topology.conf")
    assert blocks.kind == "block"
    assert [len(nodes) for nodes in blocks.groups.values()] == [32] * 4
    assert blocks.block_sizes == (30, 120)


def test_s05_branches_of_different_depth() -> None:
    tree = fact("s05_slurm_unbalanced.topology.conf")
    pairs = {("n1", "n5"): "grp10", ("n1", "n9"): "im0", ("n1", "n17"): "root", ("n17", "n25"): "root"}
    assert len(tree.nodes) == 32
    assert {pair: tree.lowest_common(*pair) for pair in pairs} == pairs
    assert (len(tree.above("n1")) - 1, len(tree.above("n17")) - 1) == (3, 2)


def test_h02_experts_and_latent_attention() -> None:
    assert parameters("h02_deepseek_v3.config.json") == 671_026_419_200
    found = fact("h02_deepseek_v3.config.json")
    section = found.section
    assert section["moe"]["first_dense_layers"] == 3
    assert (section["kv_heads"], section["mla"]["kv_lora_rank"]) == (128, 512)
    assert any("num_nextn_predict_layers" in note for note in found.notes)
    with pytest.raises(InputError, match="61 layers do not divide evenly"):
        split_of(SplitFlags(61, 16), "")
    layout = split_of(SplitFlags(61, 16, layout="Et*3|(tt|)*29m|L"), "")
    assert (sum(layout.layers_per_stage), layout.chunks) == (61, 2)


def test_h08_a_shared_expert_by_its_width() -> None:
    section = fact("h08_qwen15_moe_a27b.config.json").section
    assert section["moe"]["shared_ffn_hidden_size"] == 5632
    assert section["moe"]["shared_expert_gate"] is True
    assert section["moe"]["ffn_hidden_size"] == 1408
    assert parameters("h08_qwen15_moe_a27b.config.json") == 14_315_784_192
    shape = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --num-experts 60"
    for degree in (1, 2, 3, 4, 5, 6, 10, 12, 15):
        parse_megatron(f"{shape} --expert-model-parallel-size {degree}", "f")
    with pytest.raises(InputError, match="60 experts do not divide by expert degree 8"):
        parse_megatron(f"{shape} --expert-model-parallel-size 8", "f")


def test_p12_iteration_lines_with_another_loss() -> None:
    log = fact("p12_megatron_log_moe.txt")
    assert isinstance(log, TrainingLog)
    times = [item.time_s for item in log.iterations]
    assert np.mean(times) == pytest.approx(5.57373, abs=5e-6)
    assert log.median_time_s == pytest.approx(5.5809)
    work = [item.time_s * (item.flop_per_s_per_gpu or 0.0) for item in log.iterations]
    assert work == pytest.approx([1306e12] * 3, rel=1e-3)
    assert all("load_balancing_loss" in dict(item.others) for item in log.iterations)
    assert log.global_batch_size == 128


def test_p24_memory_report() -> None:
    log = fact("p24_report_memory.txt")
    first, second = log.memory
    assert (first.rank, second.rank) == (0, 8)
    assert first.peak_allocated_bytes == pytest.approx(23810.12 * MIB)
    ratios = [item.peak_reserved_bytes / item.peak_allocated_bytes for item in log.memory]
    assert ratios == pytest.approx([1.14, 1.17], abs=0.005)
    assert log.peak_reserved_bytes == pytest.approx(27094 * MIB)
