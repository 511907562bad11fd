"""Programs of ranks: every message has two ends, and played on a clock they take the simulated time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pipette_milp.assessment import assess
from pipette_milp.errors import InputError, PlanError
from pipette_milp.measure.program import Exchange, ReplayPlan
from tests.replay_cases import costs_of, played, random_plan, replayable

SCHEDULES = [
    ("gpipe", "exchange", 1),
    ("gpipe", "async", 1),
    ("1f1b", "exchange", 1),
    ("1f1b", "async", 1),
    ("interleaved", "async", 2),
    ("zb-h1", "async", 1),
]


def messages(wanted: ReplayPlan) -> list[tuple[int, Any]]:
    found = []
    for program in wanted.programs:
        for step in program.steps:
            listed = step.messages if isinstance(step, Exchange) else (step.needs, step.sends)
            found += [(program.rank, message) for message in listed if message is not None]
    return found


@pytest.mark.parametrize(("schedule", "transfers", "chunks"), SCHEDULES)
@pytest.mark.parametrize(("pipeline", "tensor", "data"), [(2, 1, 4), (4, 2, 1), (2, 2, 2), (4, 1, 2)])
def test_played_programs_take_the_simulated_time(
    schedule: str, transfers: str, chunks: int, pipeline: int, tensor: int, data: int
) -> None:
    costs = costs_of(4, 2, model={"layers": 8})
    layers = (8 // (pipeline * chunks),) * (pipeline * chunks)
    plan = random_plan(
        costs,
        layers,
        pipeline=pipeline,
        virtual_stages=chunks,
        tensor=tensor,
        data=data,
        num_micro_batches=4,
        micro_batch=4 // data,
        schedule=schedule,
        pipeline_transfers=transfers,
    )
    wanted = replayable(costs, plan)
    events = played(wanted)
    simulated = assess(costs, plan.configuration, plan.placement).simulated_s
    assert max(of_rank[-1].end_s for of_rank in events) == pytest.approx(simulated, rel=1e-12)


@pytest.mark.parametrize(("schedule", "transfers", "chunks"), SCHEDULES)
def test_every_message_has_two_ends(schedule: str, transfers: str, chunks: int) -> None:
    costs = costs_of(4, 2, model={"layers": 8})
    plan = random_plan(
        costs,
        (8 // (2 * chunks),) * (2 * chunks),
        pipeline=2,
        virtual_stages=chunks,
        tensor=2,
        data=2,
        num_micro_batches=8,
        schedule=schedule,
        pipeline_transfers=transfers,
    )
    counts = Counter(
        (rank, m.partner, m.kind, m.boundary, m.micro_batch)
        if m.sends
        else (m.partner, rank, m.kind, m.boundary, m.micro_batch)
        for rank, m in messages(replayable(costs, plan))
    )
    assert set(counts.values()) == {2}
    boundaries = 2 * chunks - 1
    assert len(counts) == 2 * boundaries * 8 * 4  # directions, boundaries, micro-batches, cells' ranks


def test_bytes_are_those_of_the_cost_model() -> None:
    costs = costs_of(4, 2, model={"layers": 8, "tied_embeddings": True})
    plan = random_plan(costs, (4, 4), tensor=2, data=2, num_micro_batches=8)
    wanted = replayable(costs, plan)
    tables = costs.tables(plan.configuration)
    first, last = wanted.programs[0], wanted.programs[-1]
    assert first.hop_bytes == round(tables.hop_bytes)
    sync = first.sync
    assert sync is not None
    # an all-reduce sends 2 (d-1)/d of the buffer over every edge
    sent = tables.sync.bytes_per_layer * 4 + tables.sync.bytes_extra[0]
    assert sync.buffer_bytes * 2 * (2 - 1) / 2 == pytest.approx(sent)
    assert sync.passes == ("reduce-scatter", "all-gather")
    assert first.embedding_partner == 4
    assert last.embedding_partner == 3
    assert first.embedding_bytes == round(tables.embedding_bytes)


def test_sharded_optimiser_scatters_then_gathers() -> None:
    costs = costs_of(4, 2, training={"data_sharding": "optimizer"})
    plan = random_plan(costs, (6,), data=8, num_micro_batches=2, data_sharding="optimizer")
    program = replayable(costs, plan).programs[0]
    assert program.sync is not None
    assert program.sync.passes == ("reduce-scatter",)
    assert program.gather is not None
    assert program.gather.passes == ("all-gather",)


def test_one_replica_has_no_ring_and_one_stage_no_messages() -> None:
    costs = costs_of(2, 2)
    alone = replayable(costs, random_plan(costs, (3, 3)))
    assert all(program.sync is None for program in alone.programs)
    flat = replayable(costs, random_plan(costs, (6,), data=4, num_micro_batches=4))
    assert messages(flat) == []


def test_the_order_of_a_result_is_followed() -> None:
    costs = costs_of(2, 2, training={"global_batch_size": 2})
    plan = random_plan(costs, (3, 3), num_micro_batches=2, pipeline_transfers="async", schedule="gpipe")
    order = [
        [["F", 0, 1], ["F", 0, 0], ["B", 0, 1], ["B", 0, 0]],
        [["F", 1, 1], ["F", 1, 0], ["B", 1, 1], ["B", 1, 0]],
    ]
    steps = replayable(costs, plan, order).programs[0].steps
    assert [step.micro_batch for step in steps if not isinstance(step, Exchange)] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([[["F", 0, 0]]], "has 1 stages"),
        ([[["F", 0, 0]], [["F", 1, 0], ["B", 1, 0]]], r"order\[0\]"),
        ([[["F", 0, 0], ["B", 0, 0], ["B", 0, 0]], [["F", 1, 0], ["B", 1, 0]]], r"order\[0\]"),
    ],
)
def test_an_order_that_loses_or_repeats_tasks(order: list[Any], message: str) -> None:
    costs = costs_of(2, 2, training={"global_batch_size": 1})
    plan = random_plan(costs, (3, 3), num_micro_batches=1)
    with pytest.raises(PlanError, match=message):
        replayable(costs, plan, order)


def test_overlapped_reduction_is_refused_by_name() -> None:
    costs = costs_of(4, 2, model={"vocab_size": 400_000}, training={"overlap": {"gradient_reduce": True}})
    plan = random_plan(costs, (6,), data=8, num_micro_batches=2, overlap={"gradient_reduce": True})
    with pytest.raises(InputError, match=r"overlap\.gradient_reduce"):
        replayable(costs, plan)
