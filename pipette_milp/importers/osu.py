"""Logs of the OSU micro-benchmarks: ``osu_bw``, ``osu_bibw``, ``osu_latency``, several in one file.

The title decides what is measured. MB/s is 1e6 bytes/s, a bidirectional bandwidth is the sum of both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.importers.text import Cell, Line, Text, clean, read_numbers

KIND = "osu"

_TITLE = re.compile(r"#\s*OSU MPI(?:-\w+)?\s+(.*?)\s*(?:Test)?\s*(?:v([\d.]+))?\s*$")
_BOUND = re.compile(r"\[([A-Za-z0-9_][\w.-]*):\d+\]")
_MB_PER_S = 1e6
_US = 1e-6


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a log of OSU micro-benchmarks."""
    return 0.95 if re.search(r"(?m)#\s*OSU MPI\S* .*(?:Bandwidth|Latency)", text) else 0.0


@dataclass
class _Block:
    title: str
    line: Line
    on_gpu: bool | None
    column: str | None = None
    validated: bool = False
    sizes: list[Cell] = field(default_factory=list)
    values: list[Cell] = field(default_factory=list)


def parse(text: str, source: str) -> tuple[PointToPoint, ...]:
    """Every test of a log.

    Raises:
        InputError: no test, one of something else, a row that cannot be read, failed validation; with line.
    """
    content = clean(text, source)
    blocks: list[_Block] = []
    hosts: dict[str, None] = {}
    problems: list[Problem] = []
    for line in content.lines:
        words = line.text.strip()
        title = _TITLE.match(words)
        if title is not None:
            blocks.append(_Block(title[1], line, True if re.match(r"#\s*OSU MPI-", words) else None))
        elif words.startswith("#"):
            _comment(words, blocks)
        elif blocks and (cells := line.cells()) and cells[0].text.isdigit() and blocks[-1].column:
            _row(content, blocks[-1], cells, problems)
        elif match := _BOUND.match(words):
            hosts[match[1]] = None
        elif words and blocks and blocks[-1].column and re.match(r"[\d.,]", words):
            problems.append(Problem(content.place(line), f"cannot read {words[:60]!r}"))
    if not blocks:
        raise content.error("found no title such as: # OSU MPI Bandwidth Test v7.5")
    if problems:
        raise InputError(problems[:10])
    warnings = content.cut_warnings()
    found = [_test(content, block, tuple(hosts), warnings) for block in blocks if block.sizes]
    if not found:
        raise content.error("found titles of tests but no row of figures")
    return tuple(found)


def _comment(words: str, blocks: list[_Block]) -> None:
    if not blocks:
        return
    if re.search(r"Buffer on DEVICE|\(D\)", words):
        blocks[-1].on_gpu = True
    elif re.search(r"Buffer on HOST|\(H\)", words):
        blocks[-1].on_gpu = False
    if re.match(r"#\s*Size\b", words):
        blocks[-1].column = words.lstrip("# ")
        blocks[-1].validated = "Validation" in words


def _row(content: Text, block: _Block, cells: list[Cell], problems: list[Problem]) -> None:
    width = 3 if block.validated else 2
    if block.validated and cells[-1].text.lower() == "fail":
        problems.append(Problem(cells[-1].at(content.source), "the test says that its data were wrong"))
    elif len(cells) < width:
        problems.append(Problem(content.place(cells[0].line), f"expected {width} columns, got {len(cells)}"))
    else:
        block.sizes.append(cells[0])
        block.values.append(cells[1])


def _test(content: Text, block: _Block, hosts: tuple[str, ...], warnings: list[Problem]) -> PointToPoint:
    bandwidth = "bandwidth" in block.title.lower()
    column = block.column or ""
    expected = "MB/s" if bandwidth else "us"
    if not bandwidth and "latency" not in block.title.lower():
        raise content.error(f"is a test of {block.title!r}, expected Bandwidth or Latency", block.line)
    first = re.match(r"Size\s+(?:Avg )?(Bandwidth|Latency)\s*\(([^)]*)\)", column)
    if first is None or first[2] != expected or (first[1] == "Bandwidth") != bandwidth:
        raise content.error(
            f"the column is {column[:50]!r}, expected {'Bandwidth' if bandwidth else 'Latency'} ({expected}) "
            f"after Size",
            block.line,
        )
    values = read_numbers(block.values, content)
    factor = _MB_PER_S if bandwidth else _US
    wrong = [cell for cell, value in zip(block.values, values, strict=True) if value <= 0]
    if wrong:
        raise content.error("expected more than 0", wrong[0])
    return PointToPoint(
        source=content.source,
        tool="osu",
        title=block.title,
        metric="bandwidth" if bandwidth else "latency",
        rows=tuple((int(size.text), value * factor) for size, value in zip(block.sizes, values, strict=True)),
        both_ways="bi-direction" in block.title.lower() or "bidirection" in block.title.lower(),
        hosts=hosts,
        on_gpu=block.on_gpu,
        warnings=tuple(warnings),
    )
