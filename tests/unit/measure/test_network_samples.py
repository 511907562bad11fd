"""From what ranks saw to the document: rates, totals, spread, failures."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from pipette_milp.measure.network_samples import (
    InNodeSample,
    NodeSample,
    PairSample,
    TransferSample,
    document,
    largest_sizes,
    links,
    unsettled_pairs,
)
from pipette_milp.schema.network import NetworkSection

LATENCY = 1e-3


def sample(
    first: int, second: int, local: int, node: int, rate: float, *, repeats: int = 3, single: bool = False
) -> PairSample:
    """What one rank sees when its side attains ``rate`` bytes/s per rank."""
    side = 0 if node == first else 1
    transfers = []
    clock = 10.0 * node
    for size in (4096, 10_000_000):
        for _ in range(repeats):
            seconds = size / rate + 2 * LATENCY
            transfers.append(TransferSample(size, side, "all", clock, clock + seconds))
            clock += 2 * seconds
    if single and local == 0:
        seconds = 10_000_000 / rate + 2 * LATENCY
        transfers.append(TransferSample(10_000_000, side, "single", clock, clock + seconds))
    pings = [LATENCY] * 5 if local == 0 and node == first else []
    return PairSample(first, second, local, node, pings, transfers, None)


def measured(pairs: list[PairSample], names: list[str], **given: Any) -> dict[str, Any]:
    return document(
        names=names,
        ranks_per_node=given.get("ranks", 1),
        transport="test",
        pairs=pairs,
        in_node=given.get("in_node", []),
        nodes=given.get("nodes", []),
        time=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    )


def two_nodes(rate_up: float, rate_down: float, ranks: int = 1) -> list[PairSample]:
    return [
        sample(0, 1, local, node, rate)
        for local in range(ranks)
        for node, rate in ((0, rate_up), (1, rate_down))
    ]


def test_both_directions_and_latency() -> None:
    found = measured(two_nodes(2e7, 5e6), ["a", "b"])
    inter_node = found["network"]["inter_node"]
    assert inter_node["bandwidth"]["values"][0][1] == pytest.approx(2e7)
    assert inter_node["bandwidth"]["values"][1][0] == pytest.approx(5e6)
    assert inter_node["latency"] == LATENCY
    assert found["time"] == "2026-01-02T00:00:00+00:00"
    assert found["failed"] == []
    NetworkSection.model_validate(found["network"])


def test_all_ranks_of_a_node_count_together() -> None:
    found = measured(two_nodes(2e7, 2e7, ranks=4), ["a", "b"], ranks=4)
    assert found["network"]["inter_node"]["bandwidth"]["values"][0][1] == pytest.approx(8e7)
    assert found["network"]["inter_node"]["measures"] == "node_pair"


def test_ranks_that_start_apart_are_timed_from_first_to_last() -> None:
    late = sample(0, 1, 1, 0, 2e7)
    shifted = [
        TransferSample(t.bytes, t.side, t.flows, t.start_s + 0.5, t.end_s + 0.5) for t in late.transfers
    ]
    pairs = [sample(0, 1, 0, 0, 2e7), PairSample(0, 1, 1, 0, [], shifted, None)]
    pairs += [sample(0, 1, local, 1, 2e7) for local in range(2)]
    rate = links(pairs, {})[0, 1].bytes_per_s
    assert rate == pytest.approx(2e7 / (0.5 + 0.5))


def disturbed(look: int, factors: list[float], rate: float = 2e7) -> list[PairSample]:
    """A look at a pair whose first node's transfers took so many times as long as they should."""
    clean = [sample(0, 1, 0, node, rate) for node in (0, 1)]
    slow = []
    for transfer, factor in zip(clean[0].transfers, [1.0, 1.0, 1.0, *factors], strict=True):
        seconds = transfer.end_s - transfer.start_s
        slow.append(replace(transfer, end_s=transfer.start_s + factor * seconds))
    return [replace(clean[0], transfers=slow, look=look), replace(clean[1], look=look)]


def test_of_several_looks_the_quickest_counts_in_each_direction() -> None:
    slow, quick = disturbed(0, [1.3, 1.3, 1.3]), disturbed(1, [1.0, 1.0, 1.2])
    once = links(slow, {})
    # of the time measured, one round trip is not the link's
    assert once[0, 1].bytes_per_s == pytest.approx(1e7 / (1.3 * (0.5 + 2 * LATENCY) - 2 * LATENCY))
    assert unsettled_pairs(once, 0.03) == [(0, 1)]  # one look says nothing about another
    twice = links(slow + quick, {})
    assert twice[0, 1].bytes_per_s == pytest.approx(2e7)
    assert twice[1, 0].bytes_per_s == pytest.approx(2e7)
    assert twice[0, 1].spread > 0.2
    assert unsettled_pairs(twice, 0.03) == [(0, 1)]
    settled = links(slow + quick + disturbed(2, [1.0, 1.01, 1.02]), {})
    assert settled[0, 1].bytes_per_s == pytest.approx(2e7)
    assert unsettled_pairs(settled, 0.03) == []


def test_largest_sizes() -> None:
    assert largest_sizes(two_nodes(2e7, 5e6, ranks=2)) == {(0, 1): (10_000_000, 10_000_000)}


def test_a_second_look_that_fails_leaves_what_the_first_one_saw() -> None:
    first = disturbed(0, [1.0, 1.2, 1.3])
    failures: dict[tuple[int, int], str] = {}
    found = links([*first, PairSample(0, 1, 0, 0, [], [], "gone", look=1)], failures)
    assert found == links(first, {})
    assert failures == {}


def test_spread_and_unsteady_links() -> None:
    unsteady = sample(0, 1, 0, 0, 2e7)
    slow = unsteady.transfers[-1]
    slower = TransferSample(slow.bytes, 0, "all", slow.start_s, slow.start_s + 1.0 + 2 * LATENCY)
    pairs = [PairSample(0, 1, 0, 0, [LATENCY], [*unsteady.transfers[:-1], slower], None)]
    pairs.append(sample(0, 1, 0, 1, 2e7))
    found = measured(pairs, ["a", "b"])
    assert found["spread"][0][1] == pytest.approx(0.5)
    assert any("a to b: 50%" in warning for warning in found["warnings"])
    assert found["network"]["inter_node"]["bandwidth"]["values"][0][1] == pytest.approx(2e7)


def test_failed_pairs_are_named_and_the_rest_is_kept() -> None:
    pairs = two_nodes(2e7, 2e7)
    pairs += [sample(0, 2, 0, 0, 1e7), PairSample(0, 2, 0, 2, [], [], "connection refused")]
    pairs += [sample(1, 2, 0, 1, 3e7), sample(1, 2, 0, 2, 3e7)]
    found = measured(pairs, ["a", "b", "c"])
    values = found["network"]["inter_node"]["bandwidth"]["values"]
    assert values[0][2] is None
    assert values[2][0] is None
    assert values[1][2] == pytest.approx(3e7)
    assert found["failed"] == [
        {"from": "a", "to": "c", "reason": "connection refused"},
        {"from": "c", "to": "a", "reason": "connection refused"},
    ]


def test_nothing_measured_at_all() -> None:
    found = measured([PairSample(0, 1, 0, node, [], [], "no route") for node in (0, 1)], ["a", "b"])
    assert "inter_node" not in found["network"]
    assert len(found["failed"]) == 2


def test_one_gpu_alone_below_the_pair_gets_a_ceiling() -> None:
    pairs = [sample(0, 1, local, node, 1e7, single=True) for local in range(4) for node in (0, 1)]
    found = measured(pairs, ["a", "b"], ranks=4)
    assert found["network"]["per_gpu_bandwidth"] == pytest.approx(1e7)
    alone = [sample(0, 1, 0, node, 1e7, single=True) for node in (0, 1)]
    assert measured(alone, ["a", "b"])["network"]["per_gpu_bandwidth"] is None


def hub(node: int, rate: float, *, sends: bool = True) -> list[NodeSample]:
    return [NodeSample(node, sends, 10_000_000, start, start + 1e7 / rate) for start in (0.0, 100.0, 200.0)]


def all_pairs(count: int, rate: float) -> list[PairSample]:
    return [sample(a, b, 0, node, rate) for a in range(count) for b in range(a + 1, count) for node in (a, b)]


def test_nodes_that_all_send_more_than_a_pair_get_a_figure() -> None:
    nodes = [item for node in range(3) for sends in (True, False) for item in hub(node, 2.5e7, sends=sends)]
    found = measured(all_pairs(3, 1e7), ["a", "b", "c"], nodes=nodes)
    assert found["network"]["node_bandwidth"] == pytest.approx(2.5e7)
    assert found["node_totals"]["b"]["sends"] == pytest.approx(2.5e7)


def test_nodes_limited_by_their_best_pair_need_none() -> None:
    nodes = [item for node in range(3) for sends in (True, False) for item in hub(node, 1e7, sends=sends)]
    found = measured(all_pairs(3, 1e7), ["a", "b", "c"], nodes=nodes)
    assert found["network"]["node_bandwidth"] is None
    assert found["warnings"] == []


def test_unlike_nodes_are_named() -> None:
    nodes = [item for node, rate in enumerate((1e7, 1e7, 3e7)) for item in hub(node, rate)]
    found = measured(all_pairs(3, 1e7), ["a", "b", "c"], nodes=nodes)
    assert found["network"]["node_bandwidth"] is None
    assert any(warning.startswith("c: more in all") for warning in found["warnings"])


def test_inside_nodes_the_median_and_the_slow_one() -> None:
    in_node = []
    for node, rate in enumerate((1e9, 1e9, 2e8)):
        for local in (0, 1):
            seen = sample(0, 1, 0, local, rate)
            in_node.append(
                InNodeSample(node, 0, 1, local, [LATENCY] if local == 0 else [], seen.transfers, None)
            )
    found = measured(two_nodes(2e7, 2e7), ["a", "b", "c"], in_node=in_node)
    assert found["network"]["intra_node"]["bandwidth"] == pytest.approx(1e9)
    assert any(warning.startswith("c: ") for warning in found["warnings"])


def test_samples_survive_the_store() -> None:
    pair = sample(0, 1, 0, 0, 1e7)
    assert PairSample.from_json(pair.to_json()) == pair
    inside = InNodeSample(1, 0, 1, 0, [1.0], pair.transfers, None)
    assert InNodeSample.from_json(inside.to_json()) == inside
    node = NodeSample(0, True, 5, 0.0, 1.0)
    assert NodeSample.from_json(node.to_json()) == node
