"""Pipeline schedules, one per file, found by name.

The registry holds import paths, so that listing the names loads nothing else.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipette_milp.errors import IllegalConfigurationError, Problem

if TYPE_CHECKING:
    from pipette_milp.schedules.base import Schedule

SCHEDULES = {
    "gpipe": "pipette_milp.schedules.gpipe:GPipe",
    "1f1b": "pipette_milp.schedules.one_forward_one_backward:OneForwardOneBackward",
    "interleaved": "pipette_milp.schedules.interleaved:Interleaved",
    "zb-h1": "pipette_milp.schedules.zb_h1:ZeroBubbleH1",
}


@cache
def get_schedule(name: str) -> Schedule:
    """The schedule of that name.

    Raises:
        IllegalConfigurationError: there is none; the message lists those known.
    """
    if name not in SCHEDULES:
        raise IllegalConfigurationError(
            Problem("schedule", f"unknown schedule {name!r}: accepted: {', '.join(SCHEDULES)}")
        )
    module, attribute = SCHEDULES[name].split(":")
    schedule: Schedule = getattr(import_module(module), attribute)()
    return schedule
