"""Who this process is among all that a launcher started: from the variables of torchrun, mpirun and srun."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem

DEFAULT_PORT = 29500
"""PyTorch's own default."""
NODE_NAME = "PIPETTE_NODE_NAME"
"""Environment variable that overrides the host's name, for containers that hide it."""

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    "mpirun (MPICH, Intel MPI)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
"""Rank, number of ranks, rank on the node. The first launcher that set all three counts: torchrun runs under
srun too, and mpirun inside a Slurm allocation."""


@dataclass(frozen=True)
class LaunchEnvironment:
    """One rank of a launch."""

    rank: int
    world_size: int
    local_rank: int
    node_name: str
    rendezvous: str
    """``tcp://HOST:PORT`` of rank 0, ``env://`` under torchrun, or ``file:///PATH`` on a shared folder."""
    launcher: str


def launch_environment(
    environment: Mapping[str, str], rendezvous: str | None = None, host_name: str | None = None
) -> LaunchEnvironment:
    """The rank that a launcher's variables describe.

    Args:
        environment: as `os.environ`.
        rendezvous: overrides where ranks meet.
        host_name: of this machine; asked for if left out.

    Raises:
        InputError: started without a launcher, impossible numbers, or nobody says where rank 0 runs.
    """
    found = None
    for launcher, names in _LAUNCHERS.items():
        if all(environment.get(name, "").strip() for name in names):
            found = launcher, names
            break
    if found is None:
        partial = [
            name for names in _LAUNCHERS.values() for name in names if environment.get(name, "").strip()
        ]
        seen = f" (only {', '.join(partial)} is set)" if partial else ""
        raise InputError(
            f"no launcher's variables in the environment{seen}: start one process per GPU, for example\n"
            "  torchrun --nnodes=N --nproc-per-node=G ... -m pipette_milp ...\n"
            "  mpirun -n RANKS -x MASTER_ADDR=FIRST_HOST python -m pipette_milp ...\n"
            "  srun --ntasks=RANKS python -m pipette_milp ..."
        )
    launcher, names = found
    problems: list[Problem] = []
    rank, world_size, local_rank = (_whole(name, environment[name], problems) for name in names)
    if not problems:
        if world_size < 1:
            problems.append(Problem(names[1], f"{world_size}: expected at least 1"))
        elif not 0 <= rank < world_size:
            problems.append(Problem(names[0], f"{rank}: expected 0 to {world_size - 1} ({names[1]} - 1)"))
        if local_rank < 0:
            problems.append(Problem(names[2], f"{local_rank}: expected at least 0"))
    if problems:
        raise InputError(problems)
    name = environment.get(NODE_NAME) or environment.get("SLURMD_NODENAME") or host_name
    return LaunchEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        node_name=name or socket.gethostname(),
        rendezvous=_rendezvous(environment, launcher, rendezvous, world_size),
        launcher=launcher,
    )


def _whole(name: str, text: str, problems: list[Problem]) -> int:
    try:
        return int(text)
    except ValueError:
        problems.append(Problem(name, f"{text!r}: expected a whole number"))
        return 0


def _rendezvous(environment: Mapping[str, str], launcher: str, given: str | None, world_size: int) -> str:
    if given is not None:
        return check_rendezvous(given)
    port = environment.get("MASTER_PORT", str(DEFAULT_PORT)).strip()
    host = environment.get("MASTER_ADDR", "").strip()
    if launcher == "torchrun" and host:
        return "env://"
    if not host and launcher == "srun":
        host = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if not host and world_size == 1:
        host = "localhost"
    if not host:
        raise InputError(
            f"{launcher} does not say where rank 0 runs: set MASTER_ADDR (and MASTER_PORT, default "
            f"{DEFAULT_PORT}) in the environment of all ranks, or give --rendezvous HOST:PORT"
        )
    return check_rendezvous(f"{host}:{port}")


def check_rendezvous(text: str) -> str:
    """``HOST:PORT`` or ``file:///PATH`` as a URL.

    Raises:
        InputError: neither.
    """
    if text.startswith("file:///"):
        return text
    match = re.fullmatch(r"(?:tcp://)?([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\]):(\d{1,5})", text.strip())
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise InputError(f"rendezvous {text!r}: expected HOST:PORT or file:///PATH on a shared folder")
    return f"tcp://{match[1]}:{int(match[2])}"


def first_host(node_list: str) -> str:
    """First name of a Slurm list such as ``node[003-005,9],gpu1``; empty for an empty list."""
    match = re.match(r"\s*([^\[,\s]*)(?:\[([^\]]*)\])?([^\[,\s]*)", node_list)
    if match is None:
        return ""
    prefix, numbers, suffix = match.groups()
    if numbers is None:
        return str(prefix)
    return f"{prefix}{re.split('[-,]', numbers)[0]}{suffix}"
