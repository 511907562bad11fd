from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipette_milp import accelerate
from pipette_milp.errors import InputError
from pipette_milp.simulator import (
    compose_iteration,
    event_graph,
    finish_times,
    lane_finish_times,
    simulated_s,
)
from pipette_milp.simulator.graph import FORWARD
from tests.simulator_cases import random_durations

P, M, D = 4, 7, 3
GRAPH = event_graph("1f1b", P, 1, M, "exchange")
ZERO_BUBBLE = event_graph("zb-h1", P, 1, M, "async")
FIELDS = ("forward_s", "backward_s", "hop_forward_s", "hop_backward_s")


def arrays(seed: int = 0, lead: tuple[int, ...] = ()) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.random((*lead, P - 1 if name.startswith("hop") else P, D)) for name in FIELDS}


def test_candidates_at_once_equal_one_by_one() -> None:
    batch = arrays(lead=(2, 5))
    finish = finish_times(GRAPH, **batch)
    assert finish.shape == (2, 5, P, D)
    for index in np.ndindex(2, 5):
        one = finish_times(GRAPH, **{name: values[index] for name, values in batch.items()})
        np.testing.assert_array_equal(finish[index], one)


def test_leading_axes_and_replicas_broadcast() -> None:
    given = arrays()
    candidates = arrays(1, lead=(5,))["hop_forward_s"]
    finish = finish_times(
        GRAPH, **{**given, "hop_forward_s": candidates, "forward_s": given["forward_s"][:, :1]}
    )
    full = np.repeat(given["forward_s"][:, :1], D, axis=1)
    for index in range(5):
        one = finish_times(GRAPH, **{**given, "hop_forward_s": candidates[index], "forward_s": full})
        np.testing.assert_array_equal(finish[index], one)


def test_a_changed_replica_leaves_the_others_alone() -> None:
    """What local search relies on: evaluate the changed replicas only."""
    before, after = arrays(), arrays()
    after["hop_backward_s"][:, 1] *= 3.0
    old, new = finish_times(GRAPH, **before), finish_times(GRAPH, **after)
    np.testing.assert_array_equal(old[:, [0, 2]], new[:, [0, 2]])
    alone = finish_times(GRAPH, **{name: values[:, 1:2] for name, values in after.items()})
    np.testing.assert_array_equal(alone[:, 0], new[:, 1])
    assert (new[:, 1] > old[:, 1]).any()


@pytest.mark.parametrize("lanes", [1, 2, 31, 32, 33, 100])
@pytest.mark.skipif(not accelerate.AVAILABLE, reason="numba is not installed or turned off")
def test_compiled_equals_plain(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    given = {name: rng.random((P - 1 if name.startswith("hop") else P, lanes)) for name in FIELDS}
    for mode in ("exchange", "async"):
        graph = event_graph("1f1b", P, 1, M, mode)
        plain = finish_times(graph, **given, engine="numpy")
        np.testing.assert_array_equal(finish_times(graph, **given, engine="numba"), plain)


def test_kernel_uncompiled_and_with_more_predecessors() -> None:
    """The kernel's plain Python is its specification; no registered schedule waits for three yet."""
    from pipette_milp.simulator.compiled import _last_ends

    predecessors = np.array([[5, 5, 5], [5, 5, 5], [5, 5, 5], [0, 1, 2], [3, 5, 5]])
    rows = np.arange(5)
    kernels = {getattr(_last_ends, "py_func", _last_ends), _last_ends}
    for longest in range(3):
        stacked = np.ones((5, 2))
        stacked[longest, 1] = 7.0
        finish = np.empty((1, 2))
        for kernel in kernels:
            kernel(predecessors, rows, np.array([4]), stacked, finish, 2)
            assert finish.tolist() == [[3.0, 9.0]]


@pytest.mark.parametrize("engine", ["auto", "numpy"])
def test_stacked_durations_in_inner_loops(engine: Any) -> None:
    given = arrays()
    stacked = np.concatenate([given[name] for name in FIELDS])
    finish = lane_finish_times(GRAPH, stacked, engine)
    np.testing.assert_array_equal(finish, finish_times(GRAPH, **given))
    stacked[GRAPH.rows[FORWARD].start + 2, 1] = given["forward_s"][2, 1] = 9.0
    finish = lane_finish_times(GRAPH, stacked, engine)
    np.testing.assert_array_equal(finish, finish_times(GRAPH, **given))


def test_numba_by_name_is_not_replaced_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate, "AVAILABLE", False)
    with pytest.raises(ValueError, match="numba is not installed"):
        finish_times(GRAPH, **arrays(), engine="numba")
    expected = finish_times(GRAPH, **arrays(), engine="numpy")
    np.testing.assert_array_equal(finish_times(GRAPH, **arrays(), engine="auto"), expected)


def test_one_stage() -> None:
    graph = event_graph("1f1b", 1, 1, 5, "exchange")
    nothing = np.zeros((0, 2))
    finish = finish_times(graph, [[1.0, 2.0]], [[3.0, 3.0]], nothing, nothing)
    assert finish.tolist() == [[20.0, 25.0]]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("bad", [-1e-9, np.nan, np.inf])
def test_bad_values_are_refused_by_name(name: str, bad: float) -> None:
    given = arrays()
    given[name][1, 1] = bad
    with pytest.raises(InputError, match=f"^{name}: negative, infinite or not a number"):
        finish_times(GRAPH, **given)


@pytest.mark.parametrize("name", FIELDS)
def test_bad_shapes_are_refused_by_name(name: str) -> None:
    for values in (np.ones((P + 1, D)), np.ones(P)):
        with pytest.raises(InputError, match=f"{name}: shape"):
            finish_times(GRAPH, **{**arrays(), name: values})


def test_replicas_that_do_not_agree_are_refused() -> None:
    with pytest.raises(InputError, match="do not agree"):
        finish_times(GRAPH, **{**arrays(), "forward_s": np.ones((P, D + 1))})


def test_weight_gradient_exactly_where_it_is_a_task() -> None:
    with pytest.raises(InputError, match="weight_gradient_s: schedule 1f1b has no"):
        finish_times(GRAPH, **arrays(), weight_gradient_s=np.ones((P, D)))
    with pytest.raises(InputError, match="weight_gradient_s: schedule zb-h1 needs it"):
        finish_times(ZERO_BUBBLE, **arrays())


def test_every_problem_at_once() -> None:
    with pytest.raises(InputError) as caught:
        finish_times(
            GRAPH, **{**arrays(), "forward_s": np.ones((9, D)), "hop_forward_s": -np.ones((P - 1, D))}
        )
    assert [problem.path for problem in caught.value.problems] == ["forward_s", "hop_forward_s"]


def test_end_of_the_iteration() -> None:
    """Stage 1 is the last to synchronise; a longer exchange after stages 0 and 2 ends later still."""
    finish = np.array([[5.0, 6.0], [4.0, 3.0], [1.0, 2.0]])
    sync, optimizer, gather = np.array([1.0, 4.0, 1.0]), np.array([1.0, 2.0, 0.5]), np.array([0.5, 0.0, 2.0])
    assert compose_iteration(finish, sync, 0.5, optimizer, gather, 0.25) == pytest.approx(8 + 2.5 + 0.25)
    assert compose_iteration(finish, sync, 3.0, optimizer, gather, 0.25) == pytest.approx(7 + 3 + 2.5 + 0.25)
    turned = compose_iteration(finish[::-1], sync[::-1], 3.0, optimizer, gather, 0.25)
    assert turned == pytest.approx(7 + 3 + 2.5 + 0.25)


def test_end_of_the_iteration_in_batches() -> None:
    rng = np.random.default_rng(3)
    finish, sync = rng.random((6, P, D)), rng.random((6, P))
    embedding, optimizer, gather = rng.random(6), rng.random(P), rng.random(P)
    batch = compose_iteration(finish, sync, embedding, optimizer, gather, 0.1)
    for index in range(6):
        one = compose_iteration(finish[index], sync[index], embedding[index], optimizer, gather, 0.1)
        assert batch[index] == one


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("gradient_sync_s", np.ones(P + 1)),
        ("optimizer_s", np.full(P, -1.0)),
        ("parameter_gather_s", np.full(P, np.nan)),
        ("embedding_sync_s", -0.1),
        ("fixed_s", float("inf")),
    ],
)
def test_bad_tail_is_refused_by_name(field: str, bad: Any) -> None:
    durations = random_durations(GRAPH, D, np.random.default_rng(0))
    with pytest.raises(InputError, match=f"^{field}: "):
        simulated_s(GRAPH, replace(durations, **{field: bad}))
