"""The words and tables of a report, as plain text: the template escapes all of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pipette_milp.cluster import Cluster
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import RankedPlan, SolveResult, Termination
from pipette_milp.schema.wording import (
    describe_configuration,
    faster,
    gpus_in_use,
    peak_memory,
    percent,
    proof,
    shares,
    speed,
    why_it_lost,
    why_stopped,
)
from pipette_milp.units import Dimension, format_quantity
from pipette_milp.verify.claims import Report as Checks

REASONS_LISTED = 12
CLAIM_SHOWN = 300
"""Characters of a claim's detail."""

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Competitor:
    """A line of the table of the best plans."""

    position: int
    degrees: str
    options: str
    time: str
    memory: str
    reason: str


def headline(instance: Instance, result: SolveResult) -> str:
    """Model, GPUs and nodes."""
    nodes = len(instance.cluster.nodes)
    return (
        f"{instance.model.name} on {gpus_in_use(instance)}, {nodes:,} {'node' if nodes == 1 else 'nodes'}, "
        f"{result.links} links"
    )


def verdict(result: SolveResult) -> str:
    """The answer in one sentence."""
    if result.plan is None or result.simulated_s is None:
        return {
            Termination.INFEASIBLE: "No plan exists (proven).",
            Termination.NO_PLAN_FOUND: "No plan was found within the limits.",
            Termination.INTERRUPTED: "Interrupted before a plan was found.",
        }.get(result.termination, "The solver failed.")
    return f"{describe_configuration(result.plan.configuration)}: {result.simulated_s:.4f} s per iteration"


def key_facts(result: SolveResult) -> Rows:
    """What to read first."""
    if result.plan is None or result.simulated_s is None:
        return [("Search", why_stopped(result))]
    rows = [("Iteration", f"{result.simulated_s:.4f} s")]
    if result.throughput is not None:
        rows.append(("Throughput", speed(result.throughput)))
    rows.append(("Proof", proof(result)))
    if result.memory is not None:
        rows.append(("Memory", peak_memory(result.memory)))
    if result.baseline is not None:
        rows.append(("Against the baseline", faster(result.baseline.simulated_s, result.simulated_s)))
    if result.default_order_s is not None:
        gain = faster(result.default_order_s, result.simulated_s)
        rows.append(("Against the default rank order", gain))
    return rows


def plan_rows(instance: Instance, configuration: Configuration) -> Rows:
    """Every choice of a configuration."""
    usable = instance.cluster.num_gpus - len(instance.cluster.excluded_gpu_ids())
    layers = configuration.layers_per_stage
    even = len(set(layers)) == 1
    batch = configuration.global_batch_size
    rows = [
        ("Pipeline stages", str(configuration.pipeline)),
        ("Tensor degree", str(configuration.tensor)),
        ("Data degree (replicas)", str(configuration.data)),
        ("GPUs used", f"{configuration.num_gpus:,} of {usable:,}"),
        (
            "Micro-batch",
            f"{configuration.micro_batch}, {configuration.num_micro_batches} of them per replica, "
            f"global batch {batch:,}",
        ),
        ("Layers", f"{layers[0]} on every stage" if even else " ".join(map(str, layers)) + " by stage"),
        ("Schedule", f"{configuration.schedule}, {configuration.pipeline_transfers} transfers"),
        ("Recompute", configuration.recompute),
        ("Sequence parallel", "yes" if configuration.sequence_parallel else "no"),
        ("Sharded over data", configuration.data_sharding),
        ("Gradients", configuration.gradient_dtype),
        ("Overlap", _overlap(configuration)),
    ]
    if configuration.context > 1:
        rows.insert(2, ("Context degree", str(configuration.context)))
    if configuration.expert > 1:
        rows.insert(3, ("Expert degree", str(configuration.expert)))
    if configuration.virtual_stages > 1:
        rows.insert(1, ("Virtual stages per rank", str(configuration.virtual_stages)))
    return rows


def why_it_won(instance: Instance, result: SolveResult) -> list[str]:
    """Sentences: where its time goes, what it beats and by what."""
    best_s = result.simulated_s
    if result.plan is None or best_s is None:
        return []
    sentences = []
    if result.critical_path is not None:
        sentences.append(f"Along its longest path: {shares(result.critical_path.model_dump(), best_s)}.")
    if result.breakdown is not None:
        sentences.append(f"Its busiest GPU: {shares(result.breakdown.model_dump(), best_s)}.")
    if len(result.plans) > 1:
        runner = result.plans[1]
        degrees = _degrees(runner.configuration)
        sentences.append(f"Next comes {degrees}: {why_it_lost(result.plans[0], runner)}.")
        if runner.indistinguishable:
            sentences.append(
                "That is less than the model's own error: measure both before you decide between them."
            )
    if result.baseline is not None:
        base = result.baseline
        fits = "" if base.fits else ", which does not fit into memory"
        sentences.append(
            f"It is {faster(base.simulated_s, best_s)} than the baseline "
            f"({describe_configuration(base.configuration)}, {base.simulated_s:.4f} s{fits})."
        )
    if result.default_order_s is not None:
        spread = Cluster.of(instance).link_spread
        sentences.append(
            f"The placement makes it {faster(result.default_order_s, best_s)} than the same configuration in "
            f"default rank order ({result.default_order_s:.4f} s). The links of this cluster spread by "
            f"{percent(spread)} around their mean."
        )
    counts = Counter(record.status for record in result.configurations)
    if counts["bounded_out"]:
        sentences.append(
            f"{counts['bounded_out']:,} other configurations cannot beat it by more than the wanted gap: "
            "their lower bounds say so."
        )
    if counts["open"]:
        sentences.append(f"{counts['open']:,} configurations are undecided and could hold a better plan.")
    return sentences


def competitors(result: SolveResult) -> list[Competitor]:
    """The best plans, and why all but the first lost."""
    return [
        Competitor(
            position=position,
            degrees=_degrees(ranked.configuration),
            options=describe_configuration(ranked.configuration, degrees=False),
            time=f"{ranked.simulated_s:.4f} s",
            memory=_peak(ranked),
            reason="the best" if position == 1 else why_it_lost(result.plans[0], ranked),
        )
        for position, ranked in enumerate(result.plans, start=1)
    ]


def memory_rows(result: SolveResult) -> list[tuple[str, ...]]:
    """Stage, then GiB of every part; the last columns are peak and usable."""
    if result.memory is None:
        return []
    return [
        (
            str(number),
            *(
                format_quantity(value, Dimension.BYTES)
                for value in (
                    stage.weights_bytes,
                    stage.gradients_bytes,
                    stage.optimizer_bytes,
                    stage.activations_bytes,
                    stage.other_bytes,
                    max(0.0, stage.peak_bytes - stage.allocated_peak_bytes),
                    stage.peak_bytes,
                    stage.usable_bytes,
                )
            ),
        )
        for number, stage in enumerate(result.memory.per_stage)
    ]


def space_rows(result: SolveResult) -> Rows:
    """What became of the configurations."""
    meaning = {
        "solved": "solved",
        "bounded_out": "ruled out by a lower bound",
        "open": "undecided",
        "infeasible": "no layer split and placement fit",
        "refused": "refused by a rule or by memory",
    }
    kinds = {
        "checked": "bound re-checked by arithmetic",
        "solver": "bound on a solver's word",
        None: "no bound",
    }
    counts = Counter(
        (record.status, record.bound_kind if record.status in ("solved", "bounded_out") else "")
        for record in result.configurations
    )
    rows = []
    for (status, kind), count in sorted(counts.items(), key=lambda item: -item[1]):
        label = meaning[status] if kind == "" else f"{meaning[status]}, {kinds[kind]}"
        rows.append((label, f"{count:,}"))
    return rows


def refusals(result: SolveResult) -> tuple[Rows, int]:
    """The most frequent reasons for refusals with their number, and how many reasons are left out."""
    counts = Counter(
        record.reason for record in result.configurations if record.status in ("refused", "infeasible")
    )
    listed = [(reason, f"{count:,}") for reason, count in counts.most_common(REASONS_LISTED)]
    return listed, len(counts) - len(listed)


def claims(checks: Checks) -> list[tuple[str, str, str, bool]]:
    """Claim, how it was checked, detail, whether it holds."""
    return [
        (
            claim.claim,
            str(claim.how),
            claim.detail if len(claim.detail) <= CLAIM_SHOWN else claim.detail[: CLAIM_SHOWN - 1] + "…",
            claim.ok,
        )
        for claim in checks.claims
    ]


def assumptions(instance: Instance, result: SolveResult) -> list[str]:
    """What the answer rests on."""
    lines = []
    if result.links == "nominal":
        lines.append(
            "Links are nominal, not measured: the placement says nothing about this cluster's real spread."
        )
    lines += result.warnings
    error = result.settings.get("model_error")
    if isinstance(error, float):
        source = result.settings.get("model_error_source", "")
        note = f" ({source})" if source else ""
        lines.append(
            f"Simulated times may be off by {percent(error)}{note}: plans closer than that cannot be told "
            "apart."
        )
    reserve = result.settings.get("memory_reserve")
    if isinstance(reserve, float):
        lines.append(f"{percent(reserve)} of every GPU's memory stays free on top of what is counted.")
    if isinstance(result.settings.get("placement_level"), str):
        lines.append(f"Placement: {result.settings['placement_level']}.")
    if instance.compute.kind == "analytic":
        lines.append("Compute times come from the GPU's data sheet and efficiencies, not from a profile.")
    else:
        sources = dict.fromkeys(entry.source or "no source given" for entry in instance.compute.entries)
        lines.append(
            f"Compute times come from a profile of {len(instance.compute.entries)} entries "
            f"({'; '.join(sources)}) where it covers them."
        )
    if result.throughput is not None:
        lines.append(f"FLOP counted: {result.throughput.flop_convention}.")
    return lines


def settings_rows(result: SolveResult) -> Rows:
    """Every setting, also those that were defaults."""
    return [
        (key, value if isinstance(value, str) else json.dumps(value))
        for key, value in result.settings.items()
    ]


def provenance_rows(instance: Instance, result: SolveResult) -> Rows:
    """Where the figures of the instance come from, and who found the result with what."""
    rows = [("Instance", instance.name), ("SHA-256 of the instance", result.instance_sha256)]
    if isinstance(instance.provenance, dict):
        rows += [(f"Source of {key}", _plain(value)) for key, value in instance.provenance.items()]
    elif instance.provenance:
        rows.append(("Sources", _plain(instance.provenance)))
    rows += [
        ("Solver", f"{result.solver}, seed {result.seed}"),
        ("Search", f"{result.wall_time_s:.1f} s, {why_stopped(result)} ({result.termination})"),
        ("Versions", ", ".join(f"{name} {version}" for name, version in result.versions.items())),
    ]
    return rows


def _overlap(configuration: Configuration) -> str:
    overlap = configuration.overlap
    parts = [
        name
        for name, hidden in (
            ("gradient reduction", overlap.gradient_reduce),
            ("parameter gather", overlap.parameter_gather),
        )
        if hidden
    ]
    if overlap.tensor > 0.0:
        parts.append(f"{percent(overlap.tensor, 0)} of tensor communication")
    return ", ".join(parts) or "none"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _degrees(configuration: Configuration) -> str:
    text = f"pipeline {configuration.pipeline}, tensor {configuration.tensor}, data {configuration.data}"
    for name in ("context", "expert"):
        if getattr(configuration, name) > 1:
            text += f", {name} {getattr(configuration, name)}"
    return f"{text}, micro-batch {configuration.micro_batch}"


def _peak(ranked: RankedPlan) -> str:
    if ranked.memory is None:
        return ""
    return format_quantity(ranked.memory.peak_bytes, Dimension.BYTES)
