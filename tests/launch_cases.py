"""Instances, plans and models of launchers for tests of exporters."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from pipette_milp.schema.instance import Instance, parse_instance
from pipette_milp.schema.plan import Configuration, Placement, Plan, split_stages


def instance(
    nodes: int = 4,
    gpus: int = 4,
    layers: int = 24,
    names: list[str] | None = None,
    excluded: list[str] | None = None,
    model: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> Instance:
    """A small valid instance."""
    return parse_instance(
        {
            "schema_version": 1,
            "name": "launch",
            "model": {
                "name": "m",
                "layers": layers,
                "hidden_size": 1024,
                "ffn_hidden_size": 4096,
                "attention_heads": 16,
                "kv_heads": 4,
                "vocab_size": 50257,
                "sequence_length": 2048,
                "gated_mlp": True,
                "tied_embeddings": False,
                "position_embedding": "rope",
                "normalization": "rmsnorm",
                "biases": False,
                **(model or {}),
            },
            "training": {"global_batch_size": 64, "precision": "bf16", **(training or {})},
            "cluster": {
                "gpu_types": {
                    "G": {
                        "memory": "80 GiB",
                        "peak_flops": dict.fromkeys(("bf16", "fp16", "fp32"), "100 TFLOP/s"),
                        "memory_bandwidth": "2 TB/s",
                    }
                },
                "nodes": [
                    {"name": name, "gpu_type": "G", "gpus": gpus}
                    for name in (names or [f"node{i}" for i in range(nodes)])
                ],
                "exclude": {"gpus": excluded or []},
                "network": {
                    "intra_node": {"bandwidth": "200 GB/s", "latency": "4 us"},
                    "inter_node": {"bandwidth": "25 GB/s", "latency": "8 us", "source": "measured"},
                },
            },
        }
    )


def configuration(layers: tuple[int, ...] = (12, 12), **given: Any) -> Configuration:
    """A configuration with the layer split; ``pipeline`` follows from it and ``virtual_stages``."""
    given = {
        "tensor": 2,
        "data": 2,
        "micro_batch": 1,
        "num_micro_batches": 8,
        "virtual_stages": 1,
        **given,
    }
    interleaved = given["virtual_stages"] > 1
    defaults: dict[str, Any] = {
        "pipeline": len(layers) // given["virtual_stages"],
        "schedule": "interleaved" if interleaved else "1f1b",
        "pipeline_transfers": "async" if interleaved else "exchange",
        "stages": split_stages(layers),
    }
    return Configuration(**{**defaults, **given})


def plan(gpus: list[int], layers: tuple[int, ...] = (12, 12), **given: Any) -> Plan:
    """A plan with a placement."""
    return Plan(configuration=configuration(layers, **given), placement=Placement(gpu_of_rank=tuple(gpus)))


def random_plan(rng: np.random.Generator) -> tuple[Instance, Plan]:
    """A random placement of one of three kinds: nodes permuted, GPUs too, everything mixed."""
    nodes, gpus = int(rng.integers(1, 12)), int(rng.choice([1, 2, 4, 8]))
    width = int(rng.choice([1, 2]))
    names = [
        f"{rng.choice(['n', 'gpu-', 'r1.rack'])}{i + int(rng.integers(0, 90)) * 100}" for i in range(nodes)
    ]
    total = nodes * gpus
    kind = int(rng.integers(0, 3))
    order = [int(node) for node in rng.permutation(nodes)]
    local = {node: [int(g) for g in (rng.permutation(gpus) if kind == 1 else range(gpus))] for node in order}
    placed = [node * gpus + gpu for node in order for gpu in local[node]]
    if kind == 2:
        placed = [int(gpu) for gpu in rng.permutation(total)]
    used = total
    if nodes > 1 and rng.random() < 0.3:  # some nodes stay idle
        used -= gpus
        placed = placed[:used]
    tensor = 2 if width == 2 and used % 2 == 0 else 1
    found = instance(names=names, gpus=gpus, layers=6)
    return found, plan(placed, (6,), tensor=tensor, data=used // tensor, pipeline=1)


def visible_devices(script: str, host: str) -> list[int] | None:
    """What a wrapper exports for a host as CUDA_VISIBLE_DEVICES, None = nothing."""
    for line in script.splitlines():
        match = re.fullmatch(r"\s*([^()]+)\) (.*) ;;", line)
        if match and host in match[1].split("|"):
            devices = re.search(r"CUDA_VISIBLE_DEVICES=([\d,]+)", match[2])
            return [int(item) for item in devices[1].split(",")] if devices else None
    raise AssertionError(f"{host} is in no case of the script")


def device(listed: list[int] | None, local_rank: int) -> int:
    """GPU of a local rank."""
    return local_rank if listed is None else listed[local_rank]


def replay_torchrun(files: dict[str, str]) -> list[tuple[str, int]]:
    """(host, GPU) of every rank with a static rendezvous: ranks are numbered by node rank."""
    script = files["launch_torchrun.sh"]
    nodes: dict[int, tuple[str, int]] = {}
    for line in script.splitlines():
        match = re.fullmatch(r"\s*([^()]+)\) node_rank=(\d+); gpus=(\d+).* ;;", line)
        if match:
            nodes[int(match[2])] = match[1].split("|")[0], int(match[3])
    return [
        (host, device(visible_devices(script, host), local))
        for _, (host, count) in sorted(nodes.items())
        for local in range(count)
    ]


def replay_mpich(files: dict[str, str]) -> list[tuple[str, int]]:
    """Machine file in order, as many ranks a line as it says; local ranks as the wrapper has them."""
    hosts: list[str] = []
    for line in files["machinefile.txt"].splitlines():
        name, _, count = line.rpartition(":")
        hosts += [name] * int(count)
    listed = re.search(r"^local_of_rank=\(([\d ]*)\)$", files["run_rank.sh"], re.MULTILINE)
    assert listed is not None
    local = [int(item) for item in listed[1].split()]
    return [
        (host, device(visible_devices(files["run_rank.sh"], host), local[rank]))
        for rank, host in enumerate(hosts)
    ]


def replay_kubernetes(files: dict[str, str]) -> list[tuple[str, int]]:
    """A pod takes the number of the node it is on; nothing depends on the pod's own number."""
    return replay_torchrun({"launch_torchrun.sh": files["launch_kubernetes.sh"]})


def replay_deepspeed(files: dict[str, str]) -> list[tuple[str, int]]:
    """Hosts in the order of the host file, each once; GPUs by --include in ascending order."""
    chosen = re.search(r'--include="([^"]*)"', files["launch_deepspeed.sh"])
    included = dict(part.split(":") for part in chosen[1].split("@")) if chosen else {}
    places = []
    seen = set()
    for line in files["hostfile"].splitlines():
        match = re.fullmatch(r"(\S+) slots=(\d+)", line)
        assert match is not None, line
        assert match[1] not in seen, "DeepSpeed refuses a repeated host"
        seen.add(match[1])
        gpus = sorted(map(int, included[match[1]].split(","))) if included else range(int(match[2]))
        places += [(match[1], gpu) for gpu in gpus]
    return places


def replay_slurm(files: dict[str, str]) -> list[tuple[str, int]]:
    """Arbitrary distribution: task i runs on line i of the host file, local ids count up on each host."""
    return _by_lines(files["hostfile.txt"].split(), files["run_rank.sh"])


def replay_openmpi(files: dict[str, str]) -> list[tuple[str, int]]:
    """Rank file: the host of every rank; local ranks count up with the rank on each host."""
    hosts: dict[int, str] = {}
    for line in files["rankfile.txt"].splitlines():
        match = re.fullmatch(r"rank (\d+)=(\S+) slot=(\d+)(?:-(\d+))?", line)
        assert match is not None, line
        hosts[int(match[1])] = match[2]
    return _by_lines([hosts[rank] for rank in range(len(hosts))], files["run_rank.sh"])


def _by_lines(hosts: list[str], script: str) -> list[tuple[str, int]]:
    local: dict[str, int] = {}
    places = []
    for host in hosts:
        number = local.get(host, 0)
        local[host] = number + 1
        places.append((host, device(visible_devices(script, host), number)))
    return places


def planned(problem: Instance, wanted: Plan) -> list[tuple[str, int]]:
    """(host, GPU) of every rank, straight from the definition of a global GPU id."""
    places = [(node.name, gpu) for node in problem.cluster.nodes for gpu in range(node.gpus)]
    return [places[gpu] for gpu in wanted.placement.gpu_of_rank]
