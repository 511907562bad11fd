"""Links measured by the ranks themselves: all pairs of nodes in rounds of disjoint pairs, then nodes in all.

All ranks of a node send at the same time, each to its counterpart, because that is what a plan's tensor ranks
and replicas do; a figure is therefore that of a node pair, all cards together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pipette_milp.errors import InputError
from pipette_milp.measure.network_samples import (
    InNodeSample,
    Link,
    NodeSample,
    PairSample,
    TransferSample,
    document,
    largest_sizes,
    links,
    rates_of,
    unsettled_pairs,
)
from pipette_milp.measure.rounds import disjoint_rounds, rounds_of, star_rounds
from pipette_milp.measure.session import Session
from pipette_milp.measure.topology import NodeGroups, node_groups

SMALLEST_BYTES = 4096
SIZE_STEP = 4
"""Between the sizes measured on the way to the largest."""
STEADY = 0.03
"""Every pair is measured a second time, and again while its two quickest looks differ by more than this,"""
MOST_LOOKS = 3
"""up to so many times in all: what else runs makes a link look slower, for longer than the repeats of a
look."""
PINGS = 20
"""Round trips of one latency figure."""
PING_BYTES = 8


@dataclass(frozen=True)
class NetworkOptions:
    """How long and how large."""

    repeats: int = 3
    target_s: float = 0.3
    """A transfer this long is large enough; sizes grow until there."""
    largest_bytes: int = 2**28
    pair_timeout_s: float = 30.0
    """A pair that does not connect or whose transfer takes longer is reported as failed."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError(f"repeats {self.repeats}: expected at least 1")
        if self.target_s <= 0 or self.pair_timeout_s <= 0:
            raise InputError("expected times above 0 s")
        if self.largest_bytes < SMALLEST_BYTES:
            raise InputError(f"largest message {self.largest_bytes} bytes: expected >= {SMALLEST_BYTES}")


Progress = Callable[[str], None]


def measure_network(
    session: Session, options: NetworkOptions, key: str = "network", progress: Progress | None = None
) -> dict[str, Any] | None:
    """Measure all links; the document at rank 0 (see `pipette_milp.measure.network_samples.document`).

    Every rank calls it. A pair that fails is reported in the document and costs `pair_timeout_s`.

    Raises:
        InputError: one node only and one rank on it, or nodes with different numbers of ranks.
        MeasurementError: a rank was lost.
    """
    groups = node_groups(session.nodes)
    tell = progress if progress is not None and session.rank == 0 else _quiet
    own = groups.node_of_rank[session.rank]
    local = groups.local[session.rank]
    in_node: list[InNodeSample] = []
    samples: list[PairSample] = []
    found: dict[tuple[int, int], Link] = {}
    rounds = disjoint_rounds(groups.count)
    largest: dict[tuple[int, int], tuple[int, int]] = {}
    for look in range(MOST_LOOKS):
        again = f", look {look + 1}" if look else ""
        seen: list[PairSample] = []
        for number, pairs in enumerate(rounds):
            tell(f"round {number + 1} of {len(rounds)}: {len(pairs)} node pairs{again}")
            name = f"{key}/look{look}/round{number}"
            for a, b in pairs:
                if own in (a, b):
                    ends = groups.ranks[a], groups.ranks[b]
                    measured = _measured(session, *ends, name, options, largest.get((a, b)))
                    seen.append(PairSample(a, b, local, own, *measured, look))
            session.barrier(name)
        shared = session.share(f"{key}/look{look}", [sample.to_json() for sample in seen])
        samples += [PairSample.from_json(item) for rank in shared for item in rank]
        largest = largest or largest_sizes(samples)
        found = links(samples, {})
        rounds = rounds_of(unsettled_pairs(found, STEADY))
        if not rounds:
            break
    local_rounds = disjoint_rounds(groups.per_node)
    for number, pairs in enumerate(local_rounds):
        tell(f"inside the nodes: round {number + 1} of {len(local_rounds)}")
        name = f"{key}/local{number}"
        for a, b in pairs:
            if local in (a, b):
                ends = [groups.ranks[own][a]], [groups.ranks[own][b]]
                measured = _measured(session, *ends, f"{name}/{own}", options)
                in_node.append(InNodeSample(own, a, b, local, *measured))
        session.barrier(name)
    node_samples: list[NodeSample] = []
    pair_rate = rates_of(found, groups.count)
    stars = star_rounds(groups.count)
    for number, round_ in enumerate(stars):
        tell(f"nodes in all: round {number + 1} of {len(stars)}")
        name = f"{key}/star{number}"
        for hub, leaves in round_:
            known = all(pair_rate[hub][leaf] and pair_rate[leaf][hub] for leaf in leaves)
            if own in (hub, *leaves) and known:
                node_samples += _star(session, groups, hub, leaves, pair_rate, options, f"{name}/{hub}")
        session.barrier(name)
    collected = session.collect(
        f"{key}/samples",
        {
            "in_node": [sample.to_json() for sample in in_node],
            "nodes": [sample.to_json() for sample in node_samples],
        },
    )
    if collected is None:
        return None
    return document(
        names=groups.names,
        ranks_per_node=groups.per_node,
        transport=session.transport,
        pairs=samples,
        in_node=[InNodeSample.from_json(item) for rank in collected for item in rank["in_node"]],
        nodes=[NodeSample.from_json(item) for rank in collected for item in rank["nodes"]],
    )


def _quiet(message: str) -> None:
    pass


def _measured(
    session: Session,
    left: list[int],
    right: list[int],
    name: str,
    options: NetworkOptions,
    largest: tuple[int, int] | None = None,
) -> tuple[list[float], list[TransferSample], str | None]:
    """Latencies, transfers and the failure, if any, of two groups of ranks that send to each other.

    Args:
        largest: of either direction the one size that is measured; None finds it, and measures all.
    """
    wire = None
    try:
        pair = f"{name}/{left[0]}-{right[0]}"
        wire = _Wire(session, left + right, pair, options.pair_timeout_s)
        latencies = wire.latencies()
        transfers: list[TransferSample] = []
        for direction in (0, 1):
            if largest is None:
                wire.sizes(direction, options, transfers)
            else:
                wire.repeated(largest[direction], direction, options.repeats, transfers, "all")
        return latencies, transfers, None
    except Exception as error:  # whatever the transport raises: the pair has failed, the others go on
        return [], [], (str(error).strip().splitlines() or [type(error).__name__])[0]
    finally:
        if wire is not None:
            wire.close()


class _Wire:
    """Two groups of equally many ranks; rank i of one sends to rank i of the other."""

    def __init__(self, session: Session, members: list[int], name: str, timeout_s: float) -> None:
        self.session = session
        self.torch = session.torch
        self.half = len(members) // 2
        self.index = members.index(session.rank)
        self.partner = (self.index + self.half) % len(members)
        self.timeout = timedelta(seconds=timeout_s)
        self.group = session.process_group(name, members, timeout_s)
        self._buffer = self.torch.zeros(SMALLEST_BYTES, dtype=self.torch.uint8, device=session.device)
        self._tag = 0

    def close(self) -> None:
        """Let go of the connections."""
        with contextlib.suppress(Exception):
            self.group.shutdown()

    def latencies(self) -> list[float]:
        """One-way seconds of small messages, at the first rank of the left group; empty elsewhere."""
        found = []
        small = self.buffer(PING_BYTES)
        self.barrier()
        if self.index in (0, self.half):
            for _ in range(PINGS + 1):
                start = time.monotonic()
                if self.index == 0:
                    self.wait(self.send(small))
                    self.wait(self.receive(small))
                else:
                    self.wait(self.receive(small))
                    self.wait(self.send(small))
                found.append((time.monotonic() - start) / 2)
        self.barrier()
        return found[1:] if self.index == 0 else []  # the first one opens connections

    def sizes(self, direction: int, options: NetworkOptions, transfers: list[TransferSample]) -> None:
        """Growing sizes in one direction, then the largest one with a single flow and both ways at once."""
        size, final = SMALLEST_BYTES, False
        while True:
            seconds = self.repeated(size, direction, options.repeats, transfers, "all")
            if final or size >= options.largest_bytes:
                break
            if seconds * SIZE_STEP < options.target_s:
                size *= SIZE_STEP
            else:
                factor = 1
                while seconds * factor < options.target_s:
                    factor *= 2
                if factor == 1:
                    break
                size, final = size * factor, True
            size = min(size, options.largest_bytes)
        if self.half > 1:
            self.repeated(size, direction, 1, transfers, "single")
        if direction == 1:
            self.repeated(size, None, 1, transfers, "both")

    def repeated(
        self,
        size: int,
        direction: int | None,
        repeats: int,
        transfers: list[TransferSample],
        flows: str,
    ) -> float:
        """Transfers of one size; what the sending ranks saw is added.

        Returns seconds at every rank: of each rank's quickest repeat (a hiccup must not end the growth of
        sizes) the largest.
        """
        data = self.buffer(size)
        taking_part = flows != "single" or self.index % self.half == 0
        quickest = float("inf") if taking_part else 0.0
        for _ in range(repeats):
            self.barrier()
            start = time.monotonic()
            if taking_part:
                sends = direction is None or (self.index // self.half) == direction
                receives = direction is None or not sends
                self.transfer(data, sends, receives)
                end = time.monotonic()
                if sends:
                    transfers.append(TransferSample(size, self.index // self.half, flows, start, end))
                quickest = min(quickest, end - start)
        return self.maximum(quickest)

    def transfer(self, data: Any, sends: bool, receives: bool) -> None:
        """Send, receive or both; a send ends when the other side says that it has everything."""
        word = self.torch.zeros(1, dtype=self.torch.uint8, device=self.session.device)
        incoming = self.receive(data) if receives else None
        acknowledged = self.receive(word, 1) if sends else None
        outgoing = self.send(data) if sends else None
        if incoming is not None:
            self.wait(incoming)
            self.wait(self.send(word, 1))
        if acknowledged is not None:
            self.wait(outgoing)
            self.wait(acknowledged)

    def buffer(self, size: int) -> Any:
        """Bytes on the device."""
        if len(self._buffer) < size:
            self._buffer = self.torch.zeros(size, dtype=self.torch.uint8, device=self.session.device)
        return self._buffer[:size]

    def send(self, data: Any, tag: int = 0) -> Any:
        return self.group.send([data], self.partner, tag)

    def receive(self, data: Any, tag: int = 0) -> Any:
        return self.group.recv([data], self.partner, tag)

    def wait(self, work: Any) -> None:
        work.wait(self.timeout)
        self.session.synchronize()

    def barrier(self) -> None:
        self.maximum(0.0)

    def maximum(self, value: float) -> float:
        """The largest value of all members."""
        number = self.torch.tensor([value], dtype=self.torch.float64, device=self.session.device)
        options = self.torch.distributed.AllreduceOptions()
        options.reduceOp = self.torch.distributed.ReduceOp.MAX
        options.timeout = self.timeout
        self.wait(self.group.allreduce([number], options))
        return float(number.item())


def _star(
    session: Session,
    groups: NodeGroups,
    hub: int,
    leaves: tuple[int, ...],
    rates: list[list[float | None]],
    options: NetworkOptions,
    name: str,
) -> list[NodeSample]:
    """All a node sends, then all it receives; each pair gets bytes in proportion to its own rate, so that
    its transfers would end together if nothing were shared."""
    torch = session.torch
    members = [rank for node in (hub, *leaves) for rank in groups.ranks[node]]
    group = session.process_group(name, members, options.pair_timeout_s)
    timeout = timedelta(seconds=options.pair_timeout_s)
    own, local = groups.node_of_rank[session.rank], groups.local[session.rank]
    word = torch.zeros(1, dtype=torch.uint8, device=session.device)
    found = []
    others = leaves if own == hub else (hub,)
    for sends in (True, False):
        sizes = []
        for other in others:
            leaf = other if own == hub else own
            rate = rates[hub][leaf] if sends else rates[leaf][hub]
            sizes.append(max(1, int((rate or 0.0) * options.target_s / len(leaves) / groups.per_node)))
        i_send = (own == hub) == sends
        for _ in range(options.repeats):
            group.barrier().wait(timeout)
            session.synchronize()
            start = time.monotonic()
            works: list[tuple[Any, int | None]] = []
            for other, size in zip(others, sizes, strict=True):
                data = torch.zeros(size, dtype=torch.uint8, device=session.device)
                partner = members.index(groups.ranks[other][local])
                if i_send:
                    works.append((group.recv([word], partner, 1), None))
                    works.append((group.send([data], partner, 0), None))
                else:
                    works.append((group.recv([data], partner, 0), partner))
            replies: list[Any] = []
            for work, partner_to_answer in works:
                work.wait(timeout)
                if partner_to_answer is not None:
                    replies.append(group.send([word], partner_to_answer, 1))
            for reply in replies:
                reply.wait(timeout)
            session.synchronize()
            if own == hub:
                found.append(NodeSample(hub, sends, sum(sizes), start, time.monotonic()))
    group.shutdown()
    return found
