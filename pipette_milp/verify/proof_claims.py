"""Claims about the run as a whole: gap, why it stopped, how incumbent and bound moved."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pipette_milp.cost.build import CostModel
from pipette_milp.schema.result import OPTIMAL_GAP, SolveResult, Termination, TracePoint
from pipette_milp.verify.claims import TOLERANCE, Claim, close, judged

MODEL_ROUNDING = 1e-6
"""Relative; claimed and recomputed objective may differ by the solver's tolerance and the rounding to ticks
(formulation, section 5)."""


def proof_claims(costs: CostModel, result: SolveResult) -> Iterator[Claim]:
    """Gap, termination, trace, and the objective of the model against its own recomputation."""
    if result.lower_bound_s is not None:
        yield judged("gap", _gap_faults(result))
    yield judged(f"termination {result.termination}", _termination_faults(result))
    if result.trace:
        yield judged("trace: bound never falls, incumbent never rises", _trace_faults(result))
    if result.claimed_s is not None and result.recomputed_s is not None:
        close_enough = close(
            result.claimed_s, result.recomputed_s, MODEL_ROUNDING * max(result.claimed_s, result.recomputed_s)
        )
        fault = f"{result.claimed_s!r} and {result.recomputed_s!r} differ by more than {MODEL_ROUNDING:g}"
        yield judged("claimed_s agrees with recomputed_s", [] if close_enough else [fault], how="solver")


def _gap_faults(result: SolveResult) -> Iterator[str]:
    bound, simulated = result.lower_bound_s, result.simulated_s
    if bound is None or simulated is None:
        return
    if bound > simulated * (1 + TOLERANCE):
        yield f"lower_bound_s {bound!r} is above simulated_s {simulated!r}"
    gap = max(0.0, (simulated - bound) / simulated)
    if result.gap is None or not close(result.gap, gap, TOLERANCE):
        yield f"says {result.gap!r}, recomputed {gap!r}"


def _termination_faults(result: SolveResult) -> Iterator[str]:
    termination, wanted = result.termination, result.settings.get("gap")
    proven = result.gap
    if termination is Termination.OPTIMAL and (proven is None or proven > OPTIMAL_GAP):
        yield f"needs a gap of at most {OPTIMAL_GAP:g}, it is {proven}"
    if termination is Termination.GAP_REACHED:
        if proven is None:
            yield "needs a lower bound"
        elif isinstance(wanted, int | float) and proven > wanted and not close(proven, wanted):
            yield f"the gap is {proven:.6g}, wanted was {wanted:.6g}"
    reached = proven is not None and isinstance(wanted, int | float) and proven < wanted * (1 - TOLERANCE)
    if termination is Termination.LIMIT and reached:
        yield f"the gap {proven:.6g} is below the wanted {wanted:.6g}: GAP_REACHED or OPTIMAL"
    if termination is Termination.INFEASIBLE and any(
        record.status in ("solved", "open", "bounded_out") for record in result.configurations
    ):
        yield "some configuration is neither refused nor infeasible"


def _trace_faults(result: SolveResult) -> Iterator[str]:
    for index, (before, after) in enumerate(itertools.pairwise(result.trace)):
        yield from (f"trace[{index + 1}]: {text}" for text in _step_faults(before, after))
    for index, point in enumerate(result.trace):
        bound, incumbent = point.bound_s, point.incumbent_s
        if bound is not None and incumbent is not None and bound > incumbent * (1 + TOLERANCE):
            yield f"trace[{index}]: bound above incumbent"
    if result.plan is None:
        return
    last = result.trace[-1]
    for name, stated, final in (
        ("incumbent_s", last.incumbent_s, result.simulated_s),
        ("bound_s", last.bound_s, result.lower_bound_s),
    ):
        if (stated is None) != (final is None) or (
            stated is not None and final is not None and not close(stated, final)
        ):
            yield f"its last {name} is {stated!r}, the result says {final!r}"


def _step_faults(before: TracePoint, after: TracePoint) -> Iterator[str]:
    if after.time_s < before.time_s:
        yield "time goes back"
    if before.bound_s is not None and (
        after.bound_s is None or after.bound_s < before.bound_s * (1 - TOLERANCE)
    ):
        yield f"bound falls from {before.bound_s!r} to {after.bound_s!r}"
    if before.incumbent_s is not None and (
        after.incumbent_s is None or after.incumbent_s > before.incumbent_s * (1 + TOLERANCE)
    ):
        yield f"incumbent rises from {before.incumbent_s!r} to {after.incumbent_s!r}"
