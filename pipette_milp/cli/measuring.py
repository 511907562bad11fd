"""Commands ``measure network``, ``measure compute`` and ``replay``: on the machines themselves."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_milp.cli.common import check_writable, command, tell, warn
from pipette_milp.errors import InputError

if TYPE_CHECKING:
    from pipette_milp.measure.launch_environment import LaunchEnvironment

Rendezvous = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where ranks meet, if the launcher does not say; also file:///PATH."
    ),
]
Device = Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Default: GPUs where there are any.")]
Timeout = Annotated[
    str, typer.Option(metavar="SECONDS", help="Longest wait for another rank before giving up.")
]
TIMEOUT = "120 s"

measure = typer.Typer(no_args_is_help=True, help="Measure links or layers on the machines themselves.")


def _launched(rendezvous: str | None) -> LaunchEnvironment:
    from pipette_milp.measure.launch_environment import launch_environment
    from pipette_milp.measure.session import load_torch

    load_torch()
    return launch_environment(os.environ, rendezvous)


@measure.command("network")
@command
def network(
    instance: Annotated[
        str | None, typer.Argument(metavar="[INSTANCE]", help="Its network is replaced, see --merged.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="What was measured; - is standard output.")
    ] = "-",
    merged: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write INSTANCE with the measured network.")
    ] = None,
    append: Annotated[
        str | None, typer.Option(metavar="FILE", help="An earlier measurement: both become snapshots.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Transfers of every size.")] = 3,
    largest: Annotated[str, typer.Option(metavar="SIZE", help="Largest message of one rank.")] = "256 MiB",
    pair_timeout: Annotated[
        str, typer.Option(metavar="SECONDS", help="A pair that takes longer is reported as failed.")
    ] = "30 s",
    rendezvous: Rendezvous = None,
    device: Device = None,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Bandwidth and latency of every pair of nodes, and of nodes in all.

    Start one rank per GPU with torchrun, mpirun or srun. Pairs are measured in rounds in which every node has
    one partner; unreachable pairs are reported and the rest is kept. Needs PyTorch.
    """
    from pipette_milp.cli.inputs import seconds
    from pipette_milp.measure.merging import appended, check_document, with_network
    from pipette_milp.measure.network import NetworkOptions, measure_network
    from pipette_milp.measure.session import open_session
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.schema.output import write_json_atomically
    from pipette_milp.schema.strict import parse_json, read_text
    from pipette_milp.units import Dimension, parse_quantity

    for path in (output, merged):
        check_writable(path)
    if merged is not None and instance is None:
        raise InputError("needs an INSTANCE to merge into", source="--merged")
    try:
        largest_bytes = int(parse_quantity(largest, Dimension.BYTES))
    except ValueError as error:
        raise InputError(str(error), source="--largest") from None
    options = NetworkOptions(
        repeats=repeats,
        largest_bytes=largest_bytes,
        pair_timeout_s=seconds(pair_timeout, "--pair-timeout"),
    )
    limit_s = seconds(timeout, "--timeout")
    if limit_s < 2 * options.pair_timeout_s:
        raise InputError(
            "expected at least twice --pair-timeout: other ranks wait for a pair to fail", source="--timeout"
        )
    value = None if instance is None else parse_json(read_text(instance), instance)
    loaded = None if value is None else load_instance(value)
    earlier = None
    if append is not None:
        earlier = check_document(parse_json(read_text(append), append), append)
    environment = _launched(rendezvous)
    with open_session(environment, limit_s, device=device) as session:
        document = measure_network(session, options, progress=tell)
    if document is None:
        return
    if earlier is not None:
        document = appended(earlier, document, append or "")
    write_json_atomically(output, document)
    warn(document["warnings"])
    for pair in document["failed"]:
        tell(f"failed: {pair['from']} to {pair['to']}: {pair['reason']}")
    if merged is not None and value is not None and loaded is not None:
        result, notes = with_network(value, loaded, document)
        warn(notes)
        load_instance(result)  # what is written can be read
        write_json_atomically(merged, result)


@measure.command("compute")
@command
def compute_profile(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="Its model is measured.")],
    tensor: Annotated[str, typer.Option(metavar="1,2,4", help="Tensor degrees.")] = "1",
    micro_batch: Annotated[str, typer.Option(metavar="1,2", help="Sequences of a micro-batch.")] = "1",
    precision: Annotated[
        str | None, typer.Option(metavar="bf16,fp32", help="Default: the instance's.")
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="dense,head,...", help="Parts of the model to measure.")
    ] = "dense,embedding,head,optimizer",
    device: Device = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Section `compute`; - is standard output.")
    ] = "-",
    merged: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write INSTANCE with this section.")
    ] = None,
) -> None:
    """Forward, backward and memory of the model's layers on this machine's GPU (or CPU).

    One process; a tensor degree is measured as one rank's share of it, without collectives. Needs PyTorch.
    """
    from pipette_milp.measure.compute import ComputeOptions, measure_compute
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.schema.output import write_json_atomically
    from pipette_milp.schema.strict import parse_json, read_text

    for path in (output, merged):
        check_writable(path)
    value = parse_json(read_text(instance), instance)
    loaded = load_instance(value)
    options = ComputeOptions(
        tensors=_numbers(tensor, "--tensor"),
        micro_batches=_numbers(micro_batch, "--micro-batch"),
        precisions=[] if precision is None else precision.split(","),
        device=device,
        kinds=kind.split(","),
    )
    section = measure_compute(loaded, options, progress=tell)
    write_json_atomically(output, section)
    if merged is not None:
        whole = {**value, "compute": {**value.get("compute", {}), **section}}
        load_instance(whole)  # what is written can be read
        write_json_atomically(merged, whole)


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"expected whole numbers such as 1,2,4, got {text!r}", source=option) from None


@command
def replay(
    instance: Annotated[str, typer.Argument(metavar="INSTANCE", help="The instance of the plan.")],
    result: Annotated[str, typer.Argument(metavar="RESULT", help="A result of `solve`, or a plan.")],
    iterations: Annotated[int, typer.Option(min=1, help="Measured iterations.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Iterations before them.")] = 1,
    compute: Annotated[
        str, typer.Option(metavar="wait|matrix", help="Timed waits, or matrix products that take as long.")
    ] = "wait",
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Simulated and measured iteration as a Chrome trace.")
    ] = None,
    rendezvous: Rendezvous = None,
    device: Device = None,
    timeout: Timeout = TIMEOUT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run a plan's schedule and traffic on the machines and compare with the simulation.

    Start one rank per GPU of the plan with torchrun, mpirun or srun, in any order: ranks take the plan's
    places on their node. Every wait ends within --timeout; when a rank fails, all say so and end within
    seconds. Needs PyTorch.
    """
    from pipette_milp.cli.inputs import read_plan, seconds
    from pipette_milp.cli.replay_summary import print_report
    from pipette_milp.measure.replay import ReplayOptions
    from pipette_milp.measure.replay import replay as run_replay
    from pipette_milp.measure.session import open_session
    from pipette_milp.schema.output import write_json_atomically

    check_writable(trace)
    options = ReplayOptions(iterations, warm_up, compute)
    limit_s = seconds(timeout, "--timeout")
    checked, plan = read_plan(result, instance)
    environment = _launched(rendezvous)
    wanted = plan.configuration.num_gpus
    if environment.world_size != wanted:
        raise InputError(
            f"the plan has {wanted} ranks, {environment.launcher} started {environment.world_size}: "
            f"start {wanted}"
        )
    if environment.rank == 0:
        warn(checked.warnings)
    with open_session(environment, limit_s, device=device) as session:
        report = run_replay(session, checked, plan, _order(result), options, progress=tell)
    if report is None:
        return
    merged_trace = report.pop("trace")
    if trace is not None:
        write_json_atomically(trace, merged_trace)
    if as_json:
        write_json_atomically("-", report)
    else:
        print_report(report, sys.stdout)


def _order(path: str) -> Any | None:
    """The order in a result, None for a bare plan."""
    from pipette_milp.schema.strict import parse_json, read_text

    value = parse_json(read_text(path), path)
    return value.get("order") or None if isinstance(value, dict) else None
