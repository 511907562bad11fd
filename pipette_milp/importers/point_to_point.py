"""A test between two processes, as perftest and the OSU benchmarks run it: bandwidth or latency by size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipette_milp.errors import Problem

LARGE_BYTES = 1 << 20
"""From here on a bandwidth is the link's and not the software's."""
SMALL_BYTES = 64
"""Up to here a latency is the link's."""


@dataclass(frozen=True)
class PointToPoint:
    """One test."""

    source: str
    tool: Literal["perftest", "osu"]
    title: str
    """As the tool prints it, such as ``RDMA_Write BW Test``."""
    metric: Literal["bandwidth", "latency"]
    rows: tuple[tuple[int, float], ...]
    """(message size in bytes, bytes/s or seconds one way)"""
    both_ways: bool
    """Both directions ran at once and a bandwidth is their sum."""
    hosts: tuple[str, ...]
    """Where the log names them: one host means that the test stayed inside a node."""
    device: str | None = None
    """Network card, where the log names it."""
    on_gpu: bool | None = None
    """Whether the buffers were in GPU memory; None where the log does not say."""
    warnings: tuple[Problem, ...] = ()

    @property
    def plateau_bytes_per_s(self) -> float | None:
        """Best bandwidth of one direction over the large sizes; None without one."""
        if self.metric != "bandwidth":
            return None
        large = [value for size, value in self.rows if size >= LARGE_BYTES]
        # a test of a single size, perftest's default of 65536 bytes, keeps its card busy with many of them
        if not large and self.tool == "perftest":
            large = [value for size, value in self.rows if size >= 65_536]
        if not large:
            return None
        return max(large) / (2 if self.both_ways else 1)

    @property
    def small_message_latency_s(self) -> float | None:
        """One-way latency of the smallest messages; None without them."""
        if self.metric != "latency":
            return None
        small = [value for size, value in self.rows if size <= SMALL_BYTES]
        return min(small) if small else None
