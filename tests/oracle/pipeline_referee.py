"""A second simulator, event by event, written from the rules and not from the package's graph.

Every pipeline stage is a process: a generator that yields what it does next, in the words of the
framework's own code (recv_forward, send_forward_recv_backward, ...). A clock advances from event to event.

Rules: costs, section 2. exchange: a call blocks until all its transfers have ended; a transfer starts
when both ends have called it. async: a send returns at once, a receive blocks until its transfer has
ended; one channel per boundary and direction serves one transfer at a time, in micro-batch order.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import numpy as np

from pipette_milp.cost.durations import Durations

Process = Generator[tuple[str, Any], None, None]


def compute(kind: str, virtual_stage: int, micro_batch: int) -> tuple[str, Any]:
    return "compute", (kind, virtual_stage, micro_batch)


def call(*transfers: tuple[str, str, int, int] | None) -> tuple[str, Any]:
    return "call", [transfer for transfer in transfers if transfer is not None]


def gpipe(stage: int, p: int, m_total: int, v: int) -> Process:
    for m in range(m_total):
        yield call(recv_forward(stage, m))
        yield compute("F", stage, m)
        yield call(send_forward(stage, p, m))
    for m in range(m_total):
        yield call(recv_backward(stage, p, m))
        yield compute("B", stage, m)
        yield call(send_backward(stage, m))


def one_f_one_b(stage: int, p: int, m_total: int, v: int) -> Process:
    num_warmup = min(p - stage - 1, m_total)
    num_remaining = m_total - num_warmup
    forward = backward = 0
    for _ in range(num_warmup):
        yield call(recv_forward(stage, forward))
        yield compute("F", stage, forward)
        yield call(send_forward(stage, p, forward))
        forward += 1
    if num_remaining > 0:
        yield call(recv_forward(stage, forward))
    for i in range(num_remaining):
        yield compute("F", stage, forward)
        yield call(send_forward(stage, p, forward), recv_backward(stage, p, backward))
        forward += 1
        yield compute("B", stage, backward)
        if i == num_remaining - 1:
            yield call(send_backward(stage, backward))
        else:
            yield call(send_backward(stage, backward), recv_forward(stage, forward))
        backward += 1
    for _ in range(num_warmup):
        yield call(recv_backward(stage, p, backward))
        yield compute("B", stage, backward)
        yield call(send_backward(stage, backward))
        backward += 1


def zb_h1(stage: int, p: int, m_total: int, v: int) -> Process:
    """Weight gradients wait in a queue; stage s lets s of them pile up."""
    pending: list[int] = []
    forward = 0
    for backward in range(m_total):
        while forward < m_total and forward <= backward + p - stage - 1:
            yield call(recv_forward(stage, forward))
            yield compute("F", stage, forward)
            yield call(send_forward(stage, p, forward))
            forward += 1
        yield call(recv_backward(stage, p, backward))
        yield compute("B", stage, backward)
        yield call(send_backward(stage, backward))
        pending.append(backward)
        if len(pending) > stage:
            yield compute("W", stage, pending.pop(0))
    while pending:
        yield compute("W", stage, pending.pop(0))


def interleaved(stage: int, p: int, m_total: int, v: int) -> Process:
    """Step k of a stage is micro-batch ``k // (p v) * p + k % p`` of chunk ``k % (p v) // p``."""
    total = m_total * v
    num_warmup = min(total, 2 * (p - stage - 1) + (v - 1) * p)

    def forward(k: int) -> Process:
        j, m = k % (p * v) // p * p + stage, k // (p * v) * p + k % p
        yield call(("recv", "F", j - 1, m) if j > 0 else None)
        yield compute("F", j, m)
        yield call(("send", "F", j, m) if j < p * v - 1 else None)

    def backward(k: int) -> Process:
        j, m = (v - 1 - k % (p * v) // p) * p + stage, k // (p * v) * p + k % p
        yield call(("recv", "B", j, m) if j < p * v - 1 else None)
        yield compute("B", j, m)
        yield call(("send", "B", j - 1, m) if j > 0 else None)

    for k in range(num_warmup):
        yield from forward(k)
    for k in range(total - num_warmup):
        yield from forward(num_warmup + k)
        yield from backward(k)
    for k in range(total - num_warmup, total):
        yield from backward(k)


def recv_forward(stage: int, m: int) -> tuple[str, str, int, int] | None:
    return ("recv", "F", stage - 1, m) if stage > 0 else None


def send_forward(stage: int, p: int, m: int) -> tuple[str, str, int, int] | None:
    return ("send", "F", stage, m) if stage < p - 1 else None


def recv_backward(stage: int, p: int, m: int) -> tuple[str, str, int, int] | None:
    return ("recv", "B", stage, m) if stage < p - 1 else None


def send_backward(stage: int, m: int) -> tuple[str, str, int, int] | None:
    return ("send", "B", stage - 1, m) if stage > 0 else None


PROCESSES = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1, "interleaved": interleaved}


class Referee:
    """One replica of one iteration."""

    def __init__(
        self,
        schedule: str,
        mode: str,
        p: int,
        v: int,
        m_total: int,
        seconds: dict[tuple[str, int], float],
    ) -> None:
        self.mode = mode
        self.seconds = seconds
        self.processes = [PROCESSES[schedule](stage, p, m_total, v) for stage in range(p)]
        self.clock = 0.0
        self.events: list[tuple[float, int, str, Any]] = []
        self.ticket = 0
        self.finish = [0.0] * p
        self.waiting: dict[int, set[tuple[str, int, int]]] = {}
        self.arrived: set[tuple[str, int, int]] = set()
        self.called: dict[tuple[str, int, int], int] = defaultdict(int)
        self.queued: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.served: dict[tuple[str, int], int] = defaultdict(int)
        self.in_service: set[tuple[str, int]] = set()

    def run(self) -> list[float]:
        """End of the last task of every stage."""
        for stage in range(len(self.processes)):
            self.advance(stage)
        while self.events:
            self.clock, _, what, payload = heapq.heappop(self.events)
            if what == "computed":
                self.finish[payload] = self.clock
                self.advance(payload)
            else:
                self.arrive(payload)
        if self.waiting:
            raise RuntimeError(f"deadlock: {self.waiting}")
        return self.finish

    def at(self, time: float, what: str, payload: Any) -> None:
        self.ticket += 1
        heapq.heappush(self.events, (time, self.ticket, what, payload))

    def advance(self, stage: int) -> None:
        """Let the process go on until it computes, blocks or ends."""
        for what, payload in self.processes[stage]:
            if what == "compute":
                kind, j, _ = payload
                self.at(self.clock + self.seconds[kind, j], "computed", stage)
                return
            blocked_by = {self.start_transfer(*transfer) for transfer in payload} - {None} - self.arrived
            if blocked_by:
                self.waiting[stage] = blocked_by
                return

    def start_transfer(self, role: str, kind: str, boundary: int, m: int) -> tuple[str, int, int] | None:
        """Note the call; what the caller has to wait for, if anything."""
        transfer = (kind, boundary, m)
        if self.mode == "exchange":
            self.called[transfer] += 1
            if self.called[transfer] == 2:
                self.at(self.clock + self.seconds["hop " + kind, boundary], "arrived", transfer)
            return transfer
        if role == "recv":
            return transfer
        self.queued[kind, boundary].add(m)
        self.serve(kind, boundary)
        return None

    def serve(self, kind: str, boundary: int) -> None:
        channel = (kind, boundary)
        following = self.served[channel]
        if channel not in self.in_service and following in self.queued[channel]:
            self.in_service.add(channel)
            self.at(
                self.clock + self.seconds["hop " + kind, boundary], "arrived", (kind, boundary, following)
            )

    def arrive(self, transfer: tuple[str, int, int]) -> None:
        kind, boundary, _ = transfer
        self.arrived.add(transfer)
        if self.mode == "async":
            self.in_service.discard((kind, boundary))
            self.served[kind, boundary] += 1
            self.serve(kind, boundary)
        for stage, blocked_by in list(self.waiting.items()):
            blocked_by.discard(transfer)
            if not blocked_by:
                del self.waiting[stage]
                self.advance(stage)


def referee_finish(
    schedule: str, mode: str, p: int, v: int, m_total: int, durations: Durations
) -> np.ndarray:
    """Finish times [p, d]."""
    columns = []
    for z in range(durations.replicas):
        seconds = {}
        for kind, values in (
            ("F", durations.forward_s),
            ("B", durations.backward_s),
            ("W", durations.weight_gradient_s),
            ("hop F", durations.hop_forward_s),
            ("hop B", durations.hop_backward_s),
        ):
            if values is not None:
                seconds |= {(kind, index): float(row[z]) for index, row in enumerate(values)}
        columns.append(Referee(schedule, mode, p, v, m_total, seconds).run())
    return np.array(columns).T


def referee_iteration(finish: np.ndarray, durations: Durations) -> float:
    """costs, section 4, "end of the iteration", read aloud."""
    p = len(finish)
    sync_end = [max(finish[s]) + durations.gradient_sync_s[s] for s in range(p)]
    embed_end = max(sync_end[0], sync_end[p - 1]) + durations.embedding_sync_s
    step_start = max([*sync_end, embed_end])
    step = max(durations.optimizer_s[s] + durations.parameter_gather_s[s] for s in range(p))
    return float(step_start + step + durations.fixed_s)
