"""The exception tree, the named warnings and the exit codes of the outside contract."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes. Fixed: scripts rely on them."""

    OK = 0
    INTERNAL = 1
    BAD_INPUT = 2
    INFEASIBLE = 3
    NOTHING_FOUND = 4
    VERIFICATION_FAILED = 5
    INTERRUPTED = 130


class PipetteError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = ExitCode.INTERNAL


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input.

    ``path`` says where (a JSON path such as ``cluster.nodes[3].gpus``, or ``file:line:column``);
    ``message`` says what is wrong and what would be accepted.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InputError(PipetteError):
    """Bad input. Carries every problem found, not only the first."""

    exit_code = ExitCode.BAD_INPUT

    def __init__(self, problems: Iterable[Problem] | Problem | str, source: str = "") -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        elif isinstance(problems, Problem):
            problems = [problems]
        self.problems = tuple(problems)
        self.source = source
        head = f"{source}: " if source else ""
        if len(self.problems) == 1:
            text = f"{head}{self.problems[0]}"
        else:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            text = f"{head}{len(self.problems)} problems\n{lines}"
        super().__init__(text)


class IllegalConfigurationError(InputError):
    """A configuration that breaks a rule of the framework, the schedule or the model's shape."""


class PlanError(InputError):
    """A plan that is malformed: wrong length, a GPU used twice, layers lost."""


class VerificationError(PipetteError):
    """A result claims something that does not hold."""

    exit_code = ExitCode.VERIFICATION_FAILED


class SolverError(PipetteError):
    """A solver failed: crashed, was killed, or returned something that is not a plan."""


class PipetteWarning(UserWarning):
    """Base of the named warnings; every one of them also goes into the result."""
