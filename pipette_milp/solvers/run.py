"""`solve`: prepare the search, run one solver, report what it found."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version

import numpy as np

from pipette_milp import accelerate
from pipette_milp.assessment import Assessment, assess
from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError, Problem
from pipette_milp.legality import check_legal
from pipette_milp.plans import default_cells, placement_of_cells
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.schema.result import (
    OPTIMAL_GAP,
    Baseline,
    ConfigurationRecord,
    RankedPlan,
    SolveResult,
    Termination,
    TracePoint,
)
from pipette_milp.search_space import SearchSpace, blocking_reason, enumerate_space
from pipette_milp.solvers import SOLVERS, WITH_VARIANTS
from pipette_milp.solvers.interrupts import one_interrupt
from pipette_milp.solvers.state import CHECKED, Limits, Listener, SearchState

MOST_THREADS = 8
"""Worker processes used where the user names no number."""


def solve(
    instance: Instance,
    *,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.01,
    iteration_limit: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    keep: int = 5,
    baseline: Configuration | Plan | None = None,
    listener: Listener | None = None,
) -> SolveResult:
    """Find the best plan of an instance, with a lower bound where the solver proves one.

    Args:
        solver: a name of `pipette_milp.solvers.SOLVERS`; those of `WITH_VARIANTS` may go on after a colon
            (``joint-milp:NAME`` uses another Pyomo solver, ``annealing:as-published`` the paper's walk).
        gap: stop once no plan can be faster by more than this share.
        threads: worker processes or solver threads; default: the machine's cores, at most `MOST_THREADS`.
        keep: how many of the best plans to report.
        baseline: what runs today; a configuration runs in default rank order.

    A ``KeyboardInterrupt`` ends the search and keeps the best plan; SIGINT and SIGTERM that follow, or that
    come while the answer is put together, do nothing.

    Raises:
        InputError: unknown solver, unmeasured links, or an instance the solver refuses.
    """
    name, _, option = solver.partition(":")
    if name not in SOLVERS or (option and name not in WITH_VARIANTS):
        raise InputError(f"there is no solver {solver!r}; there are {', '.join(SOLVERS)}", source="--solver")
    module, _, attribute = SOLVERS[name].partition(":")
    function: Callable[..., None] = getattr(import_module(module), attribute)
    if threads is None:
        threads = min(os.cpu_count() or 1, MOST_THREADS)
    limits = Limits(time_limit_s, gap, iteration_limit, threads, seed)
    started = time.monotonic()
    costs = CostModel.of(instance)
    judged = None if baseline is None else _baseline(costs, baseline)
    interrupted = False
    state = None
    with one_interrupt() as interrupts:
        try:
            space = enumerate_space(costs)
            state = SearchState(costs, space, limits, listener, started)
            if state.families:
                function(state, option) if option else function(state)
            interrupts.done()
        except KeyboardInterrupt:
            interrupted = True
        if state is None:
            state = SearchState(costs, SearchSpace(), limits, listener, started)
        return _result(state, solver=solver, keep=keep, baseline=judged, interrupted=interrupted)


def _result(
    state: SearchState, *, solver: str, keep: int, baseline: Baseline | None, interrupted: bool
) -> SolveResult:
    costs, instance = state.costs, state.costs.instance
    limits = state.limits
    slow = accelerate.hint()
    uncovered = costs.warnings(tables.configuration for tables in state.families)
    warnings = [*instance.warnings, *uncovered, *state.warnings, *([slow] if slow else [])]
    if not state.families and not interrupted:
        warnings.insert(0, blocking_reason(state.space))
    common = {
        "instance_sha256": instance.sha256(),
        "settings": _settings(state),
        "wall_time_s": state.elapsed_s,
        "solver": solver,
        "seed": limits.seed,
        "versions": _versions(),
        "links": "measured" if costs.cluster.measured else "nominal",
        "warnings": tuple(warnings),
        "baseline": baseline,
        "configurations": _records(state),
    }
    termination = _termination(state, interrupted=interrupted)
    if state.incumbent is None:
        return SolveResult(termination=termination, **common)  # type: ignore[arg-type]
    winner = state.incumbent
    scale = float(state.scale[winner])
    best = _assessment(state, winner)
    default = default_cells(costs.cluster, best.configuration)
    default_s = None if default is None else assess(costs, best.configuration, default).simulated_s
    bound = min(state.bound_s / scale, best.simulated_s) if state.proves else None
    return SolveResult(
        termination=termination,
        simulated_s=best.simulated_s,
        claimed_s=state.claimed_s,
        recomputed_s=state.recomputed_s,
        lower_bound_s=bound,
        plan=best.plan,
        plans=_ranked(state, best, keep),
        default_order_s=default_s,
        durations=best.durations,
        order=best.order,
        critical_path=best.critical_path,
        breakdown=best.breakdown,
        throughput=best.throughput,
        memory=best.memory,
        uncertainty=best.uncertainty,
        trace=_trace(state, scale, best.simulated_s, bound),
        **common,  # type: ignore[arg-type]
    )


def _assessment(state: SearchState, family: int) -> Assessment:
    candidate = state.best[family]
    if candidate is None:
        raise RuntimeError("a family without a plan cannot be reported")
    configuration = state.families[family].configuration.with_layers(
        tuple(int(layers) for layers in candidate.layers)
    )
    where = placement_of_cells(
        state.costs.cluster, configuration, candidate.node_of_cell, candidate.gpus_of_cell
    )
    return assess(state.costs, configuration, where)


def _termination(state: SearchState, *, interrupted: bool) -> Termination:
    if state.incumbent is None:
        if interrupted:
            return Termination.INTERRUPTED
        if not state.families or (state.proves and state.bound_s == math.inf):
            return Termination.INFEASIBLE
        return Termination.ERROR if state.failed else Termination.NO_PLAN_FOUND
    if state.proves and state.gap <= OPTIMAL_GAP:
        return Termination.OPTIMAL
    if state.proves and state.gap <= state.limits.gap:
        return Termination.GAP_REACHED
    return Termination.INTERRUPTED if interrupted else Termination.LIMIT


def _ranked(state: SearchState, best: Assessment, keep: int) -> tuple[RankedPlan, ...]:
    """The best plan of each set of degrees, best first."""
    ranked: list[RankedPlan] = []
    seen = set()
    for family in np.argsort(state.best_s, kind="stable"):
        family = int(family)
        if state.best[family] is None or len(ranked) == keep:
            break
        c = state.families[family].configuration
        degrees = (c.pipeline, c.virtual_stages, c.tensor, c.data)
        if degrees in seen:
            continue
        seen.add(degrees)
        plan = best if family == state.incumbent else _assessment(state, family)
        bound = float(state.lower[family] / state.scale[family])
        ratio = float(state.best_s[family]) / state.incumbent_s
        ranked.append(
            RankedPlan(
                configuration=plan.configuration,
                placement=plan.placement,
                simulated_s=plan.simulated_s,
                lower_bound_s=min(bound, plan.simulated_s) if state.proves else None,
                indistinguishable=family != state.incumbent
                and ratio < 1 + state.costs.constants.residuals.ranking_sigma,
                durations=plan.durations,
                order=plan.order,
                critical_path=plan.critical_path,
                breakdown=plan.breakdown,
                throughput=plan.throughput,
                memory=plan.memory,
            )
        )
    return tuple(ranked)


def _records(state: SearchState) -> tuple[ConfigurationRecord, ...]:
    """What became of every family and every refused part of the space."""
    records = []
    for family, tables in enumerate(state.families):
        own = float(state.scale[family])
        best = None if state.best[family] is None else float(state.best_s[family]) / own
        bound = float(state.lower[family]) / own if math.isfinite(state.lower[family]) else None
        if best is not None and bound is not None:
            bound = min(bound, best)
        configuration = tables.configuration
        candidate = state.best[family]
        if candidate is not None:
            configuration = configuration.with_layers(tuple(int(v) for v in candidate.layers))
        infeasible = math.isinf(state.lower[family])
        beaten = state.lower[family] >= state.incumbent_s * (1 - max(state.limits.gap, OPTIMAL_GAP))
        if infeasible:
            status, reason = "infeasible", "no layer split and placement within memory"
        elif family == state.incumbent:
            status, reason = "solved", "the best plan"
        elif state.proves and beaten:
            status, reason = "bounded_out", "no plan of it beats the best one by more than the wanted gap"
        else:
            status, reason = "open", "could still hold a better plan"
        by = state.bound_by[family] if state.proves else None
        records.append(
            ConfigurationRecord(
                configuration=configuration,
                status=status,  # type: ignore[arg-type]
                reason=reason,
                lower_bound_s=bound if state.proves else None,
                bound_kind=None if by is None else ("checked" if by in CHECKED else "solver"),
                bound_by=by,
                best_s=best,
            )
        )
    for refusal in state.space.refusals:
        records.append(
            ConfigurationRecord(configuration=refusal.degrees, status="refused", reason=refusal.reason)
        )
    return tuple(records)


def _trace(
    state: SearchState, scale: float, simulated_s: float, bound_s: float | None
) -> tuple[TracePoint, ...]:
    """Incumbent and bound over time, in seconds of the winner's batch, ending with what the result states."""
    points = [
        TracePoint(
            time_s=event.time_s,
            incumbent_s=None if event.incumbent_s is None else event.incumbent_s / scale,
            bound_s=None if event.bound_s is None else event.bound_s / scale,
        )
        for event in state.trace
    ]
    points.append(TracePoint(time_s=state.elapsed_s, incumbent_s=simulated_s, bound_s=bound_s))
    return tuple(points)


def _baseline(costs: CostModel, baseline: Configuration | Plan) -> Baseline:
    check_legal(costs, baseline.configuration if isinstance(baseline, Plan) else baseline)
    if isinstance(baseline, Plan):
        judged = assess(costs, baseline.configuration, baseline.placement)
    else:
        cells = default_cells(costs.cluster, baseline)
        if cells is None:
            raise InputError(
                Problem("baseline", "its tensor groups cross nodes in the default rank order: give a plan")
            )
        judged = assess(costs, baseline, cells)
    return Baseline(
        configuration=judged.configuration,
        placement=judged.placement,
        simulated_s=judged.simulated_s,
        fits=judged.fits,
    )


def _settings(state: SearchState) -> dict[str, object]:
    """Every default that was used."""
    instance, cluster, limits = state.costs.instance, state.costs.cluster, state.limits
    given = instance.compute.constants
    return {
        "time_limit_s": limits.time_s,
        "gap": limits.gap,
        "iteration_limit": limits.iterations,
        "threads": limits.threads,
        "placement_level": (
            "GPUs: the GPUs of a tensor group are chosen within its node"
            if cluster.meshes
            else "aligned groups: a tensor group is consecutive GPUs of one node, or whole nodes in a row"
        ),
        "model_error": state.costs.constants.residuals.ranking_sigma,
        "model_error_source": "difference of two estimates for one model and GPU count, on measured runs",
        "constants": None if given is None else given.model_dump(mode="json"),
        "constants_provenance": state.costs.constants.provenance,
        "compute": instance.compute.kind,
        "contention": "groups",
        "training": instance.training.model_dump(mode="json"),
        "memory_reserve": instance.search.memory_reserve,
        "use_all_gpus": instance.search.use_all_gpus,
        # null: no ceiling, as on a single node
        "node_bandwidth_bytes_per_s": [_finite_or_none(value) for value in cluster.egress_bytes_per_s],
        "per_gpu_bandwidth_bytes_per_s": _finite_or_none(cluster.port_bytes_per_s),
        "link_spread": cluster.link_spread,
        "uplinks_bytes_per_s": {uplink.name: uplink.bandwidth for uplink in instance.cluster.network.uplinks},
    }


def _finite_or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _versions() -> dict[str, str]:
    packages = ("pipette_milp", "highspy", "ortools", "pyomo", "numpy")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except ModuleNotFoundError:  # run from a checkout that is not installed
            found[package] = "not installed"
    return found
