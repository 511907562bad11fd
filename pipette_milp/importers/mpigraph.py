"""mpiGraph logs: the bandwidth from every rank to every other, sent and received.

mpiGraph (LLNL, v1.5) prints MiB/s = 2**20 bytes/s. In every step all ranks send and receive at once, so
with k ranks per host a figure is one of k simultaneous flows and the node pair reaches their sum. The two
matrices describe the same transfers from both ends: send[a][b] and receive[b][a] must agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.facts import PairwiseBandwidth, pairwise
from pipette_milp.importers.text import Cell, Line, Text, clean, normalised_names, read_numbers
from pipette_milp.units import MIB

KIND = "mpigraph"

# A measured log differs by 0.03 %, the averages of 16 nodes by 0.5 %.
SEND_RECEIVE_TOLERANCE = 0.05
# Figures are printed with three decimals.
_HEADING_TOLERANCE = 0.01

_START = re.compile(r"START mpiGraph\b")
_END = re.compile(r"END mpiGraph\b")
_SIDES = {"Send": "to", "Recv": "from"}


@dataclass(frozen=True)
class MpiGraph:
    """One log. Matrices in bytes/s, nan = not measured (the diagonal is)."""

    source: str
    endpoints: tuple[tuple[str, int], ...]
    """(host, rank) of every row and column."""
    message_bytes: int | None
    send: NDArray[np.float64]
    """[r, r] row = sender, column = receiver."""
    receive: NDArray[np.float64]
    """[r, r] row = receiver, column = sender; nan throughout when the log is cut before it."""
    warnings: tuple[Problem, ...] = ()

    @property
    def ranks_per_host(self) -> int:
        """Ranks on each host, which is how many flows of a host run at once."""
        hosts = [host for host, _ in self.endpoints]
        return hosts.count(hosts[0])

    def harmonic_mean_bytes_per_s(self) -> float:
        """Of the sending matrix off the diagonal: what mpiGraph calls "Send avg"."""
        values = self.send[~np.isnan(self.send)]
        return float(values.size / np.sum(1.0 / values))

    def pairwise(self) -> PairwiseBandwidth:
        """Between hosts: the mean over their rank pairs, which is one of ``ranks_per_host`` flows."""
        hosts = tuple(dict.fromkeys(host for host, _ in self.endpoints))
        index = np.array([hosts.index(host) for host, _ in self.endpoints])
        n, k = len(hosts), self.ranks_per_host
        values = np.full((n, n), np.nan)
        for a in range(n):
            for b in range(n):
                if a != b:
                    values[a, b] = self.send[np.ix_(index == a, index == b)].mean() / MIB
        return pairwise(
            self.source,
            hosts,
            values,
            MIB,
            "MiB/s",
            measures="flow",
            simultaneous_flows=k,
            warnings=self.warnings,
        )


def detect(text: str) -> float:
    """Confidence in 0..1 that this is an mpiGraph log."""
    if _START.search(text) or _END.search(text):
        return 0.95
    return 0.7 if re.search(r"^\s*Send avg\b", text, re.MULTILINE) else 0.0


def parse(text: str, source: str) -> MpiGraph:
    """Reads the sending and the receiving matrix.

    Raises:
        InputError: no sending matrix, a row missing, cut or damaged, hosts with different numbers of
            ranks, or the two matrices contradict each other by more than 5 %.
    """
    content = clean(text, source)
    starts = [index for index, line in enumerate(content.lines) if _START.search(line.text)]
    if len(starts) > 1:
        raise content.error(
            "a second mpiGraph run starts here: give one run per file", content.lines[starts[1]]
        )
    first = starts[0] if starts else 0
    lines = [line for line in content.lines[first:] if line.text.strip()]
    warnings: list[Problem] = []
    cut = not any(_END.search(line.text) for line in lines)
    if cut:
        warnings.append(
            Problem(content.place(lines[-1] if lines else None), "END mpiGraph is missing: the log is cut")
        )

    send_names, send = _matrix("Send", lines, content, cut_allowed=False)
    receive_names, receive = _matrix("Recv", lines, content, cut_allowed=cut)
    if receive_names and set(receive_names) != set(send_names):
        raise content.error("the Recv matrix has other ranks than the Send matrix")
    if receive_names and receive_names != send_names:
        order = [receive_names.index(name) for name in send_names]
        receive = receive[np.ix_(order, order)]
    if not receive_names:
        receive = np.full_like(send, np.nan)
    _compare(send, receive, send_names, content)
    warnings += _compare_headings(send, receive, lines, content)
    endpoints = tuple(_endpoint(name, position) for position, name in enumerate(send_names))
    hosts = [host for host, _ in endpoints]
    counts = {host: hosts.count(host) for host in hosts}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{host} {count}" for host, count in counts.items())
        raise content.error(
            f"hosts have different numbers of ranks ({shown}): flows cannot be summed by node"
        )
    return MpiGraph(
        source, endpoints, _message_bytes(lines, content), send * MIB, receive * MIB, tuple(warnings)
    )


def _endpoint(name: str, position: int) -> tuple[str, int]:
    host, colon, rank = name.rpartition(":")
    return (host, int(rank)) if colon and rank.isdigit() else (name, position)


def _message_bytes(lines: list[Line], content: Text) -> int | None:
    for line in lines:
        match = re.match(r"\s*Msg\s?Size\s*:?\s*(\d+)", line.text)
        if match:
            return int(match[1])
    return None


def _key(line: Line) -> list[str]:
    """The first two words of a line, which say what it is."""
    return [cell.text.rstrip(":") for cell in _words(line)[:2]]


def _words(line: Line) -> list[Cell]:
    """Cells without the lone colons some forks print between columns."""
    cells = []
    for cell in line.cells():
        if cell.text == ":":
            continue
        cells.append(cell)
    return cells


def _matrix(
    side: str, lines: list[Line], content: Text, cut_allowed: bool
) -> tuple[list[str], NDArray[np.float64]]:
    """Names and figures (MiB/s, nan on the diagonal) of one matrix; none when a cut log has no whole one."""
    word = _SIDES[side]
    header = next(
        (
            line
            for line in lines
            if _key(line)[:1] == [side] and _key(line)[1:] not in ([], ["max"], ["avg"], ["min"])
        ),
        None,
    )
    rows = [line for line in lines if _key(line)[1:] == [word]]
    if header is None:
        if cut_allowed and not rows:
            return [], np.empty((0, 0))
        raise content.error(f"found no header line of the {side} matrix", lines[-1] if lines else None)
    names = normalised_names(_words(header)[1:], content, "rank")
    n = len(names)
    if cut_allowed and (len(rows) < n or len(_words(rows[-1])) < n + 2 or _unfinished(rows[-1], content)):
        return [], np.empty((0, 0))
    row_names = normalised_names([_words(line)[0] for line in rows], content, "row")
    missing = [name for name in names if name not in row_names]
    if missing:
        raise content.error(
            f"the {side} rows of {', '.join(missing[:5])} are missing", rows[-1] if rows else header
        )
    unknown = [line for line, name in zip(rows, row_names, strict=True) if name not in names]
    if unknown:
        raise content.error(f"{side} row {_words(unknown[0])[0].text!r} has no column", unknown[0])
    cells: list[Cell] = []
    for line in rows:
        row = _words(line)[2:]
        if len(row) != n:
            raise content.error(f"the row has {len(row)} figures for {n} ranks", line)
        cells += row
    if _unfinished(rows[-1], content):
        raise content.error("the file ends inside this row", rows[-1])
    values = np.array(read_numbers(cells, content)).reshape(n, n)
    order = [row_names.index(name) for name in names]
    values = values[order]
    for a, b in np.argwhere(values <= 0):
        if a != b:
            raise content.error(
                f"{side}: {names[a]} {word} {names[b]} is {values[a, b]:g} MiB/s, expected more than 0",
                rows[order[a]],
            )
    if np.any(np.diag(values) != 0):
        a = int(np.argmax(np.diag(values) != 0))
        raise content.error(
            f"{side}: {names[a]} {word} itself is not 0: the columns are shifted, or this is not plain "
            f"mpiGraph output",
            rows[order[a]],
        )
    np.fill_diagonal(values, np.nan)
    return names, values


def _unfinished(line: Line, content: Text) -> bool:
    return not content.complete and line is content.lines[-1]


def _compare(
    send: NDArray[np.float64], receive: NDArray[np.float64], names: list[str], content: Text
) -> None:
    other = receive.T
    difference = np.abs(send - other) / np.maximum(send, other)
    wrong = [
        Problem(
            content.source,
            f"{names[a]} to {names[b]}: sent {send[a, b]:g} MiB/s but received {other[a, b]:g} MiB/s, "
            f"which is more than {SEND_RECEIVE_TOLERANCE:.0%} apart",
        )
        for a, b in np.argwhere(difference > SEND_RECEIVE_TOLERANCE)
    ]
    if wrong:
        raise InputError(wrong[:10])


def _compare_headings(
    send: NDArray[np.float64], receive: NDArray[np.float64], lines: list[Line], content: Text
) -> list[Problem]:
    """Warnings where "Send max" and the like are not those of the matrix."""
    warnings = []
    for line in lines:
        cells = _words(line)
        key = _key(line)
        if len(cells) < 3 or key[0] not in _SIDES or key[1] != "max":
            continue
        matrix = send if key[0] == "Send" else receive
        if np.all(np.isnan(matrix)):
            continue
        said, found = read_numbers([cells[2]], content)[0], float(np.nanmax(matrix))
        if abs(said - found) > _HEADING_TOLERANCE * found:
            warnings.append(
                Problem(
                    content.place(line),
                    f"says {said:g} MiB/s, but the largest figure of the matrix is {found:g}",
                )
            )
    return warnings
