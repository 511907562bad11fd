from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipette_milp.errors import IllegalConfigurationError, InputError
from pipette_milp.exporters.launch import Export, LaunchOptions
from pipette_milp.exporters.registry import TARGETS, export
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan
from tests.launch_cases import instance, plan, planned, random_plan

LAUNCHERS = (
    "megatron",
    "torchrun",
    "slurm",
    "openmpi",
    "mpich",
    "deepspeed",
    "kubernetes",
    "nemo",
    "cuda-devices",
)
LOCAL = [4, 6, 5, 7, 3, 1, 2, 0]
MIXED = [0, 4, 1, 5, 2, 6, 3, 7]


def write(folder: Path, exported: Export) -> Path:
    for name, text in exported.files.items():
        (folder / name).write_text(text)
    return folder


def stub(folder: Path, name: str, body: str) -> None:
    """An executable that stands in for a program of the cluster."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def case(gpus: list[int]) -> tuple[Instance, Plan]:
    return instance(nodes=2), plan(gpus)


@pytest.mark.parametrize("target", LAUNCHERS)
def test_every_launcher_comes_with_a_verifier_and_says_its_level(target: str) -> None:
    exported = export(target, *case([4, 5, 6, 7, 0, 1, 2, 3]))
    assert "verify_placement.py" in exported.files
    assert "MEGATRON_ARGS=(" in exported.files["megatron_args.sh"]
    assert "node order (level 1 of 3)" in exported.notes[0]
    assert "CUDA_VISIBLE_DEVICES=" not in exported.files.get("run_rank.sh", "")


@pytest.mark.parametrize("target", ["torchrun", "cuda-devices", "kubernetes"])
def test_a_host_for_every_rank_is_more_than_some_can_say(target: str) -> None:
    with pytest.raises(IllegalConfigurationError, match="slurm or openmpi"):
        export(target, *case(MIXED))


def test_gpu_order_is_written_only_when_needed() -> None:
    script = export("torchrun", *case(LOCAL)).files["launch_torchrun.sh"]
    assert "CUDA_VISIBLE_DEVICES=0,2,1,3" in script
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in script


def test_torchrun_is_static_and_warns_of_the_order_as_text() -> None:
    problem = instance(names=["node7", "node66", "node8", "node70"], gpus=2)
    exported = export("torchrun", problem, plan(list(range(8))))
    script = exported.files["launch_torchrun.sh"]
    assert "--rdzv-backend=static" in script
    assert "--node-rank=" in script
    assert "c10d" not in script.replace("The c10d rendezvous would sort", "")
    assert any("node66, node7, node70, node8" in note for note in exported.notes)
    assert exported.files["node_order.txt"].split() == ["node7", "node66", "node8", "node70"]


def test_open_mpi_gets_a_rank_file_and_no_host_file() -> None:
    exported = export("openmpi", *case(MIXED), LaunchOptions(cores_per_gpu=8))
    assert exported.files["rankfile.txt"].splitlines()[:3] == [
        "rank 0=node0 slot=0-7",
        "rank 1=node1 slot=0-7",
        "rank 2=node0 slot=8-15",
    ]
    assert "-" not in "rankfile.txt"
    assert "hostfile" not in exported.files["launch_mpirun.sh"]
    assert "file=rankfile.txt" in exported.files["launch_mpirun.sh"]  # relative: 5.0.7 fails on dashes


def test_slurm_always_says_the_order() -> None:
    script = export("slurm", *case([4, 5, 6, 7, 0, 1, 2, 3])).files["launch_slurm.sh"]
    assert "SLURM_HOSTFILE" in script
    assert "--distribution=arbitrary" in script


@pytest.mark.parametrize("target", LAUNCHERS)
def test_scripts_are_valid_shell(target: str, tmp_path: Path) -> None:
    exported = export(target, *case([4, 5, 6, 7, 0, 1, 2, 3] if target == "deepspeed" else LOCAL))
    write(tmp_path, exported)
    for name in exported.files:
        if name.endswith(".sh"):
            result = subprocess.run(
                ["bash", "-n", str(tmp_path / name)], capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, result.stderr


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="torchrun"):
        export("ray", *case(LOCAL))
    assert set(LAUNCHERS) <= set(TARGETS)


def test_torchrun_script_runs_with_its_node_rank(tmp_path: Path) -> None:
    write(tmp_path, export("torchrun", *case(LOCAL)))
    (tmp_path / "bin").mkdir()
    stub(tmp_path / "bin", "hostname", "echo node0.example.org")
    stub(tmp_path / "bin", "torchrun", 'echo "$CUDA_VISIBLE_DEVICES $NCCL_ALGO $*"')
    result = run(["bash", "launch_torchrun.sh", "--train-iters", "3"], tmp_path)
    assert result.returncode == 0, result.stderr
    check, train = result.stdout.splitlines()
    assert "verify_placement.py" in check
    assert train.startswith("3,1,2,0 allreduce:ring")
    assert "--nnodes=2 --node-rank=1 --nproc-per-node=4 --rdzv-backend=static --master-addr=node1" in train
    assert train.endswith("--train-iters 3")
    stub(tmp_path / "bin", "hostname", "echo elsewhere")
    assert "not part of the plan" in run(["bash", "launch_torchrun.sh"], tmp_path).stderr


@pytest.mark.parametrize(
    ("target", "script"), [("slurm", "launch_slurm.sh"), ("openmpi", "launch_mpirun.sh")]
)
def test_launcher_is_called_with_the_wrapper(target: str, script: str, tmp_path: Path) -> None:
    write(tmp_path, export(target, *case(MIXED)))
    (tmp_path / "bin").mkdir()
    stub(tmp_path / "bin", "srun", 'echo "$SLURM_HOSTFILE $*"')
    stub(
        tmp_path / "bin",
        "mpirun",
        'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.3"; else echo "$*"; fi',
    )
    result = run(["bash", script], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "run_rank.sh pretrain_gpt.py --num-layers 24" in result.stdout
    expected = "hostfile.txt --ntasks=8" if target == "slurm" else "--map-by rankfile:file=rankfile.txt"
    assert expected in result.stdout


def test_wrapper_gives_every_rank_its_environment(tmp_path: Path) -> None:
    problem, wanted = case(MIXED)
    write(tmp_path, export("slurm", problem, wanted))
    (tmp_path / "train.py").write_text(
        "import os; print(*(os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR')))"
    )
    for rank, (host, local) in ((0, ("node0", "0")), (5, ("node1", "2"))):
        result = run(
            ["bash", "run_rank.sh", "train.py"],
            tmp_path,
            SLURM_PROCID=str(rank),
            SLURM_LOCALID=local,
            SLURMD_NODENAME=host,
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines()[-1] == f"{rank} {local} 8 node0"
    wrong = run(
        ["bash", "run_rank.sh", "train.py"],
        tmp_path,
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        SLURMD_NODENAME="node1",
    )
    assert wrong.returncode == 1
    assert "NOT AS PLANNED" in wrong.stderr


@pytest.mark.parametrize("seed", range(3))
def test_verifier_tells_right_from_wrong(seed: int, tmp_path: Path) -> None:
    problem, wanted = random_plan(np.random.default_rng(seed))
    text = export("megatron", problem, wanted).files["verify_placement.py"]
    (tmp_path / "verify_placement.py").write_text(text)
    places = planned(problem, wanted)

    def check(rank: int, host: str, gpu: int, **more: str) -> int:
        environment = {"RANK": str(rank), "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(gpu), **more}
        command = [sys.executable, "verify_placement.py", "--host", host]
        return run(command, tmp_path, **environment).returncode

    for rank in {0, len(places) - 1}:
        host, gpu = places[rank]
        assert check(rank, host, gpu) == 0
        assert check(rank, f"{host}.cluster.local" if "." not in host else host, gpu) == 0
        assert check(rank, host, gpu + 1) == 1
        assert check(rank, "other", gpu) == 1
    assert check(len(places), *places[0]) == 1
    assert check(0, *places[0], LOCAL_RANK="") == 2


def test_verifier_reads_uuids_from_nvidia_smi(tmp_path: Path) -> None:
    problem, wanted = case(LOCAL)
    write(tmp_path, export("megatron", problem, wanted))
    (tmp_path / "bin").mkdir()
    stub(tmp_path / "bin", "nvidia-smi", 'for i in 0 1 2 3; do echo "$i, GPU-$i$i, 00000000:0$i:00.0"; done')
    result = run(
        [sys.executable, "verify_placement.py", "--host", "node1"],
        tmp_path,
        RANK="1",
        LOCAL_RANK="1",
        CUDA_VISIBLE_DEVICES="GPU-00,GPU-22",
    )
    assert result.returncode == 0, result.stderr
    assert "GPU 2 (uuid GPU-22, bus 00000000:02:00.0): as planned" in result.stdout
