"""One start for all ranks, on clocks that differ from machine to machine."""

from __future__ import annotations

import time
from typing import Any

from pipette_milp.measure.session import Session

PINGS = 10


def offsets_to_rank_0(session: Session, control: Any) -> float:
    """Seconds that this rank's clock is ahead of rank 0's, from the quickest of `PINGS` round trips.

    Off by at most half of that round trip.
    """
    torch = session.torch
    stamp = torch.zeros(1, dtype=torch.float64)
    offset_s = 0.0
    for rank in range(1, session.world_size):
        if session.rank == 0:
            for _ in range(PINGS):
                session.finish(control.recv([stamp], rank, 1))
                stamp[0] = time.monotonic()
                session.finish(control.send([stamp], rank, 1))
        elif session.rank == rank:
            best = float("inf")
            for _ in range(PINGS):
                sent = time.monotonic()
                session.finish(control.send([stamp], 0, 1))
                session.finish(control.recv([stamp], 0, 1))
                received = time.monotonic()
                if received - sent < best:
                    best = received - sent
                    offset_s = (sent + received) / 2 - float(stamp.item())
    return offset_s


def common_start(session: Session, control: Any, offset_s: float, delay_s: float) -> float:
    """An instant ``delay_s`` ahead, the same for all ranks, on this rank's clock."""
    torch = session.torch
    session.meet(control)
    start = torch.tensor([time.monotonic() + delay_s], dtype=torch.float64)
    session.finish(control.broadcast(start, 0))
    return float(start.item()) + offset_s
