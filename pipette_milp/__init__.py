"""Certified parallel training plans for large language models.

The public names are loaded on first use, so that importing the package stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipette_milp.estimate import simulate_plan as simulate
    from pipette_milp.schema.instance import Instance, load_instance
    from pipette_milp.schema.plan import Plan
    from pipette_milp.schema.result import SolveResult
    from pipette_milp.solvers import solve
    from pipette_milp.verify import verify

__version__ = "0.1.0"

_HOME = {
    "Instance": "pipette_milp.schema.instance:Instance",
    "Plan": "pipette_milp.schema.plan:Plan",
    "SolveResult": "pipette_milp.schema.result:SolveResult",
    "load_instance": "pipette_milp.schema.instance:load_instance",
    "simulate": "pipette_milp.estimate:simulate_plan",
    "solve": "pipette_milp.solvers:solve",
    "verify": "pipette_milp.verify:verify",
}

__all__ = ["Instance", "Plan", "SolveResult", "load_instance", "simulate", "solve", "verify"]


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = _HOME[name].partition(":")
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
