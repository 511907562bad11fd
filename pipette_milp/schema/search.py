"""Sections ``compute``, ``search`` and ``known`` of an instance."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from pipette_milp.schema.constants import CostConstants
from pipette_milp.schema.plan import FrozenModel
from pipette_milp.schema.profile import ProfileEntry, check_entries
from pipette_milp.schema.quantities import ONE_OR_MANY, Count, Flag, Seconds, unsupported
from pipette_milp.schema.strict import Location, problems_error

Choices = Annotated[tuple[Count, ...], *ONE_OR_MANY]


class ComputeSection(FrozenModel):
    """Where the time of a layer comes from."""

    kind: Literal["analytic", "profile"] = "analytic"
    """``profile``: measured layer times where ``entries`` cover them, analytic ones elsewhere."""
    entries: tuple[ProfileEntry, ...] = ()
    framework_profile: Annotated[str, Field(min_length=1)] | None = None
    """Host and fusion figures of which framework, a key of the constants' ``frameworks``; None = those of
    ``training.framework``."""
    constants: CostConstants | None = None
    """Fitted constants of the cost model; None = the shipped ones."""

    @field_validator("entries")
    @classmethod
    def _possible(cls, entries: tuple[ProfileEntry, ...]) -> tuple[ProfileEntry, ...]:
        check_entries(entries)
        return entries

    @model_validator(mode="after")
    def _entries_of_their_kind(self) -> ComputeSection:
        if self.kind == "profile" and not self.entries:
            raise problems_error([(("entries",), 'is empty: kind "profile" needs measured layers')])
        if self.kind == "analytic" and self.entries:
            message = f'is "analytic" but there are {len(self.entries)} entries: expected "profile"'
            raise problems_error([(("kind",), message)])
        return self


class Fix(FrozenModel):
    """Decisions that are taken already."""

    tensor: Count | None = None
    pipeline: Count | None = None
    data: Count | None = None
    context: Count | None = None
    expert: Count | None = None
    micro_batch: Count | None = None
    stage_of_node: Annotated[None, unsupported(None, what="stages pinned to nodes")] = None


class SearchSection(FrozenModel):
    """What may be chosen. ``None`` = everything legal."""

    tensor: Choices | None = None
    pipeline: Choices | None = None
    data: Choices | None = None
    context: Choices = (1,)
    expert: Choices = (1,)
    """Ranks that share the experts of a layer."""
    micro_batch: Choices | None = None
    schedules: Annotated[tuple[str, ...], *ONE_OR_MANY] | None = None
    virtual_stages: Choices = (1,)
    layers_per_stage: tuple[Annotated[int, Field(ge=0, strict=True)], ...] | None = None
    """Fixes the layer split, one entry per virtual stage in model order."""
    fix: Fix = Fix()
    memory_reserve: float = Field(default=0.03, ge=0.0, lt=1.0, strict=True)
    """Share of the GPU's memory left free, on top of the explicit terms."""
    use_all_gpus: Flag = True

    @model_validator(mode="after")
    def _consistent(self) -> SearchSection:
        problems: list[tuple[Location, str]] = []
        for name in ("tensor", "pipeline", "data", "context", "expert", "micro_batch"):
            fixed: int | None = getattr(self.fix, name)
            allowed: tuple[int, ...] | None = getattr(self, name)
            if fixed is not None and allowed is not None and fixed not in allowed:
                problems.append(
                    (
                        ("fix", name),
                        f"{fixed} is not among the allowed {', '.join(map(str, allowed))} of search.{name}",
                    )
                )
        if problems:
            raise problems_error(problems)
        return self

    def allowed(self, name: str) -> tuple[int, ...] | None:
        """Allowed values of a degree or of ``micro_batch``, ``fix`` included; None = all legal."""
        fixed: int | None = getattr(self.fix, name, None)
        choices: Any = getattr(self, name)
        return (fixed,) if fixed is not None else choices


class KnownSection(FrozenModel):
    """What others found for this instance."""

    best_s: Seconds | None = None
    lower_bound_s: Seconds | None = None
    source: str | None = None
