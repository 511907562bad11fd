"""Launched ranks take the plan's places on their node, whatever order the launcher numbers them in."""

from __future__ import annotations

import pytest

from pipette_milp.errors import InputError
from pipette_milp.measure.assignment import assign, same_host
from pipette_milp.measure.program import ReplayPlan
from pipette_milp.schema.plan import Plan
from tests.replay_cases import costs_of, random_plan, replayable


@pytest.fixture(scope="module")
def wanted() -> ReplayPlan:
    costs = costs_of(3, 2)
    plan = random_plan(costs, (2, 2, 2), data=2, num_micro_batches=8)
    gpus = (5, 0, 2, 1, 4, 3)  # nodes 2 0 1 0 2 1
    return replayable(costs, Plan(configuration=plan.configuration, placement={"gpu_of_rank": gpus}))


def test_in_node_order(wanted: ReplayPlan) -> None:
    hosts = ["node-000", "node-000", "node-001", "node-001", "node-002", "node-002"]
    found = assign(wanted, hosts)
    assert found.launched_of_plan == (5, 0, 2, 1, 4, 3)
    assert [found.plan_of_launched[rank] for rank in found.launched_of_plan] == list(range(6))
    assert found.by_name


def test_any_launch_order_and_domains(wanted: ReplayPlan) -> None:
    hosts = ["node-002.x", "node-000.x", "node-001.x", "node-002.x", "node-001.x", "node-000.x"]
    found = assign(wanted, hosts)
    for plan_rank, rank in enumerate(found.launched_of_plan):
        assert same_host(wanted.node_names[wanted.node_of_rank[plan_rank]], hosts[rank])


def test_hosts_with_other_names_are_taken_in_order(wanted: ReplayPlan) -> None:
    found = assign(wanted, ["a", "a", "b", "b", "c", "c"])
    assert not found.by_name
    assert found.launched_of_plan == (5, 0, 2, 1, 4, 3)


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        (["a"] * 4, "the plan has 6 ranks, the launcher started 4: start 6"),
        (["a"] * 6, "the plan uses 3 nodes, ranks were started on 1: a"),
        (["node-000", "node-000", "node-001", "node-001", "x", "x"], "no ranks were started on node-002"),
        (
            ["node-000", "node-000", "node-000", "node-001", "node-002", "node-002"],
            "node-001: the plan has 2 ranks there, the launcher started 1",
        ),
    ],
)
def test_ranks_that_do_not_fit(wanted: ReplayPlan, hosts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign(wanted, hosts)
