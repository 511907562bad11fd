"""A list of node pairs with one figure each, as in notes: ``node-a,node-b  49.36  # comment``.

Names and figure may be separated by blanks, commas, semicolons, tabs or an arrow. "a -> b" and a header
with from and to give one direction; without them a figure holds for both, as a collective between two
nodes measures it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.facts import PairwiseBandwidth, pairwise
from pipette_milp.importers.matrix_table import stated_unit
from pipette_milp.importers.text import Cell, Line, Text, clean, looks_numeric, read_numbers
from pipette_milp.units import UNITS, Dimension, unit_factor

KIND = "pairs"

# Two measurements of one pair that differ by more are a contradiction, not noise.
REPEAT_TOLERANCE = 0.05

_NAME = r"[A-Za-z0-9_][\w.-]*"
_PAIR = re.compile(
    rf"\s*\|?\s*({_NAME})\s*(<->|<-->|->|-->|=>|→|↔|,|;|\t|\||\s)\s*({_NAME})\s*[,;:|=\s]\s*([+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?)"
    r"\s*[,;]?\s*([A-Za-z]+/s|[kMGT]bps)?\s*\|?\s*"
)
_BLANKS = re.compile(r" {2,}")
_ONE_WAY = frozenset({"->", "-->", "=>", "→"})
_HEADER_WORDS = re.compile(
    r"(?i)^\s*[\"']?(?:src|source|from|sender|dst|dest|to\b|receiver|node|host|a\b|pair|first)"
)
_SENDER, _RECEIVER = r"\b(?:src|source|from|sender)\b", r"\b(?:dst|dest|destination|to|receiver)\b"
_SENDER_FIRST = re.compile(f"(?i){_SENDER}.*{_RECEIVER}")
_RECEIVER_FIRST = re.compile(f"(?i){_RECEIVER}.*{_SENDER}")


@dataclass(frozen=True)
class _Entry:
    first: str
    second: str
    one_way: bool
    figure: Cell
    unit: str | None
    remark: str
    line: Line


def detect(text: str) -> float:
    """Confidence in 0..1 that most lines are a pair of names and a figure."""
    lines = [
        line for line in clean(text, "").lines if line.text.strip() and not line.text.lstrip().startswith("#")
    ]
    if lines and _entry(lines[0]) is None and _HEADER_WORDS.search(lines[0].text):
        lines = lines[1:]
    good = sum(_entry(line) is not None for line in lines)
    return 0.7 if good >= 1 and good >= 0.6 * len(lines) else 0.0


def parse(text: str, source: str, unit: str | None = None) -> PairwiseBandwidth:
    """The pairs as a matrix of all names in order of first appearance; pairs not listed are nan.

    Raises:
        InputError: a line that cannot be read, a pair listed twice with figures more than 5 % apart, two
            units; with line and column.
    """
    content = clean(text, source)
    warnings: list[Problem] = []
    entries, header = _entries(content)
    figures = read_numbers([entry.figure for entry in entries], content)
    names = list(dict.fromkeys(name for entry in entries for name in (entry.first, entry.second)))
    backwards = bool(_RECEIVER_FIRST.search(header)) and not _SENDER_FIRST.search(header)
    directed_header = backwards or bool(_SENDER_FIRST.search(header))
    seen: dict[tuple[str, str], list[tuple[float, _Entry]]] = {}
    values = np.full((len(names), len(names)), np.nan)
    problems: list[Problem] = []
    for entry, figure in zip(entries, figures, strict=True):
        place = entry.figure.at(source)
        if entry.first == entry.second:
            problems.append(Problem(place, f"{entry.first} is paired with itself"))
            continue
        if figure <= 0:
            problems.append(Problem(place, f"expected more than 0, got {entry.figure.text}"))
            continue
        one_way = entry.one_way or directed_header
        ends = (entry.second, entry.first) if backwards else (entry.first, entry.second)
        pairs = [ends] if one_way else [ends, ends[::-1]]
        for pair in pairs:
            repeats = seen.setdefault(pair, [])
            if repeats and abs(repeats[0][0] - figure) > REPEAT_TOLERANCE * max(repeats[0][0], figure):
                problems.append(
                    Problem(
                        place,
                        f"{pair[0]} to {pair[1]} is {figure:g} here and {repeats[0][0]:g} on line "
                        f"{repeats[0][1].line.number}"
                        + ("" if one_way else " (if these are the two directions, write a -> b)"),
                    )
                )
                break
            repeats.append((figure, entry))
            mean = sum(value for value, _ in repeats) / len(repeats)
            values[names.index(pair[0]), names.index(pair[1])] = mean
    if problems:
        raise InputError(problems)
    units = list(dict.fromkeys(entry.unit for entry in entries if entry.unit))
    if len(units) > 1 or (units and any(entry.unit is None for entry in entries)):
        raise content.error(f"only some figures have a unit, or several: {', '.join(units)}")
    stated = stated_unit(content, " ".join([header, *units]), unit, warnings)
    last = entries[-1]
    if (
        not content.complete
        and last.line is content.lines[-1]
        and last.figure.start + len(last.figure.text) == len(last.line.text)
    ):
        warnings.append(
            Problem(
                last.figure.at(source), f"the file ends right after {last.figure.text!r}, which may be cut"
            )
        )
    directed = directed_header or any(entry.one_way for entry in entries)
    return pairwise(
        source,
        tuple(names),
        values,
        None if stated is None else unit_factor(stated, Dimension.BANDWIDTH),
        stated,
        measures=None,
        simultaneous_flows=None,
        directed=directed,
        notes=tuple((entry.first, entry.second, entry.remark) for entry in entries if entry.remark),
        warnings=tuple(warnings),
    )


def _entries(content: Text) -> tuple[list[_Entry], str]:
    """Every pair, and the header line ("" if there is none)."""
    entries: list[_Entry] = []
    header = ""
    problems: list[Problem] = []
    for line in content.lines:
        if not line.text.strip() or line.text.lstrip().startswith("#"):
            continue
        entry = _entry(line)
        if entry is not None:
            if entry.unit is not None and entry.unit not in UNITS[Dimension.BANDWIDTH]:
                problems.append(Problem(entry.figure.at(content.source), f"unknown unit {entry.unit!r}"))
            entries.append(entry)
        elif not entries and not header and _HEADER_WORDS.search(line.text):
            header = line.text
        else:
            problems.append(
                Problem(content.place(line), "expected two names and a figure, as in: node-a,node-b 49.36")
            )
    if problems:
        raise InputError(problems[:10])
    if not entries:
        raise content.error("found no pair of names with a figure")
    return entries, header


def _entry(line: Line) -> _Entry | None:
    before, _, remark = line.text.partition("#")
    text = before.rstrip()
    # runs of blanks as one: several of them in a row can be divided among the parts in very many ways
    match = _PAIR.fullmatch(_BLANKS.sub(" ", text))
    if match is None or looks_numeric(match[1]) or looks_numeric(match[3]):
        return None
    return _Entry(
        match[1],
        match[3],
        match[2] in _ONE_WAY,
        Cell(match[4], line, text.rindex(match[4])),
        match[5],
        remark.strip(),
        line,
    )
