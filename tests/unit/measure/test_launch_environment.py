"""Who this process is, from the variables of three launchers."""

from __future__ import annotations

import pytest

from pipette_milp.errors import InputError
from pipette_milp.measure.launch_environment import (
    check_rendezvous,
    first_host,
    launch_environment,
)

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29511"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "5",
}
SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[007-009,12]",
    "SLURMD_NODENAME": "gpu008",
}


def test_torchrun() -> None:
    found = launch_environment(TORCHRUN, host_name="h")
    assert (found.rank, found.world_size, found.local_rank) == (3, 8, 1)
    assert (found.rendezvous, found.launcher, found.node_name) == ("env://", "torchrun", "h")


def test_open_mpi_needs_the_address_of_rank_0() -> None:
    with pytest.raises(InputError, match="MASTER_ADDR"):
        launch_environment(OPEN_MPI)
    found = launch_environment({**OPEN_MPI, "MASTER_ADDR": "first"}, host_name="h")
    assert (found.rank, found.world_size, found.rendezvous) == (5, 16, "tcp://first:29500")
    assert launch_environment(OPEN_MPI, "other:1234").rendezvous == "tcp://other:1234"


def test_mpich() -> None:
    environment = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MASTER_ADDR": "x"}
    assert launch_environment(environment).launcher == "mpirun (MPICH, Intel MPI)"


def test_srun_finds_the_first_host_of_its_node_list() -> None:
    found = launch_environment(SRUN)
    assert found.rendezvous == "tcp://gpu007:29500"
    assert found.node_name == "gpu008"


def test_torchrun_under_srun_counts_as_torchrun() -> None:
    assert launch_environment({**SRUN, **TORCHRUN}).world_size == 8


def test_a_name_for_the_node_overrides_the_host() -> None:
    assert launch_environment({**SRUN, "PIPETTE_NODE_NAME": "n7"}).node_name == "n7"


def test_one_rank_needs_no_address() -> None:
    environment = {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    assert launch_environment(environment).rendezvous == "tcp://localhost:29500"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "x"}, "RANK: 'x': expected a whole number"),
        ({"RANK": "8"}, r"RANK: 8: expected 0 to 7"),
        ({"WORLD_SIZE": "0"}, "expected at least 1"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK: -1"),
    ],
)
def test_impossible_numbers(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        launch_environment({**TORCHRUN, **changes})


def test_no_launcher() -> None:
    with pytest.raises(InputError, match="torchrun") as caught:
        launch_environment({"RANK": "1"})
    assert "only RANK is set" in str(caught.value)


@pytest.mark.parametrize("text", ["host", "host:0", "host:99999", "file://relative", "a b:1", ""])
def test_bad_rendezvous(text: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        check_rendezvous(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("h:1", "tcp://h:1"),
        ("tcp://h:1", "tcp://h:1"),
        ("[::1]:80", "tcp://[::1]:80"),
        ("file:///shared/x", "file:///shared/x"),
    ],
)
def test_rendezvous(text: str, url: str) -> None:
    assert check_rendezvous(text) == url


@pytest.mark.parametrize(
    ("text", "host"),
    [("node[003-005,9],gpu1", "node003"), ("a,b", "a"), ("n[1,3]x", "n1x"), ("single", "single"), ("", "")],
)
def test_first_host(text: str, host: str) -> None:
    assert first_host(text) == host
