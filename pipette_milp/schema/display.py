"""How instances, plans and results show themselves in a notebook.

Plain HTML with styles of its own: notebooks keep no style sheets. Colours follow the notebook's text colour,
so that light and dark themes both work. All text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipette_milp.schema.evaluation import Memory
from pipette_milp.schema.link_groups import LinkGroups
from pipette_milp.schema.plan import Plan
from pipette_milp.schema.wording import (
    describe_configuration,
    gpus_in_use,
    percent,
    proof,
    speed,
    why_it_lost,
    why_stopped,
)
from pipette_milp.units import GIB, Dimension, format_quantity

if TYPE_CHECKING:
    from pipette_milp.schema.instance import Instance
    from pipette_milp.schema.result import SolveResult

FILLED, OVER = "#3b82c4", "#d62728"
"""Bars: within what is usable, beyond it."""
STAGES_SHOWN = 16
PLANS_SHOWN = 5
GPUS_SHOWN = 16


def instance_html(instance: Instance) -> str:
    """Model, training, cluster and links in a small table."""
    model, training, cluster = instance.model, instance.training, instance.cluster
    excluded = len(cluster.excluded_gpu_ids())
    gpus = f"{gpus_in_use(instance)} on {len(cluster.nodes):,} nodes"
    batches = " or ".join(f"{batch:,}" for batch in training.global_batch_size)
    rows = [
        (
            "Model",
            f"{model.name}: {model.layers} layers, hidden {model.hidden_size}, "
            f"{model.attention_heads} heads, sequence {model.sequence_length}",
        ),
        ("Training", f"global batch {batches}, {training.precision}, {training.framework}"),
        ("Cluster", gpus + (f", {excluded} excluded" if excluded else "")),
        ("Links", _links(instance)),
    ]
    return _titled(f"Instance {instance.name}", _rows(rows))


def plan_html(plan: Plan) -> str:
    """Degrees, layers and the first GPUs of a plan."""
    configuration, gpus = plan.configuration, plan.placement.gpu_of_rank
    layers = configuration.layers_per_stage
    listed = " ".join(map(str, gpus[:GPUS_SHOWN])) + (" …" if len(gpus) > GPUS_SHOWN else "")
    rows = [
        ("Configuration", describe_configuration(configuration)),
        ("Layers", f"{layers[0]} on every stage" if len(set(layers)) == 1 else " ".join(map(str, layers))),
        ("GPU of rank", "in order" if gpus == tuple(range(len(gpus))) else listed),
    ]
    return _titled(f"Plan for {configuration.num_gpus:,} GPUs", _rows(rows))


def result_html(result: SolveResult) -> str:
    """Time, proof, memory by stage and the best plans."""
    if result.plan is None or result.simulated_s is None:
        reasons = dict.fromkeys(record.reason for record in result.configurations if record.reason)
        rows = [("Search", why_stopped(result)), *(("", reason) for reason in list(reasons)[:PLANS_SHOWN])]
        return _titled(f"No plan: {result.termination}", _rows(rows))
    rows = [
        ("Plan", describe_configuration(result.plan.configuration)),
        ("Proof", proof(result)),
        ("Search", f"{result.solver}, {result.wall_time_s:.1f} s, {why_stopped(result)}"),
    ]
    if result.throughput is not None:
        rows.insert(1, ("Speed", speed(result.throughput)))
    if result.links == "nominal":
        rows.append(("Links", "nominal, not measured"))
    parts = [_rows(rows)]
    if result.gap is not None:
        parts.append(_bar_rows([("Gap", result.gap, f"{percent(result.gap, 3)}", False)]))
    if result.memory is not None:
        parts.append(_memory(result.memory))
    if len(result.plans) > 1:
        parts.append(_plans(result))
    return _titled(f"{result.simulated_s:.4f} s per iteration", *parts)


def _links(instance: Instance) -> str:
    link = instance.cluster.network.inter_node
    if link is None:
        return "one node"
    if isinstance(link.bandwidth, float):
        text = f"{_rate(link.bandwidth)} between any two nodes"
    elif isinstance(link.bandwidth, LinkGroups):
        count = len(link.bandwidth.groups)
        figures = [link.bandwidth.bytes_per_s(a, b) for a in range(count) for b in range(count)]
        text = f"{count} groups, {_rate(min(figures))} to {_rate(max(figures))}"
    else:
        known = [v for row in link.bandwidth for v in row if v is not None]
        scale = link.flows_per_pair
        text = f"{_rate(scale * min(known))} to {_rate(scale * max(known))}" if known else "none measured"
        missing = len(instance.missing_pairs())
        text += f", {missing:,} pairs not measured" if missing else ""
    return f"{text} ({link.source})"


def _rate(bytes_per_s: float) -> str:
    return format_quantity(bytes_per_s, Dimension.BANDWIDTH)


def _memory(memory: Memory) -> str:
    stages = list(enumerate(memory.per_stage))
    if len(stages) > STAGES_SHOWN:
        stages = sorted(stages, key=lambda item: -item[1].peak_bytes / item[1].usable_bytes)[:STAGES_SHOWN]
    bars = [
        (
            f"Stage {number}",
            stage.peak_bytes / stage.usable_bytes,
            f"{stage.peak_bytes / GIB:.1f} of {stage.usable_bytes / GIB:.1f} GiB usable",
            stage.peak_bytes > stage.usable_bytes,
        )
        for number, stage in stages
    ]
    left_out = len(memory.per_stage) - len(stages)
    note = f"<div>and {left_out} stages that are less full</div>" if left_out else ""
    return "<div><b>Memory</b></div>" + _bar_rows(bars) + note


def _plans(result: SolveResult) -> str:
    head = ("", "pp", "tp", "dp", "mb", "time", "why it lost")
    body = []
    for number, plan in enumerate(result.plans[:PLANS_SHOWN], start=1):
        c = plan.configuration
        reason = "the best" if number == 1 else why_it_lost(result.plans[0], plan)
        degrees = map(str, (number, c.pipeline, c.tensor, c.data, c.micro_batch))
        body.append((*degrees, f"{plan.simulated_s:.4f} s", reason))
    return _table(head, body)


def _titled(title: str, *parts: str) -> str:
    return f'<div style="max-width:60em"><b>{escape(title)}</b>{"".join(parts)}</div>'


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return _table((), rows)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    cell = 'style="text-align:left;padding:1px 10px 1px 0;vertical-align:top"'
    lines = ["".join(f"<th {cell}>{escape(text)}</th>" for text in head)] if head else []
    lines += ["".join(f"<td {cell}>{escape(text)}</td>" for text in row) for row in body]
    return (
        '<table style="border:0;border-collapse:collapse;margin:4px 0">'
        + "".join(f"<tr>{line}</tr>" for line in lines)
        + "</table>"
    )


def _bar_rows(bars: Iterable[tuple[str, float, str, bool]]) -> str:
    """Label, share of the whole bar, text, whether it is too much."""
    lines = []
    for label, share, text, over in bars:
        width = min(100.0, 100.0 * share)
        fill = f'<div style="width:{width:.1f}%;height:100%;background:{OVER if over else FILLED}"></div>'
        lines.append(
            f'<div style="display:flex;gap:8px;align-items:center"><span style="min-width:5em">'
            f"{escape(label)}</span>"
            f'<div style="width:12em;height:0.8em;border:1px solid currentColor">{fill}</div>'
            f"<span>{escape(text)}</span></div>"
        )
    return "".join(lines)
