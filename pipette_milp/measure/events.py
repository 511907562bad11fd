"""What a rank did and when, during one measured iteration."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """One task, message or collective of one rank; seconds since the common start.

    ``name``: forward, backward, weight_gradient; send_forward, receive_forward, send_backward,
    receive_backward (from when the rank reached it to its end); gradient_sync, embedding_sync, barrier,
    optimizer, parameter_gather, fixed. ``position``: virtual stage of a task, boundary of a message.
    """

    name: str
    position: int | None
    micro_batch: int | None
    start_s: float
    end_s: float
    waited: bool | None = None
    """Of a receive: whether its end was seen when it happened; False when it had arrived before."""
