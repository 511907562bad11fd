"""Hand-written samples of every kind, by path below tests/data."""

from __future__ import annotations

from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"

KIND_OF_SAMPLE: dict[str, str] = {
    "topology/a100_nvswitch.topo.txt": "nvidia-smi-topo",
    "topology/pairs_old_driver.topo.txt": "nvidia-smi-topo",
    "topology/two_gpus_pasted.topo.txt": "nvidia-smi-topo",
    "topology/two_gpus_no_peer.topo.txt": "nvidia-smi-topo",
    "nccl/all_reduce_two_nodes.txt": "nccl-tests",
    "nccl/all_reduce_inside_old.txt": "nccl-tests",
    "nccl/sendrecv_one_rank_per_node.txt": "nccl-tests",
    "nccl/all_reduce_two_nodes.json": "nccl-tests-json",
    "bandwidth/mpigraph.out": "mpigraph",
    "bandwidth/mpigraph_fork.out": "mpigraph",
    "bandwidth/pipette_mpigraph.json": "pipette-json",
    "bandwidth/pipette_nccl.json": "pipette-json",
    "bandwidth/matrix.tsv": "matrix",
    "bandwidth/matrix_decimal_comma.csv": "matrix",
    "bandwidth/pairs.txt": "pairs",
    "bandwidth/pairs_directed.csv": "pairs",
    "megatron/llama_8b.sh": "megatron",
    "models/llama-3.1-8b.config.json": "hf-config",
    "models/deepseek-v2-lite.config.json": "hf-config",
    "fabric/two_leaves.ibnetdiscover.txt": "ibnetdiscover",
    "fabric/one_node.nccl.xml": "nccl-topology",
    "fabric/write_bw.perftest.txt": "perftest",
    "fabric/write_lat.perftest.txt": "perftest",
    "fabric/two_hosts.osu.txt": "osu",
    "scheduler/tree.topology.conf": "slurm-topology",
    "scheduler/block.topology.conf": "slurm-topology",
    "scheduler/topology.yaml": "slurm-topology-yaml",
    "logs/run.megatron.log": "megatron-log",
    "settings/run.nemo.yaml": "nemo",
    "settings/run.torchtitan.toml": "torchtitan",
    "settings/run.deepspeed.json": "deepspeed",
}


def sample(name: str) -> str:
    """Text of a sample, line ends as they are."""
    return (DATA / name).read_bytes().decode("utf-8")
