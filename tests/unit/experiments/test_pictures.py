"""Pictures of comparisons whose runs are out of the ordinary."""

from __future__ import annotations

import io

import pytest

from .test_statistics import record

pytest.importorskip("matplotlib")

from pipette_milp.experiments import plots


def test_a_plan_that_came_after_the_time_limit_is_no_line() -> None:
    """A solver may overrun its limit: its run counts, but over the time shown it has nothing."""
    late = record("slow", 2.0, trace=[[10.5, 2.0, None]])
    figure = plots.gap_over_time([record("quick", 2.0), late], "aaaa")
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == ["quick"]
