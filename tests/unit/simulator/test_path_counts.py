from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.simulator import (
    PathCounts,
    event_graph,
    finish_times,
    longest_path,
    path_counts,
    path_counts_batch,
)
from tests.simulator_cases import SCHEDULE_MODES, random_durations, random_use


def length(counts: PathCounts, *durations: np.ndarray | None) -> np.ndarray:
    """counts . durations over the last axis."""
    parts = zip(
        (counts.forward, counts.backward, counts.hop_forward, counts.hop_backward, counts.weight_gradient),
        durations,
        strict=True,
    )
    return np.asarray(sum((n * seconds).sum(axis=-1) for n, seconds in parts if seconds is not None))


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_tight_where_traced_and_never_above_elsewhere(schedule: str, mode: str) -> None:
    rng = np.random.default_rng(8)
    for _ in range(60):
        graph = event_graph(schedule, *random_use(schedule, rng), mode)
        stages = list(range(graph.pipeline))
        here, there = (random_durations(graph, 6, rng) for _ in range(2))

        def vectors(durations) -> list[np.ndarray | None]:
            fields = ("forward_s", "backward_s", "hop_forward_s", "hop_backward_s", "weight_gradient_s")
            return [None if (a := getattr(durations, name)) is None else a.T for name in fields]

        f, b, hf, hb, w = vectors(here)
        counts = path_counts_batch(graph, f, b, hf, hb, stages, w)
        for durations, tight in ((here, True), (there, False)):
            f2, b2, hf2, hb2, w2 = vectors(durations)
            seconds = [None if a is None else a[:, np.newaxis] for a in (f2, b2, hf2, hb2, w2)]
            cut = length(counts, *seconds)
            columns = [None if a is None else a[..., np.newaxis] for a in (f2, b2, hf2, hb2, w2)]
            finish = finish_times(graph, *columns)[..., 0]
            if tight:
                np.testing.assert_allclose(cut, finish, rtol=1e-12, atol=1e-12)
            else:
                assert (cut <= finish * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize(("schedule", "mode"), SCHEDULE_MODES)
def test_batch_single_and_both_engines_agree(schedule: str, mode: str) -> None:
    rng = np.random.default_rng(9)
    graph = event_graph(schedule, *random_use(schedule, rng), mode)
    durations = random_durations(graph, 4, rng)
    w = None if durations.weight_gradient_s is None else durations.weight_gradient_s.T
    given = (
        durations.forward_s.T,
        durations.backward_s.T,
        durations.hop_forward_s.T,
        durations.hop_backward_s.T,
    )
    plain = path_counts_batch(graph, *given, 0, w, engine="numpy")
    auto = path_counts_batch(graph, *given, 0, w)
    listed = path_counts_batch(graph, *given, [graph.pipeline - 1, 0], w)
    for name in ("forward", "backward", "weight_gradient", "hop_forward", "hop_backward"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(auto, name))
        np.testing.assert_array_equal(getattr(plain, name), getattr(listed, name)[:, 1])
        for k in range(4):
            one = path_counts(graph, *(a[k] for a in given), 0, None if w is None else w[k])
            np.testing.assert_array_equal(getattr(one, name), getattr(plain, name)[k])


@pytest.mark.parametrize("engine", ["numpy", "auto"])
def test_in_blocks_of_lanes(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    graph = event_graph("1f1b", 4, 1, 6, "exchange")
    rng = np.random.default_rng(10)
    given = [rng.random((7, rows)) for rows in (4, 4, 3, 3)]
    whole = path_counts_batch(graph, *given, [0, 3], engine=engine)
    columns = [values[..., np.newaxis] for values in given]
    finish = finish_times(graph, *columns, engine=engine)
    monkeypatch.setattr(longest_path, "ENDS_BYTES", 2 * 8 * (graph.num_nodes + 1))
    blocks = path_counts_batch(graph, *given, [0, 3], engine=engine)
    for name in ("forward", "backward", "weight_gradient", "hop_forward", "hop_backward"):
        np.testing.assert_array_equal(getattr(blocks, name), getattr(whole, name))
    np.testing.assert_array_equal(finish_times(graph, *columns, engine=engine), finish)


def test_no_vectors_no_cuts() -> None:
    graph = event_graph("1f1b", 4, 1, 6, "exchange")
    counts = path_counts_batch(graph, *(np.ones((0, rows)) for rows in (4, 4, 3, 3)), 0)
    assert counts.forward.shape == (0, 4)


def test_counts_without_hops_are_the_pipeline() -> None:
    """1F1B, uniform, no communication, to stage 0: M + p - 1 forwards and as many backwards."""
    p, m = 4, 8
    counts = path_counts(event_graph("1f1b", p, 1, m, "async"), [1.0] * p, [2.0] * p, [0.0] * 3, [0.0] * 3, 0)
    assert counts.forward.sum() == counts.backward.sum() == m + p - 1
    assert counts.forward.dtype.kind == "i"
    assert not counts.weight_gradient.any()


@pytest.mark.parametrize("stage", [-1, 4, [0, 4], []])
def test_stage_that_is_none_is_refused(stage: int | list[int]) -> None:
    graph = event_graph("1f1b", 4, 1, 8, "async")
    with pytest.raises(InputError, match="end_stage"):
        path_counts_batch(graph, np.ones((2, 4)), np.ones((2, 4)), np.ones((2, 3)), np.ones((2, 3)), stage)
