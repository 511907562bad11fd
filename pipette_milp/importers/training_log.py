"""What a training log measured: time per iteration, throughput, memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from pipette_milp.errors import Problem


@dataclass(frozen=True)
class Iteration:
    """One line of the log."""

    number: int
    time_s: float
    flop_per_s_per_gpu: float | None
    global_batch_size: int | None
    others: tuple[tuple[str, str], ...] = ()
    """Further keys and their values as they stand, losses for example."""


@dataclass(frozen=True)
class RankMemory:
    """What PyTorch's allocator reports of one rank, bytes."""

    rank: int
    allocated_bytes: float
    peak_allocated_bytes: float
    reserved_bytes: float
    peak_reserved_bytes: float


@dataclass(frozen=True)
class TrainingLog:
    """Everything a log says about speed and memory."""

    source: str
    iterations: tuple[Iteration, ...]
    memory: tuple[RankMemory, ...]
    """Ranks with data-parallel index 0, each once."""
    timers: tuple[tuple[str, float, float], ...] = ()
    """(name, least, most over the ranks) seconds, the last report of each."""
    degrees: tuple[tuple[str, int], ...] = ()
    """(column of a run table, value) that the program printed at start, such as ("tp", 2)."""
    warnings: tuple[Problem, ...] = ()

    @property
    def median_time_s(self) -> float | None:
        """Median time per iteration; the first one, which warms up, counts only alone."""
        times = [item.time_s for item in self.iterations if item.number > 1]
        times = times or [item.time_s for item in self.iterations]
        return statistics.median(times) if times else None

    @property
    def mean_time_s(self) -> float | None:
        """Mean over the same iterations."""
        times = [item.time_s for item in self.iterations if item.number > 1]
        times = times or [item.time_s for item in self.iterations]
        return statistics.fmean(times) if times else None

    @property
    def global_batch_size(self) -> int | None:
        """The one global batch size, None where the log has none or several."""
        sizes = {item.global_batch_size for item in self.iterations} - {None}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def flop_per_s_per_gpu(self) -> float | None:
        """Median throughput as the program counts it."""
        values = [item.flop_per_s_per_gpu for item in self.iterations if item.flop_per_s_per_gpu]
        return statistics.median(values) if values else None

    @property
    def peak_allocated_bytes(self) -> float | None:
        """Largest over the ranks that report."""
        return max((item.peak_allocated_bytes for item in self.memory), default=None)

    @property
    def peak_reserved_bytes(self) -> float | None:
        """Largest over the ranks that report: what had to fit."""
        return max((item.peak_reserved_bytes for item in self.memory), default=None)
