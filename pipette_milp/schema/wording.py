"""Configurations, differences and shares in words."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pipette_milp.schema.evaluation import Memory, Throughput
from pipette_milp.schema.plan import Configuration
from pipette_milp.schema.result import RankedPlan, SolveResult, Termination
from pipette_milp.units import Dimension, format_quantity

if TYPE_CHECKING:
    from pipette_milp.schema.instance import Instance

PARTS = {
    "compute_s": "compute",
    "tensor_comm_s": "tensor communication",
    "pipeline_comm_s": "pipeline transfers",
    "bubble_s": "waiting",
    "gradient_sync_s": "gradient synchronisation",
    "optimizer_s": "optimizer",
    "fixed_s": "fixed time",
}
"""Keys of critical path and breakdown in words."""


def percent(share: float, digits: int = 1) -> str:
    """``0.0123`` as ``1.2 %``."""
    return f"{100 * share:.{digits}f} %"


def describe_configuration(configuration: Configuration, *, degrees: bool = True) -> str:
    """One line: degrees, micro-batch, schedule and options."""
    parts = []
    if degrees:
        context = f" x context {configuration.context}" if configuration.context > 1 else ""
        parts.append(
            f"pipeline {configuration.pipeline} x tensor {configuration.tensor}{context} x data "
            f"{configuration.data}, micro-batch {configuration.micro_batch} "
            f"({configuration.num_micro_batches} per replica)"
        )
        if configuration.expert > 1:
            parts.append(f"expert {configuration.expert}")
    if configuration.pipeline > 1:
        chunks = f" with {configuration.virtual_stages} chunks" if configuration.virtual_stages > 1 else ""
        parts.append(configuration.schedule + chunks)
    if configuration.recompute != "none":
        parts.append(f"{configuration.recompute} recompute")
    if configuration.sequence_parallel:
        parts.append("sequence parallel")
    if configuration.data_sharding != "none":
        parts.append(f"sharded {configuration.data_sharding}")
    return ", ".join(parts) or "no options"


def gpus_in_use(instance: Instance) -> str:
    """Number and type of the GPUs that are not excluded: ``64 x A100-SXM4-80GB, 64 x V100-SXM2-32GB``."""
    excluded = instance.cluster.excluded_gpu_ids()
    counts: Counter[str] = Counter()
    first = 0
    for node in instance.cluster.nodes:
        counts[node.gpu_type] += sum(gpu not in excluded for gpu in range(first, first + node.gpus))
        first += node.gpus
    return ", ".join(f"{count:,} x {name}" for name, count in counts.items() if count)


def ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 5]`` as ``0-2,5``."""
    parts = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0]):
        values = [value for _, value in run]
        parts.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ",".join(parts)


def shares(seconds: dict[str, Any], total_s: float) -> str:
    """Kinds of time by size, those below a thousandth left out."""
    parts = [(seconds[key], name) for key, name in PARTS.items() if seconds.get(key, 0.0) > 1e-3 * total_s]
    return ", ".join(f"{name} {percent(value / total_s)}" for value, name in sorted(parts, reverse=True))


def faster(other_s: float, best_s: float) -> str:
    """What ``best_s`` gains over ``other_s``."""
    gain = other_s / best_s - 1
    if abs(gain) < 5e-6:
        return "no faster"
    return f"{percent(gain, 2)} faster" if gain > 0 else f"{percent(-gain, 2)} slower"


def why_it_lost(best: RankedPlan, other: RankedPlan) -> str:
    """How much slower, and which parts of the longest path grew most."""
    slower = f"+{percent(other.simulated_s / best.simulated_s - 1, 2)}"
    if other.indistinguishable:
        slower += ", closer than the model's error"
    if other.reason:
        return f"{slower}: {other.reason}"
    if best.critical_path is None or other.critical_path is None:
        return slower
    before, after = best.critical_path.model_dump(), other.critical_path.model_dump()
    grown = sorted(((after[key] - before[key], PARTS[key]) for key in after), reverse=True)
    extra_s = other.simulated_s - best.simulated_s
    causes = [
        f"{name} {change:+.3f} s" for change, name in grown[:2] if change > 0.1 * extra_s and change > 0
    ]
    return f"{slower}: {', '.join(causes)}" if causes else slower


def speed(throughput: Throughput) -> str:
    """Tokens and FLOP per second, MFU."""
    flops = format_quantity(throughput.model_flop_per_s_per_gpu, Dimension.FLOP_RATE)
    return (
        f"{throughput.tokens_per_s:,.0f} tokens/s ({throughput.tokens_per_s_per_gpu:,.0f} per GPU), "
        f"{flops} per GPU, MFU {percent(throughput.mfu)}"
    )


def peak_memory(memory: Memory) -> str:
    """Peak against what is usable, on the stage that is fullest."""
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


def proof(result: SolveResult) -> str:
    """What the lower bound says, in terms of speed."""
    if result.lower_bound_s is None or result.gap is None:
        return "none: this solver gives no lower bound"
    if not (result.simulated_s and result.lower_bound_s):
        return "the lower bound is 0, nothing is proven"
    # Time, not speed: faster by x means simulated / bound - 1.
    gain = result.simulated_s / result.lower_bound_s - 1
    return (
        f"no plan is more than {percent(max(gain, 0.0), 3)} faster (proven): "
        f"lower bound {result.lower_bound_s:.4f} s over the whole space"
    )


def why_stopped(result: SolveResult) -> str:
    """In a few words."""
    return {
        Termination.OPTIMAL: "optimal",
        Termination.GAP_REACHED: "gap reached",
        Termination.LIMIT: "a limit was reached",
        Termination.INFEASIBLE: "proven infeasible",
        Termination.NO_PLAN_FOUND: "nothing found within the limits",
        Termination.INTERRUPTED: "interrupted, the best plan so far",
        Termination.ERROR: "a solver failed",
    }.get(result.termination, str(result.termination))


def search_outcome(result: SolveResult) -> str:
    """Who searched, how long, why it stopped, and what became of the configurations."""
    text = f"{result.solver} stopped after {result.wall_time_s:.1f} s: {why_stopped(result)}"
    counts = Counter(record.status for record in result.configurations)
    if not counts:
        return text
    listed = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.most_common())
    return f"{text}; configurations: {listed}"
