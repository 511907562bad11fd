from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipette_milp.cost.durations import Durations
from pipette_milp.errors import InputError
from pipette_milp.simulator import event_graph, simulate

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from pipette_milp import plots

from .cases import solved


def uniform(schedule: str, p: int, m: int, mode: str) -> Durations:
    tasks, hops, tail = np.full((p, 2), 0.01), np.full((p - 1, 2), 0.001), np.full(p, 0.02)
    weight_gradient = tasks if schedule == "zb-h1" else None
    return Durations(tasks, 2 * tasks, weight_gradient, hops, hops, tail, 0.01, tail, tail, 0.01)


def test_eight_stages_and_32_micro_batches_are_readable(tmp_path: Path) -> None:
    """Every task carries its number, and no number is wider than its bar."""
    p, m = 8, 32
    timeline = simulate(event_graph("1f1b", p, 1, m, "exchange"), uniform("1f1b", p, m, "exchange"))
    figure = plots.timeline(timeline)
    figure.savefig(tmp_path / "timeline.png", dpi=100)
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"stage {s}" for s in range(p)]
    labels = [text for text in axes.texts if text.get_text().isdigit()]
    assert len(labels) == 2 * p * m
    renderer = FigureCanvasAgg(figure).get_renderer()
    narrowest = axes.transData.transform([(0.01, 0.0)])[0][0] - axes.transData.transform([(0.0, 0.0)])[0][0]
    assert max(label.get_window_extent(renderer).width for label in labels) < narrowest


def test_other_schedules_and_the_legend() -> None:
    timeline = simulate(event_graph("zb-h1", 4, 1, 6, "async"), uniform("zb-h1", 4, 6, "async"))
    figure = plots.timeline(timeline, replica=1, title="a title")
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "a title"
    entries = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"weight gradient", "critical path", "embedding sync"} <= entries
    assert "exchange" not in entries


def test_replica_that_is_none_is_refused() -> None:
    timeline = simulate(event_graph("1f1b", 2, 1, 2, "async"), uniform("1f1b", 2, 2, "async"))
    with pytest.raises(InputError, match="replica: 2"):
        plots.timeline(timeline, replica=2)


def test_a_window_shows_a_part_only() -> None:
    timeline = simulate(event_graph("1f1b", 2, 1, 8, "exchange"), uniform("1f1b", 2, 8, "exchange"))
    figure = plots.timeline(timeline, window_s=(0.0, 0.05))
    (axes,) = figure.axes
    assert axes.get_xlim() == (0.0, 0.05)
    assert {text.get_text() for text in axes.texts} <= {"0", "1", "2"}
    with pytest.raises(InputError, match="window_s"):
        plots.timeline(timeline, window_s=(0.2, 0.2))


def test_a_result_is_drawn_from_its_durations() -> None:
    _, result = solved()
    (axes,) = plots.timeline(result).axes
    assert f"{result.simulated_s:.4g} s" in axes.get_title(loc="left")
    _, other = solved("tiny-4x1-v100-slow")  # four stages, one replica
    assert other.plan is not None
    assert result.plan is not None
    assert other.plan.configuration.num_gpus != result.plan.configuration.num_gpus
    with pytest.raises(InputError, match=r"durations\.forward_s"):
        plots.timeline(result.model_copy(update={"plan": other.plan}))
