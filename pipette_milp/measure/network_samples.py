"""What ranks saw while links were measured, and the document made of it. Needs no torch."""

from __future__ import annotations

import datetime
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

SHARED_BELOW = 0.9
"""Both directions at once attain less than this share of one alone: a warning."""
NODE_TOTAL_MARGIN = 1.1
"""A node that sends this much more in all than on its best pair needs a figure of its own."""
SINGLE_FLOW_BELOW = 0.9
"""One GPU alone attains less than this share of its node pair: its own ceiling is written."""
SPREAD_WARNING = 0.1
"""Relative spread of the repeats of one pair above which it is named."""


@dataclass(frozen=True)
class TransferSample:
    """One transfer as its sender saw it, from the first byte to the acknowledgement."""

    bytes: int
    side: int
    """0: the first node (or rank) of the pair sent, 1: the second."""
    flows: str
    """all ranks of the node, single, or both (all, in both directions at once)."""
    start_s: float
    """On the sender's clock."""
    end_s: float


@dataclass(frozen=True)
class _Transfers:
    """A sample with transfers, into the store and back."""

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What `to_json` made."""
        return cls(**{**value, "transfers": [TransferSample(**item) for item in value["transfers"]]})


@dataclass(frozen=True)
class PairSample(_Transfers):
    """What one rank saw of its node's pair with another node."""

    first: int
    second: int
    local: int
    node: int
    """Where the rank is: `first` or `second`."""
    latencies_s: list[float]
    transfers: list[TransferSample]
    failure: str | None
    look: int = 0
    """0 for the first time this pair was measured, 1 for the second."""


@dataclass(frozen=True)
class InNodeSample(_Transfers):
    """What one rank saw of a pair of local ranks."""

    node: int
    first: int
    second: int
    local: int
    latencies_s: list[float]
    transfers: list[TransferSample]
    failure: str | None
    look: int = 0


@dataclass(frozen=True)
class NodeSample:
    """One rank's part of a transfer between its node and several others at once."""

    node: int
    sends: bool
    moved_bytes: int
    start_s: float
    end_s: float

    def to_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> NodeSample:
        """What `to_json` made."""
        return cls(**value)


@dataclass(frozen=True)
class Link:
    """One direction between two nodes, or two ranks of a node."""

    latency_s: float
    bytes_per_s: float
    """Median over the repeats of the largest message, in the quickest look."""
    spread: float
    """(largest - smallest) / median of the repeats of one look, or the same of the looks if that is more."""
    by_size: dict[int, float]
    """bytes/s by bytes of one message, latency included."""
    single_bytes_per_s: float | None
    both_bytes_per_s: float | None
    looks_bytes_per_s: tuple[float, ...]
    """Of every look at the link the median over its repeats, quickest look first."""

    @property
    def disagreement(self) -> float:
        """By how much the quickest look is faster than the next one; infinite after one look."""
        if len(self.looks_bytes_per_s) == 1:
            return math.inf
        first, second, *_ = self.looks_bytes_per_s
        return first / second - 1.0

    def seen_again(self, later: Link) -> Link:
        """With another look, which measures the largest message only."""
        looks = tuple(sorted(self.looks_bytes_per_s + later.looks_bytes_per_s, reverse=True))
        # what the repeats differ by, and what the looks do
        spread = max(self.spread, later.spread, (looks[0] - looks[-1]) / looks[0])
        return replace(self, bytes_per_s=looks[0], spread=spread, looks_bytes_per_s=looks)


def links(
    samples: Iterable[PairSample | InNodeSample], failures: dict[tuple[int, int], str]
) -> dict[tuple[int, int], Link]:
    """Directed links (sender, receiver) from what the ranks of each pair saw; failed ones into ``failures``.

    Node totals count all sending ranks: from the first start to the last end. Of several looks at a pair the
    quickest counts, in each direction: what else ran during the others made the link look slower.
    """
    of_look: dict[tuple[int, int, int], list[PairSample | InNodeSample]] = defaultdict(list)
    for sample in samples:
        of_look[sample.first, sample.second, sample.look].append(sample)
    found: dict[tuple[int, int], Link] = {}
    for (first, second, look), seen in sorted(of_look.items()):
        broken = next((sample.failure for sample in seen if sample.failure is not None), None)
        ends = ((first, second), (second, first))
        if broken is not None:
            if look == 0:
                failures.update(dict.fromkeys(ends, broken))
            continue
        latency = statistics.median(value for sample in seen for value in sample.latencies_s)
        for side, ends_of_side in enumerate(ends):
            link = _link(latency, _by_kind(seen, side))
            known = found.get(ends_of_side)
            found[ends_of_side] = link if known is None else known.seen_again(link)
    return found


def _by_kind(
    seen: Iterable[PairSample | InNodeSample], side: int
) -> dict[tuple[int, str], list[list[TransferSample]]]:
    """By size and flows the repeats of one direction, each with the transfers of all ranks."""
    runs: dict[tuple[int, str], list[list[TransferSample]]] = defaultdict(list)
    for sample in seen:
        counted: dict[tuple[int, str], int] = defaultdict(int)
        for transfer in sample.transfers:
            if transfer.side != side:
                continue
            kind = transfer.bytes, transfer.flows
            repeat, counted[kind] = counted[kind], counted[kind] + 1
            if repeat == len(runs[kind]):
                runs[kind].append([])
            runs[kind][repeat].append(transfer)
    return runs


def _link(latency_s: float, runs: dict[tuple[int, str], list[list[TransferSample]]]) -> Link:
    largest = max(size for size, flows in runs if flows == "all")

    def rates(size: int, flows: str, round_trips: float) -> list[float]:
        """One figure a repeat; ``round_trips`` of latency are taken off its time."""
        return [
            size
            * len(members)
            / max(
                max(item.end_s for item in members)
                - min(item.start_s for item in members)
                - round_trips * 2 * latency_s,
                1e-9,
            )
            for members in runs.get((size, flows), [])
        ]

    attained = rates(largest, "all", 1.0)
    median = statistics.median(attained)
    single = rates(largest, "single", 1.0)
    # its size follows from the slower direction
    both = [rate for size, flows in runs if flows == "both" for rate in rates(size, "both", 1.0)]
    return Link(
        latency_s=latency_s,
        bytes_per_s=median,
        spread=(max(attained) - min(attained)) / median,
        looks_bytes_per_s=(median,),
        by_size={
            size: statistics.median(rates(size, flows, 0.5)) for size, flows in sorted(runs) if flows == "all"
        },
        single_bytes_per_s=statistics.median(single) if single else None,
        both_bytes_per_s=statistics.median(both) if both else None,
    )


def rates_of(found: dict[tuple[int, int], Link], count: int) -> list[list[float | None]]:
    """[N][N] bytes/s, row = sender; None on the diagonal and for failed pairs."""
    return _matrix(found, count, lambda link: link.bytes_per_s)


def unsettled_pairs(found: dict[tuple[int, int], Link], tolerance: float) -> list[tuple[int, int]]:
    """Pairs (lower node first) of which some direction's two quickest looks differ by more."""
    return sorted({(min(ends), max(ends)) for ends, link in found.items() if link.disagreement > tolerance})


def largest_sizes(samples: Iterable[PairSample]) -> dict[tuple[int, int], tuple[int, int]]:
    """Of every pair the largest message of either direction."""
    sizes: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for sample in samples:
        for transfer in sample.transfers:
            if transfer.flows == "all":
                of_pair = sizes[sample.first, sample.second]
                of_pair[transfer.side] = max(of_pair[transfer.side], transfer.bytes)
    return {pair: (up, down) for pair, (up, down) in sizes.items()}


def document(
    *,
    names: Sequence[str],
    ranks_per_node: int,
    transport: str,
    pairs: Sequence[PairSample],
    in_node: Sequence[InNodeSample],
    nodes: Sequence[NodeSample],
    time: datetime.datetime | None = None,
) -> dict[str, Any]:
    """The document of one measurement; its key ``network`` is a section of an instance.

    Beside it: ``time``, ``nodes``, ``spread`` and ``latency_s`` of every pair, ``by_size``, ``node_totals``,
    ``failed`` pairs with the reason, and ``warnings``.
    """
    failures: dict[tuple[int, int], str] = {}
    between = links(pairs, failures)
    count = len(names)
    warnings: list[str] = []
    network: dict[str, Any] = {}
    inside = _in_node(names, in_node, warnings)
    if inside is not None:
        network["intra_node"] = inside
    record: dict[str, Any] = {
        "kind": "network measurement",
        "time": (time or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds"),
        "transport": transport,
        "nodes": list(names),
        "ranks_per_node": ranks_per_node,
        "network": network,
    }
    if between:
        network["inter_node"] = {
            "bandwidth": {"unit": "B/s", "values": _matrix(between, count, lambda link: link.bytes_per_s)},
            "measures": "node_pair",
            "latency": statistics.median(link.latency_s for link in between.values()),
            "source": "measured",
        }
        record["spread"] = _matrix(between, count, lambda link: link.spread)
        record["latency_s"] = _matrix(between, count, lambda link: link.latency_s)
        record["by_size"] = _by_size(between)
        network["per_gpu_bandwidth"] = _single_flow(between)
        totals, network["node_bandwidth"] = _node_totals(names, between, nodes, warnings)
        record["node_totals"] = totals
        warnings += _oddities(names, between)
    record["failed"] = [
        {"from": names[a], "to": names[b], "reason": reason} for (a, b), reason in sorted(failures.items())
    ]
    record["warnings"] = warnings
    return record


def _matrix(found: dict[tuple[int, int], Link], count: int, value: Any) -> list[list[float | None]]:
    return [[value(found[a, b]) if (a, b) in found else None for b in range(count)] for a in range(count)]


def _by_size(found: dict[tuple[int, int], Link]) -> list[dict[str, float]]:
    """Median over the links of rate / rate of the largest message, for sizes that all links measured."""
    shares: dict[int, list[float]] = defaultdict(list)
    for link in found.values():
        for size, rate in link.by_size.items():
            shares[size].append(rate / link.bytes_per_s)
    return [
        {"bytes": size, "efficiency": min(1.0, statistics.median(values))}
        for size, values in sorted(shares.items())
        if len(values) == len(found)
    ]


def _in_node(names: Sequence[str], samples: Sequence[InNodeSample], warnings: list[str]) -> Any:
    """Short form for all nodes: the median; unequal nodes are named."""
    if not samples:
        return None
    rates: list[float] = []
    latencies: list[float] = []
    of_node: dict[int, float] = {}
    for node in sorted({sample.node for sample in samples}):
        failures: dict[tuple[int, int], str] = {}
        found = links([sample for sample in samples if sample.node == node], failures)
        for (a, b), reason in failures.items():
            warnings.append(f"{names[node]}: rank {a} to rank {b} inside the node failed: {reason}")
        if found:
            of_node[node] = statistics.median(link.bytes_per_s for link in found.values())
            rates += [link.bytes_per_s for link in found.values()]
            latencies += [link.latency_s for link in found.values()]
    if not rates:
        return None
    middle = statistics.median(rates)
    for node, rate in of_node.items():
        if rate < middle / 1.5:
            warnings.append(
                f"{names[node]}: {rate:.3g} bytes/s inside the node, the median node has {middle:.3g}"
            )
    return {"bandwidth": middle, "latency": statistics.median(latencies)}


def _single_flow(found: dict[tuple[int, int], Link]) -> float | None:
    """Ceiling of one GPU, where it is below what its node attains with all GPUs."""
    single = [link.single_bytes_per_s for link in found.values() if link.single_bytes_per_s is not None]
    if not single:
        return None
    best = max(single)
    whole = max(link.bytes_per_s for link in found.values())
    return best if best < SINGLE_FLOW_BELOW * whole else None


def _node_totals(
    names: Sequence[str],
    found: dict[tuple[int, int], Link],
    samples: Sequence[NodeSample],
    warnings: list[str],
) -> tuple[dict[str, dict[str, float]], float | None]:
    """bytes/s that each node sends and receives in all, and what to write as ``node_bandwidth``.

    An instance takes the best pair of a node as its total unless told otherwise, and can be told one figure
    for all nodes.
    """
    of_node: dict[tuple[int, bool], list[NodeSample]] = defaultdict(list)
    for sample in samples:
        of_node[sample.node, sample.sends].append(sample)
    totals: dict[tuple[int, bool], float] = {}
    best: dict[tuple[int, bool], float] = {}
    for (node, sends), seen in of_node.items():
        totals[node, sends] = statistics.median(
            sum(item.moved_bytes for item in members)
            / (max(item.end_s for item in members) - min(item.start_s for item in members))
            for members in _split_by_repeat(seen)
        )
        rates = [link.bytes_per_s for (a, b), link in found.items() if (a if sends else b) == node]
        best[node, sends] = max(rates)
    larger = [key for key in totals if totals[key] > NODE_TOTAL_MARGIN * best[key]]
    written = None
    if larger and len(larger) == len(totals):
        written = min(totals.values())
    elif larger:
        listed = ", ".join(sorted({names[node] for node, _ in larger}))
        warnings.append(
            f"{listed}: more in all than on the best pair, other nodes not so; the instance counts the best "
            "pair (a node type with `nics` says more)"
        )
    table: dict[str, dict[str, float]] = defaultdict(dict)
    for (node, sends), rate in sorted(totals.items()):
        table[names[node]]["sends" if sends else "receives"] = rate
    return dict(table), written


def _split_by_repeat(seen: Sequence[NodeSample]) -> list[list[NodeSample]]:
    """Samples of one node grouped into repeats, which do not overlap in time."""
    repeats: list[list[NodeSample]] = []
    for sample in sorted(seen, key=lambda item: item.start_s):
        if repeats and sample.start_s < max(item.end_s for item in repeats[-1]):
            repeats[-1].append(sample)
        else:
            repeats.append([sample])
    return repeats


def _oddities(names: Sequence[str], found: dict[tuple[int, int], Link]) -> list[str]:
    """Links whose repeats differ, and pairs whose directions share what they have."""
    unsteady = [(a, b, link.spread) for (a, b), link in found.items() if link.spread > SPREAD_WARNING]
    said = []
    if unsteady:
        a, b, spread = max(unsteady, key=lambda item: item[2])
        said.append(
            f"{len(unsteady)} of {len(found)} links vary by more than {SPREAD_WARNING:.0%} between repeats, "
            f"most {names[a]} to {names[b]}: {spread:.0%}"
        )
    shared = [
        (a, b)
        for (a, b), link in found.items()
        # of a pair's directions only the slower one: the other ends together with it
        if link.both_bytes_per_s is not None
        and link.bytes_per_s <= found[b, a].bytes_per_s
        and link.both_bytes_per_s < SHARED_BELOW * link.bytes_per_s
    ]
    if shared:
        a, b = shared[0]
        said.append(
            f"{len(shared)} node pairs are slower while both directions are in use, such as {names[a]} and "
            f"{names[b]}: plans are simulated with both directions at full speed"
        )
    return said
