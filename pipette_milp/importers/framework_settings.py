"""What a settings file of a framework says about a run, where it is not Megatron-LM's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import Problem


@dataclass(frozen=True)
class FrameworkSettings:
    """Degrees, batch and options. ``None`` = the file does not say."""

    source: str
    framework: str
    model: Mapping[str, Any]
    """Fields of an instance's ``model``."""
    training: Mapping[str, Any]
    """Fields of an instance's ``training``."""
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    data: int | None = None
    micro_batch: int | None = None
    num_micro_batches: int | None = None
    schedule: str | None = None
    virtual_stages: int | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that concern speed or memory, as they stand."""
    missing: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()


class Settings:
    """Typed access to nested settings; problems are gathered with their place."""

    def __init__(self, data: Mapping[str, Any], source: str) -> None:
        self.data, self.source = data, source
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def place(self, path: str) -> str:
        """``file: a.b``."""
        return f"{self.source}: {path}"

    def get(self, path: str) -> Any:
        """A value, None where it or something above it is absent."""
        value: Any = self.data
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def section(self, path: str) -> Mapping[str, Any]:
        """A mapping; empty where it is absent, a problem where it is something else."""
        value = self.get(path)
        if value is not None and not isinstance(value, Mapping):
            self.problems.append(Problem(self.place(path), "expected a section with settings"))
        return value if isinstance(value, Mapping) else {}

    def whole(self, path: str, *, least: int = 1, instead: tuple[Any, ...] = ()) -> int | None:
        """A whole number; None where it is absent or one of ``instead`` (values that mean "decide it")."""
        value = self.get(path)
        if value is None or value in instead:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least or value > 10**12:
            self.problems.append(
                Problem(self.place(path), f"expected a whole number of at least {least}, got {value!r:.60}")
            )
            return None
        return value

    def flag(self, path: str) -> bool | None:
        """True or false; "auto" and absent are None."""
        value = self.get(path)
        if value is None or value == "auto":
            return None
        if not isinstance(value, bool):
            self.problems.append(Problem(self.place(path), f"expected true or false, got {value!r:.60}"))
            return None
        return value

    def choice(self, path: str, choices: Mapping[str, Any]) -> Any:
        """One of some words, translated; None where it is absent."""
        value = self.get(path)
        if value is None:
            return None
        if not isinstance(value, str) or value not in choices:
            self.problems.append(
                Problem(self.place(path), f"expected one of {', '.join(choices)}, got {value!r:.60}")
            )
            return None
        return choices[value]
