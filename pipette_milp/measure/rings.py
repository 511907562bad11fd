"""A ring collective by hand, message by message, over the channels of `pipette_milp.measure.ring_order`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipette_milp.measure.program import RingWork
from pipette_milp.measure.ring_order import chunk_of_step
from pipette_milp.measure.transport import Edge, Transport

SLICES = 2
"""Parts of a chunk: while one is being added, the other is under way, so that the wire never rests."""
LANE = "ring"
ELEMENT_BYTES = 4


@dataclass
class _Channel:
    buffer: Any
    """[members * SLICES, elements of a slice]"""
    spare: Any
    """[2, SLICES, elements] what arrives to be added, for two steps in turn"""
    position: int
    size: int
    following: int
    previous: int
    incoming: dict[tuple[int, int], Any]


class RingCollective:
    """All-reduce, reduce-scatter or all-gather of one rank, ready to run many times."""

    def __init__(self, transport: Transport, work: RingWork, first_tag: int) -> None:
        """
        Args:
            first_tag: this and the following ones belong to the ring.
        """
        self.transport = transport
        torch, device = transport.torch, transport.session.device
        self.steps = [
            (phase, step) for phase in work.passes for step in range(len(work.channels[0].ranks) - 1)
        ]
        self.first_tag = first_tag
        self.channels: list[_Channel] = []
        rank = transport.session.rank
        for channel in work.channels:
            size = len(channel.ranks)
            position = channel.ranks.index(rank)
            share = work.buffer_bytes / len(work.channels) / size / SLICES
            elements = max(1, round(share / ELEMENT_BYTES))
            self.channels.append(
                _Channel(
                    buffer=torch.zeros(size * SLICES, elements, dtype=torch.float32, device=device),
                    spare=torch.zeros(2, SLICES, elements, dtype=torch.float32, device=device),
                    position=position,
                    size=size,
                    following=channel.ranks[(position + 1) % size],
                    previous=channel.ranks[position - 1],
                    incoming={},
                )
            )

    @property
    def edges(self) -> list[Edge]:
        """Connections it needs."""
        own = self.transport.session.rank
        found = []
        for channel in self.channels:
            for sender, receiver in ((own, channel.following), (channel.previous, own)):
                lane = self.transport.lane(LANE, sender, receiver)
                found.append((min(sender, receiver), max(sender, receiver), lane))
        return found

    def run(self) -> None:
        """Once. Returns when this rank has received all it needs.

        Raises:
            MeasurementError: see `Transport.wait`.
        """
        outgoing: list[Any] = []
        for index, channel in enumerate(self.channels):
            for part in range(SLICES):
                self._expect(index, channel, 0, part)
        for index, channel in enumerate(self.channels):
            for part in range(SLICES):
                outgoing.append(self._send(index, channel, 0, part))
        for number, (phase, step) in enumerate(self.steps):
            for index, channel in enumerate(self.channels):
                for part in range(SLICES):
                    if number + 1 < len(self.steps):
                        self._expect(index, channel, number + 1, part)
                    awaited = f"a part of the ring from rank {channel.previous}"
                    self.transport.wait(channel.incoming.pop((number, part)), awaited)
                    if phase == "reduce-scatter":
                        _, received = chunk_of_step(channel.position, step, channel.size, phase)
                        channel.buffer[received * SLICES + part] += channel.spare[number % 2, part]
                    if number + 1 < len(self.steps):
                        outgoing.append(self._send(index, channel, number + 1, part))
        for work in outgoing:
            self.transport.wait(work, "the end of a send in the ring")

    def _expect(self, index: int, channel: _Channel, number: int, part: int) -> None:
        phase, step = self.steps[number]
        _, chunk = chunk_of_step(channel.position, step, channel.size, phase)
        target = (
            channel.spare[number % 2, part]
            if phase == "reduce-scatter"
            else channel.buffer[chunk * SLICES + part]
        )
        lane = self.transport.lane(LANE, channel.previous, self.transport.session.rank)
        channel.incoming[number, part] = self.transport.receive(
            target, channel.previous, self._tag(index, number, part), lane
        )

    def _send(self, index: int, channel: _Channel, number: int, part: int) -> Any:
        phase, step = self.steps[number]
        chunk, _ = chunk_of_step(channel.position, step, channel.size, phase)
        lane = self.transport.lane(LANE, self.transport.session.rank, channel.following)
        return self.transport.send(
            channel.buffer[chunk * SLICES + part],
            channel.following,
            self._tag(index, number, part),
            lane,
        )

    def _tag(self, index: int, number: int, part: int) -> int:
        return self.first_tag + (index * len(self.steps) + number) * SLICES + part
