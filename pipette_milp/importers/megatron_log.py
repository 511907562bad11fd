"""Logs of Megatron-LM: iteration lines, timers, and the memory report of data-parallel rank 0.

Keys of an iteration line come and go with the version; what is not known is kept as it stands. Megatron's MB
of memory are MiB. A skipped or repeated iteration keeps its own line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipette_milp.errors import Problem
from pipette_milp.importers.text import Cell, Line, Text, clean, read_numbers
from pipette_milp.importers.training_log import Iteration, RankMemory, TrainingLog
from pipette_milp.units import MIB

KIND = "megatron-log"

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|")
_MEMORY = re.compile(r"\[Rank (\d+)\]\s*\(after \d+ iterations?\)\s*memory \(MB\)\s*\|(.*)")
_TIMERS = re.compile(r"\(min, max\) time across ranks \(ms\):")
_TIMER = re.compile(r"([a-z][a-z0-9-]+)\s*\.*:\s*\(\s*([\d.,]+)\s*,\s*([\d.,]+)\s*\)")
_TIME = "elapsed time per iteration (ms)"
_FLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\)")
_BATCH = "global batch size"
_DEGREES = {
    "num_gpus": re.compile(r"using world size: (\d{1,7})\b"),
    "dp": re.compile(r"\bdata-parallel size: (\d{1,7})\b"),
    "cp": re.compile(r"\bcontext-parallel size: (\d{1,7})\b"),
    "tp": re.compile(r"\btensor-model-parallel size: (\d{1,7})\b"),
    "pp": re.compile(r"\bpipeline-model-parallel size: (\d{1,7})\b"),
}
_PARTS = ("allocated", "max allocated", "reserved", "max reserved")
_NUMBER = re.compile(r"[+-]?[\d.,]*\d(?:[eE][+-]?\d+)?")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a log of Megatron-LM."""
    if re.search(r"elapsed time per iteration \(ms\):", text) and _ITERATION.search(text):
        return 0.95
    return 0.95 if _MEMORY.search(text) else 0.0


def parse(text: str, source: str) -> TrainingLog:
    """Everything the log says; lines of other programs are passed over.

    Raises:
        InputError: neither an iteration line nor a memory report, a figure that is none; with its place.
    """
    content = clean(text, source)
    iterations: list[_Report] = []
    memory: list[_Report] = []
    timers: dict[str, tuple[Cell, Cell]] = {}
    degrees: dict[str, int] = {}
    in_timers = False
    for line in content.lines:
        match = _ITERATION.search(line.text)
        if match is not None:
            in_timers = False
            iterations.append(_Report(int(match[1]), line, _fields(line, match.end())))
            continue
        match = _MEMORY.search(line.text)
        if match is not None:
            memory.append(_Report(int(match[1]), line, _fields(line, match.start(2))))
            continue
        if _DEGREES["num_gpus"].search(line.text):
            for name, pattern in _DEGREES.items():
                if found := pattern.search(line.text):
                    degrees[name] = int(found[1])
        if _TIMERS.search(line.text):
            in_timers = True
        elif in_timers and (match := _TIMER.search(line.text)):
            timers[match[1]] = (Cell(match[2], line, match.start(2)), Cell(match[3], line, match.start(3)))
        elif in_timers and line.text.strip() and not _TIMER.search(line.text):
            in_timers = False
    if not iterations and not memory:
        raise content.error(f"found no line with '{_TIME}' and no memory report")
    warnings = content.cut_warnings()
    iterations = _distinct(content, iterations, (_TIME,), "iteration", warnings)
    memory = _distinct(content, memory, _PARTS, "memory of rank", warnings)
    if not iterations and not memory:
        raise content.error(f"found no complete line with '{_TIME}' and no complete memory report")
    return _log(content, iterations, memory, timers, degrees, warnings)


@dataclass(frozen=True)
class _Report:
    """One line with figures."""

    number: int
    """Iteration, or rank."""
    line: Line
    fields: dict[str, Cell]

    @property
    def values(self) -> dict[str, str]:
        return {name: cell.text for name, cell in self.fields.items()}


def _distinct(
    content: Text, reports: list[_Report], needed: tuple[str, ...], what: str, warnings: list[Problem]
) -> list[_Report]:
    """Complete reports, each once.

    A run that was killed leaves half a line, one that was started again repeats itself with other figures:
    both happen, and both are told.
    """
    kept: list[_Report] = []
    seen: dict[int, list[_Report]] = {}
    for report in reports:
        lacking = [name for name in needed if name not in report.fields]
        known = seen.setdefault(report.number, [])
        if lacking:
            message = f"{what} {report.number} is without '{lacking[0]}': left out"
            warnings.append(Problem(content.place(report.line), message))
        elif all(other.values != report.values for other in known):
            if known:
                message = (
                    f"{what} {report.number} is on line {known[0].line.number} with other figures: both "
                    f"count (was the run started again?)"
                )
                warnings.append(Problem(content.place(report.line), message))
            known.append(report)
            kept.append(report)
    return kept


def _fields(line: Line, start: int) -> dict[str, Cell]:
    """``key: value`` between bars, values with their place."""
    found: dict[str, Cell] = {}
    position = start
    for part in line.text[start:].split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            indent = len(value) - len(value.lstrip())
            found[key.strip()] = Cell(value.strip(), line, position + len(key) + 1 + indent)
        position += len(part) + 1
    return found


def _log(
    content: Text,
    iterations: list[_Report],
    memory: list[_Report],
    timers: dict[str, tuple[Cell, Cell]],
    degrees: dict[str, int],
    warnings: list[Problem],
) -> TrainingLog:
    times = _numbers(content, [report.fields[_TIME] for report in iterations])
    reported = _numbers(content, [report.fields[name] for report in memory for name in _PARTS])
    rows: list[Iteration] = []
    for report, time in zip(iterations, times, strict=True):
        fields = report.fields
        flops = next((cell for name, cell in fields.items() if _FLOPS.fullmatch(name)), None)
        batch = fields.get(_BATCH)
        rows.append(
            Iteration(
                report.number,
                time * 1e-3,
                None if flops is None else _numbers(content, [flops, fields[_TIME]])[0] * 1e12,
                None if batch is None or not batch.text.isdigit() else int(batch.text),
                tuple(
                    (name, cell.text)
                    for name, cell in fields.items()
                    if name not in (_TIME, _BATCH) and not _FLOPS.fullmatch(name)
                ),
            )
        )
    ranks: dict[int, RankMemory] = {}
    for index, report in enumerate(memory):
        found = RankMemory(report.number, *(value * MIB for value in reported[index * 4 : index * 4 + 4]))
        known = ranks.setdefault(report.number, found)
        if found.peak_reserved_bytes > known.peak_reserved_bytes:
            ranks[report.number] = found
    return TrainingLog(
        source=content.source,
        iterations=tuple(rows),
        memory=tuple(ranks.values()),
        timers=tuple(
            (name, *(value * 1e-3 for value in _numbers(content, list(cells))))  # type: ignore[misc]
            for name, cells in timers.items()
        ),
        degrees=tuple(degrees.items()),
        warnings=tuple(warnings),
    )


def _numbers(content: Text, cells: list[Cell]) -> list[float]:
    """Positive numbers.

    Raises:
        InputError: anything else, with its place.
    """
    wrong = [cell for cell in cells if not _NUMBER.fullmatch(cell.text)]
    if wrong:
        raise content.error(f"expected a number, got {wrong[0].text[:40]!r}", wrong[0])
    values = read_numbers(cells, content)
    negative = [cell for cell, value in zip(cells, values, strict=True) if value < 0]
    if negative:
        raise content.error("expected no negative number", negative[0])
    return values
