"""What all launchers share: the files around a launch, and the wrapper that every rank starts in."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipette_milp.exporters.hosts import Host, Level, RankMap, rank_map
from pipette_milp.exporters.megatron import megatron_arguments, plan_hash
from pipette_milp.exporters.verifier import NAME as VERIFIER
from pipette_milp.exporters.verifier import verifier
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

ARGUMENTS = "megatron_args.sh"
WRAPPER = "run_rank.sh"


@dataclass(frozen=True)
class LaunchOptions:
    """What the plan does not say about a launch."""

    program: str = "pretrain_gpt.py"
    """Path of Megatron's training program on the nodes."""
    port: int = 29500
    """Port of the first node for the rendezvous (PyTorch's own default)."""
    cores_per_gpu: int = 4
    """CPU cores that Open MPI binds to each rank: the rank file must name some."""


@dataclass(frozen=True)
class Export:
    """Files by name, and what to tell the person who launches them."""

    files: dict[str, str]
    level: Level | None
    """What the launcher had to be able to express; None where nothing is launched."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Launch:
    """A plan ready to be written for some launcher."""

    ranks: RankMap
    options: LaunchOptions
    plan_hash: str
    files: dict[str, str]
    """Arguments and verifier."""
    variables: tuple[str, ...]
    """Names of the environment variables that the arguments file sets."""

    @property
    def first_host(self) -> str:
        """Host of rank 0."""
        return self.ranks.by_rank[0][0]


def prepare(instance: Instance, plan: Plan, options: LaunchOptions) -> Launch:
    """Checks a plan and writes what every launcher needs.

    Raises:
        PlanError: the placement does not fit the cluster.
        IllegalConfigurationError: Megatron-LM cannot run the configuration.
    """
    ranks = rank_map(instance.cluster, plan)
    name = plan_hash(plan)
    arguments = megatron_arguments(instance, plan.configuration)
    files = {
        ARGUMENTS: arguments.script(plan, f"instance {instance.name}"),
        VERIFIER: verifier(ranks, name),
    }
    return Launch(ranks, options, name, files, tuple(item for item, _, _ in arguments.environment))


def place_ranks(instance: Instance, plan: Plan, options: LaunchOptions) -> Launch:
    """Checks a placement and writes the verifier, for frameworks other than Megatron-LM.

    Raises:
        PlanError: the placement does not fit the cluster.
    """
    ranks = rank_map(instance.cluster, plan)
    name = plan_hash(plan)
    return Launch(ranks, options, name, {VERIFIER: verifier(ranks, name)}, ())


def level_note(ranks: RankMap, launcher: str) -> str:
    """The sentence that says which level was needed."""
    return f"{launcher}: the plan needs {ranks.level.text} (level {ranks.level.value} of 3)"


def host_pattern(host: Host, ranks: RankMap) -> str:
    """Shell pattern for what `hostname` may print on a host: its name with or without a domain."""
    short = host.name.split(".")[0]
    unique = sum(other.name.split(".")[0] == short for other in ranks.hosts) == 1
    names = [host.name, short, f"{short}.*"] if unique else [host.name, f"{host.name}.*"]
    return "|".join(dict.fromkeys(names))


def device_case(ranks: RankMap, assignments: dict[str, str]) -> list[str]:
    """Lines of a ``case`` on $host with an assignment for each host, and an error for any other."""
    lines = ['case "$host" in']
    lines += [f"  {host_pattern(host, ranks)}) {assignments[host.name]} ;;" for host in ranks.hosts]
    lines += ['  *) echo "$host is not part of the plan" >&2; exit 1 ;;', "esac"]
    return lines


def visible_devices(host: Host) -> str:
    """Value of CUDA_VISIBLE_DEVICES: local rank i gets the i-th."""
    return ",".join(map(str, host.gpus))


def wrapper(launch: Launch, rank: str, local_rank: str, before: tuple[str, ...] = ()) -> str:
    """Script of every rank under Slurm or MPI: sets what torch.distributed reads, verifies, trains.

    Args:
        rank, local_rank: names of the environment variables in which the launcher passes them.
        before: lines that set what these names refer to.
    """
    lines = [
        "#!/usr/bin/env bash",
        "# Started once for every rank; usage: run_rank.sh PROGRAM ARGUMENTS...",
        f"# plan {launch.plan_hash}",
        "set -euo pipefail",
        *before,
        'here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        'host="${SLURMD_NODENAME:-$(hostname)}"',
    ]
    assignments = {host.name: ":" for host in launch.ranks.hosts}
    if launch.ranks.needs_device_order:
        lines.append("# Local rank i uses the i-th GPU listed; numbered as nvidia-smi does.")
        assignments = {
            host.name: f"export CUDA_VISIBLE_DEVICES={visible_devices(host)}" for host in launch.ranks.hosts
        }
    lines += device_case(launch.ranks, assignments)
    lines += [
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        f'export RANK="${rank}" LOCAL_RANK="${local_rank}" WORLD_SIZE={launch.ranks.world_size}',
        f"export MASTER_ADDR={launch.first_host} MASTER_PORT={launch.options.port}",
        f'python3 "$here/{VERIFIER}" --host "$host"',
        'exec python3 "$@"',
        "",
    ]
    return "\n".join(lines)
