"""What a run of NVIDIA's nccl-tests measured, whatever it was read from, and what follows from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.units import MIB

# Below this size the time is latency; a bandwidth read there would be far too low.
LEAST_BANDWIDTH_BYTES = 1.0 * MIB
# Up to this size the time is start-up cost (NCCL's LL protocol region).
GREATEST_LATENCY_BYTES = 8192
# Rows within this share of the best one form the plateau.
PLATEAU = 0.95

FACTOR_2 = frozenset({"all_reduce"})
"""Bus bandwidth = algorithm bandwidth * 2(n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
FACTOR_1 = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"})
"""... * (n-1)/n."""
FACTOR_0 = frozenset({"sendrecv", "broadcast", "reduce", "hypercube"})
"""... * 1 (hypercube: its own factor, which is not checked)."""


@dataclass(frozen=True)
class RankLine:
    """Where one rank of the test ran."""

    rank: int
    host: str
    device: int
    bus_id: str
    name: str


@dataclass(frozen=True)
class Timing:
    """One mode (out of place or in place) of one message size."""

    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int | None
    """Elements with a wrong value, None = not checked."""


@dataclass(frozen=True)
class Row:
    """One message size."""

    size_bytes: int
    out_of_place: Timing | None
    in_place: Timing | None

    @property
    def timings(self) -> tuple[Timing, ...]:
        """The modes that were run."""
        return tuple(timing for timing in (self.out_of_place, self.in_place) if timing is not None)


@dataclass(frozen=True)
class CollectiveRun:
    """One collective over one set of ranks."""

    source: str
    place: str
    """``file:line:column`` of its table."""
    collective: str | None
    """Name without suffix, such as ``all_reduce``; None = not said, and the figures fit several."""
    ranks: tuple[RankLine, ...]
    """Empty when the log has no rank list."""
    rank_count: int | None
    """From the rank list, else from the ratio of bus to algorithm bandwidth."""
    rows: tuple[Row, ...]
    average_busbw_bytes_per_s: float | None
    """The log's own mean over all sizes and modes: not a bandwidth to plan with."""
    warnings: tuple[Problem, ...] = ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """In order of first rank: never sorted by name."""
        return tuple(dict.fromkeys(rank.host for rank in sorted(self.ranks, key=lambda rank: rank.rank)))

    @property
    def plateau_busbw_bytes_per_s(self) -> float | None:
        """Bus bandwidth of large messages: the median of all modes within 5 % of the best one.

        None: no message is large enough to tell.
        """
        values = [
            timing.busbw_bytes_per_s
            for row in self.rows
            if row.size_bytes >= LEAST_BANDWIDTH_BYTES
            for timing in row.timings
        ]
        if not values or max(values) <= 0:
            return None
        return statistics.median(value for value in values if value >= PLATEAU * max(values))

    @property
    def small_message_latency_s(self) -> float | None:
        """The shortest time of a small message, None when there is none: noise only ever adds to it."""
        times = [
            timing.time_s
            for row in self.rows
            if row.size_bytes <= GREATEST_LATENCY_BYTES
            for timing in row.timings
        ]
        return min(times, default=None)

    def crossing_flows(self) -> tuple[int, int]:
        """(flows from the first to the second of two hosts, flows inside hosts) of a send-receive ring.

        `sendrecv_perf` sends from every rank to the next one, the last to the first.
        """
        host_of = {rank.rank: rank.host for rank in self.ranks}
        n = len(host_of)
        crossing = sum(host_of[r] == self.hosts[0] != host_of[(r + 1) % n] for r in range(n))
        inside = sum(host_of[r] == host_of[(r + 1) % n] for r in range(n))
        return crossing, inside


def check_ranks(ranks: tuple[RankLine, ...], place: str) -> None:
    """Refuses rank lists that are not one communicator.

    Raises:
        InputError: a rank occurs twice (the build has no MPI and every process ran alone), or one is missing.
    """
    numbers = [rank.rank for rank in ranks]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        raise InputError(
            Problem(
                place,
                f"rank {twice[0]} occurs {numbers.count(twice[0])} times: these are independent runs side "
                f"by side "
                f"(a build without MPI started by mpirun), not one test over several nodes; no bandwidth "
                f"between "
                f"nodes was measured. Build nccl-tests with MPI=1 and run again",
            )
        )
    if sorted(numbers) != list(range(len(numbers))):
        raise InputError(Problem(place, f"the list of {len(numbers)} ranks has gaps: lines are missing"))


def infer(
    rows: tuple[Row, ...], ranks: tuple[RankLine, ...], collective: str | None, place: str
) -> tuple[str | None, int | None]:
    """Collective and number of ranks; the ratio of bus to algorithm bandwidth tells what the log does not.

    Raises:
        InputError: the ratio contradicts the collective or the rank list.
    """
    known = len(ranks) or None
    ratios = [
        (timing.busbw_bytes_per_s / timing.algbw_bytes_per_s, 0.006e9 / timing.algbw_bytes_per_s)
        for row in rows
        for timing in row.timings
        if timing.algbw_bytes_per_s >= 1e9  # two decimals are enough to tell a ratio only from 1 GB/s on
    ]
    if not ratios:
        return collective, known
    ratio = statistics.median(value for value, _ in ratios)
    tolerance = min(error for _, error in ratios) * 2 + 0.002
    spread = [value for value, error in ratios if abs(value - ratio) > 2 * error * max(ratio, 1) + 1e-3]
    if spread:
        raise InputError(
            Problem(
                place,
                f"bus and algorithm bandwidth have the ratio {ratio:.3f} in most rows and {spread[0]:.3f} "
                f"in another: the table is damaged",
            )
        )
    if collective is None:
        if ratio > 1 + tolerance:
            collective = "all_reduce"
        elif known == 2 and abs(ratio - 0.5) <= tolerance:
            collective = None  # all-gather, reduce-scatter or all-to-all: the same factor
        elif abs(ratio - 1) <= tolerance and known is not None and known > 2:
            collective = "sendrecv"
    if collective in FACTOR_2:
        return collective, _count(
            2 / (2 - ratio) if ratio < 2 else float("inf"),
            ratio,
            known,
            collective,
            place,
            lambda n: 2 * (n - 1) / n,
            tolerance,
        )
    if collective in FACTOR_1:
        return collective, _count(
            1 / (1 - ratio) if ratio < 1 else float("inf"),
            ratio,
            known,
            collective,
            place,
            lambda n: (n - 1) / n,
            tolerance,
        )
    if collective in FACTOR_0 and collective != "hypercube" and abs(ratio - 1) > tolerance:
        raise InputError(
            Problem(
                place, f"{collective} has bus bandwidth = algorithm bandwidth, but their ratio is {ratio:.3f}"
            )
        )
    return collective, known


def _count(
    estimate: float,
    ratio: float,
    known: int | None,
    collective: str,
    place: str,
    factor: Callable[[int], float],
    tolerance: float,
) -> int | None:
    if known is not None:
        expected = factor(known)
        if abs(expected - ratio) > tolerance:
            raise InputError(
                Problem(
                    place,
                    f"{collective} over {known} ranks has bus / algorithm bandwidth {expected:.3f}, but the "
                    f"table has {ratio:.3f}: the rank list and the table do not belong together",
                )
            )
        return known
    if not 1.5 <= estimate < 1e6:
        return None
    return round(estimate)
