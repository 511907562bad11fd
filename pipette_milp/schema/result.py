"""What a solve returns. States that cannot be are refused on construction."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, model_validator

from pipette_milp.errors import InputError
from pipette_milp.schema.evaluation import (
    Breakdown,
    CriticalPath,
    DurationsRecord,
    Memory,
    Order,
    Seconds,
    Throughput,
    Uncertainty,
)
from pipette_milp.schema.output import dump_json
from pipette_milp.schema.plan import Configuration, FrozenModel, Placement, Plan
from pipette_milp.schema.strict import (
    Location,
    parse_json,
    problems_error,
    read_text,
    validate,
    validation_problems,
)

if TYPE_CHECKING:
    import pandas as pd

    from pipette_milp.schema.frames import ResultTable

OPTIMAL_GAP = 1e-5
"""Largest gap that is called OPTIMAL."""
BOUND_TOLERANCE = 1e-9
"""Relative; a bound above the objective by more is a fault."""


class Termination(StrEnum):
    """Why a solve ended."""

    OPTIMAL = "OPTIMAL"
    GAP_REACHED = "GAP_REACHED"
    LIMIT = "LIMIT"
    INFEASIBLE = "INFEASIBLE"
    NO_PLAN_FOUND = "NO_PLAN_FOUND"
    INTERRUPTED = "INTERRUPTED"
    ERROR = "ERROR"


_NEEDS_PLAN = {Termination.OPTIMAL, Termination.GAP_REACHED, Termination.LIMIT}
_HAS_NO_PLAN = {Termination.INFEASIBLE, Termination.NO_PLAN_FOUND}


class RankedPlan(FrozenModel):
    """One of the best plans, complete."""

    configuration: Configuration
    placement: Placement
    simulated_s: Seconds
    lower_bound_s: Seconds | None = None
    """Of its configuration over all placements."""
    indistinguishable: bool = False
    """Closer to the best plan than ``settings.model_error``."""
    reason: str = ""
    """Why it is not the best one, in a few words."""
    durations: DurationsRecord | None = None
    order: Order | None = None
    critical_path: CriticalPath | None = None
    breakdown: Breakdown | None = None
    throughput: Throughput | None = None
    memory: Memory | None = None
    uncertainty: Uncertainty | None = None


class Baseline(FrozenModel):
    """What runs today, simulated alike."""

    configuration: Configuration
    placement: Placement | None = None
    """None = default rank order."""
    simulated_s: Seconds
    fits: bool


def _whole_or_partial(value: Any) -> Any:
    """A dict with stages is a whole configuration; its problems keep their places."""
    if isinstance(value, dict) and "stages" in value:
        try:
            return Configuration.model_validate(value)
        except ValidationError as error:
            raise problems_error(validation_problems(error, Configuration)) from None
    return value


class ConfigurationRecord(FrozenModel):
    """What became of one configuration, or of a part of the space that was refused as a whole."""

    configuration: Annotated[Configuration | dict[str, JsonValue], BeforeValidator(_whole_or_partial)]
    """The degrees concerned only, where a rule refused more than one configuration."""
    status: Literal["solved", "bounded_out", "open", "infeasible", "refused"]
    reason: str = ""
    lower_bound_s: Seconds | None = None
    bound_kind: Literal["checked", "solver"] | None = None
    bound_by: str | None = None
    """What found the bound: closed form, enumeration, HiGHS, CP-SAT, or another solver's name."""
    best_s: Seconds | None = None


class TracePoint(FrozenModel):
    """Incumbent and bound at one moment."""

    time_s: Seconds
    incumbent_s: Seconds | None = None
    bound_s: Seconds | None = None


class SolveResult(FrozenModel):
    """The best plan with a bound over the whole space, and how it was found.

    ``simulated_s`` is the longest path of the plan, ``claimed_s`` the objective of the solver's model,
    ``recomputed_s`` that objective evaluated at the plan without a solver; the two are None for
    heuristics and where a gap or limit stopped the solver above the plan's objective; ``lower_bound_s`` is
    None where nothing was proven. ``durations`` to ``memory`` belong to
    ``plan``.
    """

    schema_version: Literal[1] = 1
    instance_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    settings: dict[str, JsonValue] = Field(default_factory=dict)
    termination: Termination
    simulated_s: Seconds | None = None
    claimed_s: Seconds | None = None
    recomputed_s: Seconds | None = None
    lower_bound_s: Seconds | None = None
    gap: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """``(simulated_s - lower_bound_s) / simulated_s``; filled in from the two."""
    wall_time_s: Seconds = 0.0
    solver: str
    seed: int = 0
    versions: dict[str, str] = Field(default_factory=dict)
    links: Literal["measured", "nominal"]
    warnings: tuple[str, ...] = ()
    plan: Plan | None = None
    plans: tuple[RankedPlan, ...] = ()
    baseline: Baseline | None = None
    default_order_s: Seconds | None = None
    """The winning configuration in default rank order."""
    durations: DurationsRecord | None = None
    order: Order | None = None
    critical_path: CriticalPath | None = None
    breakdown: Breakdown | None = None
    throughput: Throughput | None = None
    memory: Memory | None = None
    uncertainty: Uncertainty | None = None
    configurations: tuple[ConfigurationRecord, ...] = ()
    trace: tuple[TracePoint, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _fill_gap(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("gap") is not None:
            return data
        simulated, bound = data.get("simulated_s"), data.get("lower_bound_s")
        if not isinstance(simulated, int | float) or not isinstance(bound, int | float) or simulated <= 0:
            return data
        return {**data, "gap": max(0.0, (simulated - bound) / simulated)}

    @model_validator(mode="after")
    def _possible(self) -> SolveResult:
        problems: list[tuple[Location, str]] = []
        simulated, bound = self.simulated_s, self.lower_bound_s
        if self.termination in _NEEDS_PLAN and self.plan is None:
            problems.append((("plan",), f"is required with termination {self.termination}"))
        if self.termination in _HAS_NO_PLAN and (self.plan is not None or self.plans):
            problems.append((("plan",), f"cannot be there with termination {self.termination}"))
        if (self.plan is None) != (simulated is None):
            problems.append((("simulated_s",), "comes with a plan and only with a plan"))
        if (self.claimed_s is None) != (self.recomputed_s is None):
            problems.append((("recomputed_s",), "comes with claimed_s and only with it"))
        if simulated is not None and bound is not None:
            if bound > simulated * (1 + BOUND_TOLERANCE):
                problems.append((("lower_bound_s",), f"{bound!r} is above simulated_s {simulated!r}"))
            elif (
                self.gap is None
                or abs(self.gap - max(0.0, (simulated - bound) / simulated)) > BOUND_TOLERANCE
            ):
                problems.append((("gap",), "is not (simulated_s - lower_bound_s) / simulated_s"))
        elif self.gap is not None:
            problems.append((("gap",), "needs simulated_s and lower_bound_s"))
        if self.termination is Termination.OPTIMAL and (self.gap is None or self.gap > OPTIMAL_GAP):
            problems.append(
                (("termination",), f"OPTIMAL needs a gap of at most {OPTIMAL_GAP:g}, got {self.gap}")
            )
        if problems:
            raise problems_error(problems)
        return self

    def to_json(self) -> str:
        """Text of the result file."""
        return dump_json(self.model_dump(mode="json"))

    def to_pandas(self, table: ResultTable = "plans") -> pd.DataFrame:
        """A table of the result.

        Args:
            table: ``plans`` (the best ones), ``configurations`` (what became of each), ``memory`` (by stage)
                or ``trace`` (incumbent and bound over time).

        Raises:
            InputError: no such table.
        """
        from pipette_milp.schema.frames import result_frame

        return result_frame(self, table)

    def _repr_html_(self) -> str:
        from pipette_milp.schema.display import result_html

        return result_html(self)

    @classmethod
    def from_json(cls, text: str, source: str = "") -> SolveResult:
        """Reads a result.

        Raises:
            InputError: not JSON, or not a possible result; every problem with its JSON path.
        """
        return validate(cls, parse_json(text, source), source)


def load_result(path: str | Path) -> SolveResult:
    """A result from a file, ``-`` = standard input.

    Raises:
        InputError: missing, unreadable or impossible.
    """
    return SolveResult.from_json(read_text(path), "standard input" if str(path) == "-" else str(path))


def load_plan(path: str | Path) -> Plan:
    """A plan from a file ``{"configuration", "placement"}`` or from any result that has one.

    Raises:
        InputError: missing, unreadable, or neither.
    """
    source = "standard input" if str(path) == "-" else str(path)
    value = parse_json(read_text(path), source)
    if isinstance(value, dict) and "termination" in value:
        plan = validate(SolveResult, value, source).plan
        if plan is None:
            raise InputError("this result has no plan", source=source)
        return plan
    return validate(Plan, value, source)
