"""Messages between ranks on top of process groups: gloo between CPUs, NCCL between GPUs.

gloo: one group, messages told apart by tags. A send returns once the operating system has the data, so where
its end counts the receiver acknowledges. NCCL: messages of one pair of ranks run in the order of their issue,
so each kind and direction has a group of its own, and no message waits for one that is issued after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pipette_milp.measure.session import MeasurementError, Session

Edge = tuple[int, int, str]
"""Lower rank, higher rank, lane."""


class Transport:
    """Point-to-point messages of one rank."""

    def __init__(self, session: Session) -> None:
        """Every rank makes one."""
        self.session = session
        self.torch = session.torch
        self.acknowledges = session.transport == "gloo"
        """Whether the end of a send says nothing about its arrival."""
        self.timeout = timedelta(seconds=session.timeout_s)
        self._groups: dict[str, Any] = {}
        self._word = self.torch.zeros(1, dtype=self.torch.uint8, device=session.device)

    def lane(self, kind: str, sender: int, receiver: int) -> str:
        """Name of the order in which a message runs."""
        if self.session.transport == "gloo":
            return "all"
        return f"{kind}{'up' if sender < receiver else 'down'}"

    def connect(self, edges: Iterable[Edge], lanes: Iterable[str]) -> None:
        """Make the groups and open the connections of this rank, in an order that all ranks agree on.

        Args:
            edges: of this rank.
            lanes: of all ranks.
        """
        for lane in sorted(set(lanes)):
            self._groups[lane] = self.session.process_group(f"transport/{lane}")
        for low, high, lane in sorted(set(edges)):
            if self.session.rank == low:
                self.wait(self.send(self._word, high, 0, lane), f"the first message to rank {high}")
            else:
                self.wait(self.receive(self._word, low, 0, lane), f"the first message of rank {low}")

    def send(self, data: Any, receiver: int, tag: int, lane: str) -> Any:
        """Start sending."""
        return self._groups[lane].send([data], receiver, tag)

    def receive(self, data: Any, sender: int, tag: int, lane: str) -> Any:
        """Start receiving."""
        return self._groups[lane].recv([data], sender, tag)

    def expect_word(self, sender: int, tag: int, lane: str) -> Any:
        """Start receiving an acknowledgement."""
        return self.receive(self._word, sender, tag, lane)

    def say_word(self, receiver: int, tag: int, lane: str) -> Any:
        """Acknowledge."""
        return self.send(self._word, receiver, tag, lane)

    def wait(self, work: Any, what: str) -> None:
        """Until a message has ended.

        Raises:
            MeasurementError: the other side is gone, or nothing moved within the time limit.
        """
        try:
            work.wait(self.timeout)
            self.session.synchronize()
        except Exception as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            timed_out = "timed out" in text.lower() or "timeout" in text.lower()
            reason = f"nothing moved for {self.timeout.total_seconds():g} s" if timed_out else text
            raise MeasurementError(
                f"rank {self.session.rank}{self.session.place(self.session.rank)} waited for {what}: {reason}"
            ) from None
