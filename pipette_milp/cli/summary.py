"""What a person sees after a solve."""

from __future__ import annotations

import sys
from typing import Any

from pipette_milp.cli.wording import (
    describe_configuration,
    percent,
    ranges,
    why_it_lost,
)
from pipette_milp.schema.evaluation import Memory, Throughput
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.schema.result import RankedPlan, SolveResult, Termination
from pipette_milp.units import Dimension, format_quantity

WIDTH = 120
"""Columns where standard output is not a terminal."""
NODES_LISTED = 32
"""Larger clusters: neighbouring nodes of the same stages share a line."""


def print_summary(instance: Instance, result: SolveResult) -> None:
    """The answer in words on standard output."""
    out = _console()
    out.print(_headline(instance, result), highlight=False)
    if result.plan is None or result.simulated_s is None:
        _print_no_plan(out, result)
        return
    _print_best(out, result, result.plan)
    _print_comparisons(out, instance, result, result.simulated_s)
    _print_nodes(out, instance, result.plan)
    _print_ranking(out, result)
    _print_assumptions(out, result)


def print_evaluation(evaluation: dict[str, Any]) -> None:
    """Time, throughput, memory and breakdown of one plan (the dict of `estimate` and `simulate`)."""
    out = _console()
    configuration = Configuration.model_validate(evaluation["configuration"])
    rows = [("Plan", describe_configuration(configuration))]
    rows += _configuration_rows(configuration)
    throughput = Throughput.model_validate(evaluation["throughput"])
    rows.append(("Time", f"{evaluation['simulated_s']:.4f} s per iteration, {_speed(throughput)}"))
    memory = Memory.model_validate(evaluation["memory"])
    rows.append(("Memory", _memory(memory)))
    for title, key in (("Longest path", "critical_path"), ("Busiest GPU", "breakdown")):
        rows.append((title, _shares(evaluation[key], evaluation["simulated_s"])))
    _print_rows(out, rows)


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)


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
    nodes = instance.cluster.nodes
    gpus = instance.cluster.num_gpus - len(instance.cluster.excluded_gpu_ids())
    return (
        f"{instance.name}: {instance.model.name}, {gpus} x {nodes[0].gpu_type} on {len(nodes)} "
        f"{'node' if len(nodes) == 1 else 'nodes'}, {result.links} links"
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


def _print_best(out: Any, result: SolveResult, plan: Plan) -> None:
    rows = [
        ("Best plan", describe_configuration(plan.configuration)),
        *_configuration_rows(plan.configuration),
    ]
    time = f"{result.simulated_s:.4f} s per iteration"
    if result.throughput is not None:
        time += f", {_speed(result.throughput)}"
    rows.append(("Time", time))
    if result.memory is not None:
        rows.append(("Memory", _memory(result.memory)))
    rows.append(("Proof", _proof(result)))
    if result.critical_path is not None and result.simulated_s:
        path = _shares(result.critical_path.model_dump(), result.simulated_s)
        rows.append(("Longest path", path))
    if result.breakdown is not None and result.simulated_s:
        rows.append(("Busiest GPU", _shares(result.breakdown.model_dump(), result.simulated_s)))
    rows.append(
        ("Search", f"{result.solver} stopped after {result.wall_time_s:.1f} s: {_why_stopped(result)}")
    )
    _print_rows(out, rows)


def _configuration_rows(configuration: Configuration) -> list[tuple[str, str]]:
    layers = configuration.layers_per_stage
    if len(set(layers)) == 1:
        return [("Layers", f"{layers[0]} on every stage")]
    return [("Layers", " ".join(map(str, layers)) + " by stage")]


def _speed(throughput: Throughput) -> str:
    flops = format_quantity(throughput.model_flop_per_s_per_gpu, Dimension.FLOP_RATE)
    return (
        f"{throughput.tokens_per_s:,.0f} tokens/s ({throughput.tokens_per_s_per_gpu:,.0f} per GPU), "
        f"{flops} per GPU, MFU {percent(throughput.mfu)}"
    )


def _memory(memory: Memory) -> str:
    stage, worst = max(
        enumerate(memory.per_stage), key=lambda item: item[1].peak_bytes / item[1].usable_bytes
    )
    text = (
        f"peak {format_quantity(worst.peak_bytes, Dimension.BYTES)} per GPU on stage {stage}, usable "
        f"{format_quantity(worst.usable_bytes, Dimension.BYTES)} of "
        f"{format_quantity(worst.capacity_bytes, Dimension.BYTES)}"
    )
    if memory.fits:
        return text
    short = worst.peak_bytes - worst.usable_bytes
    return f"DOES NOT FIT: {text}, {format_quantity(short, Dimension.BYTES)} short"


def _proof(result: SolveResult) -> str:
    if result.lower_bound_s is None or result.gap is None:
        return "none: this solver gives no lower bound"
    # Time, not speed: faster by x means simulated / bound - 1.
    faster = (
        result.simulated_s / result.lower_bound_s - 1 if result.simulated_s and result.lower_bound_s else None
    )
    if faster is None:
        return "the lower bound is 0, nothing is proven"
    return (
        f"no plan is more than {percent(max(faster, 0.0), 3)} faster (proven): "
        f"lower bound {result.lower_bound_s:.4f} s over the whole space"
    )


def _why_stopped(result: SolveResult) -> str:
    return {
        Termination.OPTIMAL: "optimal",
        Termination.GAP_REACHED: "gap reached",
        Termination.LIMIT: "a limit was reached",
        Termination.INTERRUPTED: "interrupted, the best plan so far",
        Termination.ERROR: "a solver failed",
    }.get(result.termination, str(result.termination))


def _shares(seconds: dict[str, Any], total_s: float) -> str:
    """Kinds of time by size, those below a tenth of a percent left out."""
    names = {
        "bubble_s": "waiting",
        "tensor_comm_s": "tensor communication",
        "pipeline_comm_s": "pipeline transfers",
    }
    parts = [(key, value) for key, value in seconds.items() if key.endswith("_s") and value > 1e-3 * total_s]
    parts.sort(key=lambda item: -item[1])
    return ", ".join(
        f"{names.get(key, key.removesuffix('_s').replace('_', ' '))} {percent(value / total_s)}"
        for key, value in parts
    )


def _print_comparisons(out: Any, instance: Instance, result: SolveResult, best: float) -> None:
    from pipette_milp.cluster import Cluster

    rows = []
    if result.baseline is not None:
        base = result.baseline
        text = f"{base.simulated_s:.4f} s with {describe_configuration(base.configuration)}: "
        text += f"the best plan is {_faster(base.simulated_s, best)}"
        rows.append(("Baseline", text if base.fits else text + "; the baseline does not fit into memory"))
    if result.default_order_s is not None:
        spread = Cluster.of(instance).link_spread
        gain = result.default_order_s / best - 1
        text = f"{_faster(result.default_order_s, best)} than the same in default rank order "
        text += f"({result.default_order_s:.4f} s); links of this cluster spread by {percent(spread)}"
        if 0 < gain < spread:
            text += ", so the gain may be noise of the measurement"
        rows.append(("Placement", text))
    if rows:
        _print_rows(out, rows)


def _faster(other_s: float, best_s: float) -> str:
    gain = other_s / best_s - 1
    if abs(gain) < 5e-6:
        return "no faster"
    return f"{percent(gain, 2)} faster" if gain > 0 else f"{percent(-gain, 2)} slower"


def _print_nodes(out: Any, instance: Instance, plan: Plan) -> None:
    """Which stages and replicas every node runs."""
    from rich.table import Table

    from pipette_milp.cluster import Cluster
    from pipette_milp.plans import cells_of_plan

    cluster = Cluster.of(instance)
    cells = cells_of_plan(cluster, plan)
    lines: list[tuple[list[str], dict[int, list[int]]]] = []
    for node, name in enumerate(cluster.node_names):
        hosted: dict[int, list[int]] = {}
        for stage in range(plan.configuration.pipeline):
            replicas = [z for z in range(plan.configuration.data) if cells[stage, z] == node]
            if replicas:
                hosted[stage] = replicas
        same = lines and set(lines[-1][1]) == set(hosted) and cluster.num_nodes > NODES_LISTED
        if same:
            lines[-1][0].append(name)
            for stage, replicas in hosted.items():
                lines[-1][1][stage] += replicas
        else:
            lines.append(([name], hosted))
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("node", no_wrap=True)
    table.add_column(f"stage: replicas (0 to {plan.configuration.data - 1})")
    for names, hosted in lines:
        text = "; ".join(f"{stage}: {ranges(replicas)}" for stage, replicas in hosted.items()) or "idle"
        table.add_row(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})", text)
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
