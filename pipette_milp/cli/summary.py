"""What a person sees after a solve."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import Any

from pipette_milp.schema.evaluation import Memory, Throughput
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.schema.result import RankedPlan, SolveResult, Termination
from pipette_milp.schema.wording import (
    describe_configuration,
    faster,
    gpus_in_use,
    peak_memory,
    percent,
    proof,
    search_outcome,
    shares,
    speed,
    why_it_lost,
)
from pipette_milp.units import Dimension, format_quantity

WIDTH = 120
"""Columns where standard output is not a terminal."""


def print_summary(instance: Instance, result: SolveResult) -> None:
    """The answer in words on standard output."""
    with _output() as out:
        out.print(_headline(instance, result), highlight=False)
        if result.plan is None or result.simulated_s is None:
            _print_no_plan(out, result)
            return
        rows = [("Best plan", describe_configuration(result.plan.configuration))]
        rows += _configuration_rows(result.plan.configuration, instance)
        rows += _best_rows(result, result.simulated_s)
        rows += _comparison_rows(instance, result, result.simulated_s)
        rows.append(("Search", search_outcome(result)))
        _print_rows(out, rows)
        _print_nodes(out, instance, result.plan)
        _print_ranking(out, result)
        _print_assumptions(out, result)


def print_evaluation(instance: Instance, evaluation: dict[str, Any]) -> None:
    """Time, throughput, memory and breakdown of one plan (the dict of `estimate` and `simulate`)."""
    configuration = Configuration.model_validate(evaluation["configuration"])
    throughput = Throughput.model_validate(evaluation["throughput"])
    time_s = evaluation["simulated_s"]
    rows = [
        ("Plan", describe_configuration(configuration)),
        *_configuration_rows(configuration, instance),
        ("Time", f"{time_s:.4f} s per iteration, {speed(throughput)}"),
        ("Memory", peak_memory(Memory.model_validate(evaluation["memory"]))),
        ("Longest path", shares(evaluation["critical_path"], time_s)),
        ("Busiest GPU", shares(evaluation["breakdown"], time_s)),
    ]
    with _output() as out:
        _print_rows(out, rows)


@contextlib.contextmanager
def _output() -> Iterator[Any]:
    """A rich console: colours and the terminal's width on a terminal, else plain lines."""
    from rich.console import Console

    if sys.stdout.isatty():
        yield Console(file=sys.stdout)
        return
    text = io.StringIO()
    yield Console(file=text, width=WIDTH)
    # Tables are padded to their width; nobody wants that in a file.
    sys.stdout.write("".join(line.rstrip() + "\n" for line in text.getvalue().splitlines()))


def _print_rows(out: Any, rows: list[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for title, text in rows:
        table.add_row(title, Text(text))
    out.print(table)


def _headline(instance: Instance, result: SolveResult) -> str:
    nodes = len(instance.cluster.nodes)
    return (
        f"{instance.name}: {instance.model.name}, {gpus_in_use(instance)} on {nodes} "
        f"{'node' if nodes == 1 else 'nodes'}, {result.links} links"
    )


def _print_no_plan(out: Any, result: SolveResult) -> None:
    heads = {
        Termination.INFEASIBLE: "No plan exists (proven).",
        Termination.NO_PLAN_FOUND: f"No plan was found within the limits ({result.wall_time_s:.1f} s).",
        Termination.INTERRUPTED: "Interrupted before a plan was found.",
        Termination.ERROR: "The solver failed.",
    }
    out.print(heads.get(result.termination, str(result.termination)), highlight=False)
    for text in result.warnings:
        out.print(f"  {text}", highlight=False, markup=False)
    reasons = dict.fromkeys(record.reason for record in result.configurations if record.reason)
    for text in list(reasons)[:8]:
        out.print(f"  - {text}", highlight=False, markup=False)
    if len(reasons) > 8:
        out.print(f"  and {len(reasons) - 8} more reasons, see configurations in the result")


def _configuration_rows(configuration: Configuration, instance: Instance) -> list[tuple[str, str]]:
    rows = []
    usable = instance.cluster.num_gpus - len(instance.cluster.excluded_gpu_ids())
    if configuration.num_gpus < usable:
        rows.append(("GPUs", f"{configuration.num_gpus} of {usable}"))
    layers = configuration.layers_per_stage
    if len(set(layers)) == 1:
        rows.append(("Layers", f"{layers[0]} on every stage"))
    else:
        rows.append(("Layers", " ".join(map(str, layers)) + " by stage"))
    return rows


def _best_rows(result: SolveResult, time_s: float) -> list[tuple[str, str]]:
    achieved = "" if result.throughput is None else f", {speed(result.throughput)}"
    rows = [("Time", f"{time_s:.4f} s per iteration{achieved}")]
    if result.memory is not None:
        rows.append(("Memory", peak_memory(result.memory)))
    rows.append(("Proof", proof(result)))
    if result.critical_path is not None:
        rows.append(("Longest path", shares(result.critical_path.model_dump(), time_s)))
    if result.breakdown is not None:
        rows.append(("Busiest GPU", shares(result.breakdown.model_dump(), time_s)))
    return rows


def _comparison_rows(instance: Instance, result: SolveResult, best_s: float) -> list[tuple[str, str]]:
    from pipette_milp.cluster import Cluster

    rows = []
    if result.baseline is not None:
        base = result.baseline
        text = f"{base.simulated_s:.4f} s with {describe_configuration(base.configuration)}: "
        text += f"the best plan is {faster(base.simulated_s, best_s)}"
        rows.append(("Baseline", text if base.fits else text + "; the baseline does not fit into memory"))
    if result.default_order_s is not None:
        spread = Cluster.of(instance).link_spread
        text = f"{faster(result.default_order_s, best_s)} than the same in default rank order "
        text += f"({result.default_order_s:.4f} s); links of this cluster spread by {percent(spread)}"
        if 0 < result.default_order_s / best_s - 1 < spread:
            text += ", so the gain may be noise of the measurement"
        rows.append(("Placement", text))
    return rows


def _print_nodes(out: Any, instance: Instance, plan: Plan) -> None:
    """Which stages and replicas every node runs, and on which GPUs where these are chosen."""
    from rich.table import Table
    from rich.text import Text

    from pipette_milp.report.nodes import has_meshes, node_lines, tensor_groups

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column("stage: replicas")
    by_gpu = has_meshes(instance)
    if by_gpu:
        table.add_column("stage: GPUs of each tensor group, by rank")
    for line in node_lines(instance, plan):
        groups = [tensor_groups(instance, plan, line)] if by_gpu else []
        table.add_row(Text(line.title), line.text, *groups)
    out.print()
    out.print(table)


def _print_ranking(out: Any, result: SolveResult) -> None:
    from rich.table import Table

    if not result.plans:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "pp", "tp", "dp", "mb"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("options")
    for title in ("time", "peak memory"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why it lost")
    for position, ranked in enumerate(result.plans, start=1):
        table.add_row(*_ranking_row(position, ranked, result))
    out.print()
    out.print(table)


def _ranking_row(position: int, ranked: RankedPlan, result: SolveResult) -> tuple[str, ...]:
    configuration = ranked.configuration
    peak = "" if ranked.memory is None else format_quantity(ranked.memory.peak_bytes, Dimension.BYTES)
    reason = "best" if position == 1 else why_it_lost(result.plans[0], ranked)
    return (
        str(position),
        str(configuration.pipeline),
        str(configuration.tensor),
        str(configuration.data),
        str(configuration.micro_batch),
        describe_configuration(configuration, degrees=False),
        f"{ranked.simulated_s:.4f} s",
        peak,
        reason,
    )


def _print_assumptions(out: Any, result: SolveResult) -> None:
    lines = []
    if result.links == "nominal":
        lines.append(
            "links are nominal, not measured: the placement says nothing about this cluster's real spread"
        )
    lines += result.warnings
    error = result.settings.get("model_error")
    if isinstance(error, float):
        lines.append(
            f"simulated times may be off by {percent(error)}: plans closer than that cannot be told apart"
        )
    if lines:
        out.print("\nAssumed", highlight=False)
        for line in lines:
            out.print(f"  - {line}", highlight=False, markup=False)
