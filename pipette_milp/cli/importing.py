"""Command ``import``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipette_milp.cli.common import check_writable, command, tell, warn

if TYPE_CHECKING:
    from pipette_milp.importers.assemble import AssembleOptions, Found

_Quantity = str | None


@command
def import_files(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="- is standard input.")],
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Of all files; guessed when left out. `list importers`."),
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="- is standard output.")] = "-",
    plan: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write what Megatron-LM arguments run today, for `--baseline`."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="Of a table or list that does not state it, such as GB/s.")
    ] = None,
    simultaneous_flows: Annotated[
        int | None, typer.Option(metavar="K", help="Figures are one of K flows of a host that ran at once.")
    ] = None,
    measures: Annotated[
        str | None, typer.Option(help="node_pair: figures are all cards of a pair together; or flow.")
    ] = None,
    gpu_type: Annotated[str | None, typer.Option(help="Such as a100-80gb; `list gpus`.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="Where no topology says it.")] = None,
    hosts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Host names, one a line, in the order of GPU ids.")
    ] = None,
    latency: Annotated[_Quantity, typer.Option(help="Between nodes, such as 8us.")] = None,
    intra_node_bandwidth: Annotated[
        _Quantity, typer.Option(help="Of one GPU inside its node, such as 240GB/s.")
    ] = None,
    card_bandwidth: Annotated[
        _Quantity, typer.Option(help="What one network card attains, such as 24GB/s.")
    ] = None,
    oversubscription: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Node bandwidth below a switch over its uplinks, where a scheduler names groups.",
        ),
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write training logs as a table for `accuracy` and `calibrate`."),
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(metavar="S", help="Tokens per sequence in training.")
    ] = None,
    global_batch: Annotated[int | None, typer.Option(metavar="N", help="Sequences per iteration.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, fp16 or bf16.")] = None,
    world_size: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs of a run, where a script does not say.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A shell variable of a launch script."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the instance.")] = None,
) -> None:
    """Read what people have: model files, launch scripts, settings, topologies, fabrics, logs.

    A model, a topology and a bandwidth log together make a whole instance; less makes the sections there
    are, with what was found in each file under `facts`. Slow nodes and links are named on standard error.
    """
    from pipette_milp.importers.assemble import assemble
    from pipette_milp.schema.output import write_json_atomically

    check_writable(output)
    check_writable(plan)
    check_writable(runs)
    found = _read(files, kind, unit, world_size, _settings(settings))
    options = _options(
        name,
        sequence_length,
        global_batch,
        precision,
        simultaneous_flows,
        measures,
        gpu_type,
        gpus_per_node,
        hosts,
        latency,
        intra_node_bandwidth,
        card_bandwidth,
        oversubscription,
    )
    _tell_diagnoses(found)
    result = assemble(found, options)
    if result.diagnosis is not None and len(files) > 1:
        for line in result.diagnosis.lines():
            tell(f"all files together: {line}")
    warn([str(problem) for problem in result.warnings])
    for problem in result.missing:
        tell(f"missing: {problem}")
    write_json_atomically(output, result.document)
    if plan is not None:
        _write_plan(plan, result.plan)
    if runs is not None:
        _write_runs(runs, result.rows)
    if output != "-":
        what = "instance" if result.complete else "sections of an instance"
        tell(f"wrote {output} ({what})" + (f"; next: pipette-milp solve {output}" if result.complete else ""))


def _read(
    files: list[str], kind: str | None, unit: str | None, world_size: int | None, settings: dict[str, str]
) -> list[Found]:
    from pipette_milp.errors import InputError, Problem
    from pipette_milp.importers import registry
    from pipette_milp.importers.assemble import Found
    from pipette_milp.importers.text import read

    found: list[Found] = []
    problems: list[Problem] = []
    for path in files:
        try:
            text = read(path)
            chosen = registry.ALIASES.get(kind, kind) if kind else registry.guess_kind(text, path)
            fact = registry.parse(text, path, chosen, unit=unit, world_size=world_size, settings=settings)
        except InputError as error:
            problems += [Problem(item.path or error.source, item.message) for item in error.problems]
            continue
        facts = fact if isinstance(fact, tuple) else (fact,)
        found += [Found(path, str(chosen), item) for item in facts]
    if problems:
        raise InputError(problems)
    return found


def _settings(pairs: list[str] | None) -> dict[str, str]:
    from pipette_milp.errors import InputError

    settings: dict[str, str] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"expected NAME=VALUE, got {pair!r}", source="--set")
        settings[name] = value
    return settings


def _options(
    name: str | None,
    sequence_length: int | None,
    global_batch: int | None,
    precision: str | None,
    simultaneous_flows: int | None,
    measures: str | None,
    gpu_type: str | None,
    gpus_per_node: int | None,
    hosts: str | None,
    latency: str | None,
    intra_node_bandwidth: str | None,
    card_bandwidth: str | None,
    oversubscription: float | None,
) -> AssembleOptions:
    from pipette_milp.errors import InputError
    from pipette_milp.importers.assemble import AssembleOptions
    from pipette_milp.importers.merge_options import ClusterOptions
    from pipette_milp.init import read_hosts
    from pipette_milp.units import Dimension, parse_quantity

    def quantity(value: str | None, dimension: Dimension, option: str) -> float | None:
        if value is None:
            return None
        try:
            number = parse_quantity(value, dimension)
        except ValueError as error:
            raise InputError(str(error), source=option) from None
        if number <= 0:
            raise InputError("expected more than 0", source=option)
        return number

    if measures not in (None, "node_pair", "flow"):
        raise InputError(f"expected node_pair or flow, got {measures!r}", source="--measures")
    for option, count in (
        ("--simultaneous-flows", simultaneous_flows),
        ("--gpus-per-node", gpus_per_node),
        ("--sequence-length", sequence_length),
        ("--global-batch", global_batch),
    ):
        if count is not None and count < 1:
            raise InputError(f"expected at least 1, got {count}", source=option)
    if oversubscription is not None and not 0 < oversubscription < 1e6:
        raise InputError(f"expected a number above 0, got {oversubscription}", source="--oversubscription")
    return AssembleOptions(
        name=name,
        sequence_length=sequence_length,
        global_batch_size=global_batch,
        precision=precision,
        cluster=ClusterOptions(
            gpu_type=gpu_type,
            gpus_per_node=gpus_per_node,
            hosts=() if hosts is None else tuple(read_hosts(hosts)),
            measures=measures,  # type: ignore[arg-type]  # checked above
            simultaneous_flows=simultaneous_flows,
            latency_s=quantity(latency, Dimension.TIME, "--latency"),
            intra_node_bytes_per_s=quantity(
                intra_node_bandwidth, Dimension.BANDWIDTH, "--intra-node-bandwidth"
            ),
            card_bytes_per_s=quantity(card_bandwidth, Dimension.BANDWIDTH, "--card-bandwidth"),
            oversubscription=oversubscription,
        ),
    )


def _tell_diagnoses(found: list[Found]) -> None:
    """Slow nodes and links of each file: also of files whose unit or meaning is not known."""
    from pipette_milp.importers.diagnose import diagnose
    from pipette_milp.importers.facts import PairwiseBandwidth
    from pipette_milp.importers.mpigraph import MpiGraph

    for item in found:
        fact = item.fact.pairwise() if isinstance(item.fact, MpiGraph) else item.fact
        if isinstance(fact, PairwiseBandwidth):
            diagnosis = diagnose(fact)
            for line in diagnosis.lines() if diagnosis is not None else []:
                tell(f"{item.source}: {line}")


def _write_runs(path: str, rows: tuple[dict[str, str], ...]) -> None:
    from pipette_milp.errors import InputError
    from pipette_milp.importers.run_table import table
    from pipette_milp.schema.output import write_text_atomically

    if not rows:
        raise InputError("no training log among the files, so no table of runs to write", source="--runs")
    write_text_atomically(path, table(rows))
    tell(f"wrote {path} ({len(rows)} runs); use it with: pipette-milp accuracy {path}")


def _write_plan(path: str, plan: object) -> None:
    from pipette_milp.errors import InputError
    from pipette_milp.schema.output import write_json_atomically
    from pipette_milp.schema.plan import Plan

    if not isinstance(plan, Plan):
        raise InputError(
            "no plan to write: the files do not say number of GPUs, layers and batch", source="--plan"
        )
    write_json_atomically(path, plan.model_dump(mode="json"))
    tell(f"wrote {path} (what runs today); use it with: pipette-milp solve INSTANCE --baseline {path}")
