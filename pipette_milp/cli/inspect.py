"""Commands ``estimate`` and ``simulate``: looking at one configuration or plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipette_milp.cli.common import answer_only, check_writable, command, warn
from pipette_milp.errors import InputError

if TYPE_CHECKING:
    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.plan import Plan

AssumeMissing = Annotated[
    str | None, typer.Option(metavar="BANDWIDTH", help="What unmeasured node pairs attain, such as 15GB/s.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
InstanceFile = Annotated[str, typer.Argument(metavar="INSTANCE", help="Instance file; - is standard input.")]


@command
def estimate(
    instance: InstanceFile,
    pipeline: Annotated[int | None, typer.Option(min=1, help="Pipeline degree.")] = None,
    tensor: Annotated[int | None, typer.Option(min=1, help="Tensor degree.")] = None,
    data: Annotated[int | None, typer.Option(min=1, help="Data degree; default: all usable GPUs.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Sequences per micro-batch.")] = None,
    num_micro_batches: Annotated[int | None, typer.Option(min=1, help="Per replica.")] = None,
    schedule: Annotated[str | None, typer.Option(help="A name of `list schedules`.")] = None,
    virtual_stages: Annotated[int | None, typer.Option(min=1, help="Per pipeline stage.")] = None,
    layers_per_stage: Annotated[str | None, typer.Option(metavar="9,8,8,7", help="Default: even.")] = None,
    recompute: Annotated[str | None, typer.Option(help="none, selective or full.")] = None,
    sequence_parallel: Annotated[
        bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel")
    ] = None,
    data_sharding: Annotated[str | None, typer.Option(help="none or optimizer.")] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A `configuration` object; options above replace its fields."),
    ] = None,
    assume_missing: AssumeMissing = None,
    as_json: AsJson = False,
) -> None:
    """Time, throughput and memory of one configuration in the default rank order.

    A legal configuration that does not fit exits 0 and says so; an illegal one exits 2.
    """
    from pipette_milp.cli.inputs import read_instance
    from pipette_milp.estimate import estimate as run_estimate
    from pipette_milp.partial_configuration import complete_configuration
    from pipette_milp.schema.strict import parse_json, read_text

    checked = read_instance(instance, assume_missing)
    warn(checked.warnings)
    fields: dict[str, Any] = {}
    if config is not None:
        read = parse_json(read_text(config), config)
        fields = read.get("configuration", read) if isinstance(read, dict) else read
        if not isinstance(fields, dict):
            raise InputError("expected a JSON object with the fields of a configuration", source=config)
    options = {
        "pipeline": pipeline,
        "tensor": tensor,
        "data": data,
        "micro_batch": micro_batch,
        "num_micro_batches": num_micro_batches,
        "schedule": schedule,
        "virtual_stages": virtual_stages,
        "layers_per_stage": None if layers_per_stage is None else _layers(layers_per_stage),
        "recompute": recompute,
        "sequence_parallel": sequence_parallel,
        "data_sharding": data_sharding,
    }
    given = {name: value for name, value in options.items() if value is not None}
    if "layers_per_stage" in given:
        fields = {name: value for name, value in fields.items() if name != "stages"}
    configuration = complete_configuration({**fields, **given}, checked, source=config or "")
    with answer_only():
        evaluation = run_estimate(checked, configuration)
    _show(checked, evaluation, as_json)


def _layers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"expected layers such as 9,8,8,7, got {text!r}", source="--layers-per-stage"
        ) from None


@command
def simulate(
    instance: InstanceFile,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan, or a result that has one.")],
    trace: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a Chrome trace (chrome://tracing, Perfetto).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate one iteration of a plan: longest path and breakdown."""
    from pipette_milp.cli.inputs import read_plan
    from pipette_milp.estimate import simulate_plan
    from pipette_milp.schema.output import write_json_atomically

    check_writable(trace)
    checked, wanted = read_plan(plan, instance)
    warn(checked.warnings)
    with answer_only():
        evaluation = simulate_plan(checked, wanted)
    if trace is not None:
        write_json_atomically(trace, _chrome_trace(checked, wanted, evaluation))
    _show(checked, evaluation, as_json)


def _chrome_trace(instance: Instance, plan: Plan, evaluation: dict[str, Any]) -> dict[str, Any]:
    """The timeline of the simulated durations, GPUs named by node and local index."""
    from pipette_milp import simulator
    from pipette_milp.assessment import timeline_of
    from pipette_milp.schema.evaluation import DurationsRecord

    timeline = timeline_of(plan.configuration, DurationsRecord.model_validate(evaluation["durations"]))
    names = [f"{node.name}:{local}" for node in instance.cluster.nodes for local in range(node.gpus)]
    return simulator.chrome_trace(
        timeline,
        plan.configuration,
        gpu_names=[names[gpu] for gpu in plan.placement.gpu_of_rank],
    )


def _show(instance: Instance, evaluation: dict[str, Any], as_json: bool) -> None:
    from pipette_milp.cli.summary import print_evaluation
    from pipette_milp.schema.output import write_json_atomically

    warn([text for text in evaluation["warnings"] if text not in instance.warnings])
    if as_json:
        write_json_atomically("-", evaluation)
    else:
        print_evaluation(instance, evaluation)
