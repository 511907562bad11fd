"""Text output of nccl-tests (all_reduce_perf, sendrecv_perf ...), every generation of its layout.

The header names the columns, so rows are read by name: two groups of time, algbw, busbw and errors, first
out of place, then in place. What the figures must satisfy (algorithm bandwidth = size / time) is checked
on every row, so a damaged table is refused instead of believed.
Layouts: nccl-tests 2.0 to 2.19 (sources of common.cu and util.cu, column titles and rank lines).
"""

from __future__ import annotations

import re
from itertools import pairwise

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import (
    FACTOR_0,
    FACTOR_1,
    FACTOR_2,
    CollectiveRun,
    RankLine,
    Row,
    Timing,
    check_ranks,
    infer,
)
from pipette_milp.importers.text import Cell, Line, Text, clean, read_numbers
from pipette_milp.units import GB, US

KIND = "nccl-tests"

_RANK = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)"
)
_START = re.compile(r"#?\s*(?:nThread\b|nccl-tests version\b)")
_OUT_OF_BOUNDS = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\b")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)")
_COLLECTIVE = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|broadcast|reduce|gather|"
    r"scatter|hypercube)(?:_perf\b|\b)",
    re.IGNORECASE,
)
_TITLE = re.compile(r"Collective test starting:\s*(\S+)")
_TIME_NAMES = frozenset({"time", "cputime"})
_ERROR_NAMES = frozenset({"error", "#wrong"})
# Printed figures have two decimals of GB/s and at least three digits of time.
_ROUNDING_BYTES_PER_S = 0.0051 * GB
_ROUNDING_RELATIVE = 1e-3
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is text output of nccl-tests."""
    head = text[:200_000]
    if "algbw" in head and "busbw" in head and not head.lstrip().startswith(("{", "[\n", '["')):
        return 0.95
    return 0.6 if _RANK.search(head) else 0.0


def parse(text: str, source: str) -> tuple[CollectiveRun, ...]:
    """Every run of a log; logs of several runs may stand one after the other.

    Raises:
        InputError: no table, a damaged row, or several processes that each ran alone.
    """
    content = clean(text, source)
    runs = [_run(block, content) for block in _blocks(content)]
    if not runs:
        raise content.error("found no table of nccl-tests (a header line with size, time, algbw and busbw)")
    return tuple(runs)


def _is_header(line: Line) -> bool:
    words = line.text.replace("#wrong", " wrong").split()
    return "algbw" in words and "busbw" in words


def _blocks(content: Text) -> list[list[Line]]:
    """Lines of each run: a new one starts at a start line (or a second header) after rows of data."""
    blocks: list[list[Line]] = [[]]
    header_seen = rows_seen = False
    for line in content.lines:
        if not line.text.strip():
            continue
        starts = bool(_START.match(line.text.strip())) and (rows_seen or header_seen)
        if starts or (_is_header(line) and rows_seen):
            blocks.append([])
            header_seen = rows_seen = False
        header_seen = header_seen or _is_header(line)
        rows_seen = rows_seen or (header_seen and line.text.split()[0].isdigit())
        blocks[-1].append(line)
    return [
        block for block in blocks if any(_is_header(line) or _RANK.match(line.text.strip()) for line in block)
    ]


def _run(lines: list[Line], content: Text) -> CollectiveRun:
    ranks: list[RankLine] = []
    rank_place = content.place(lines[0])
    for line in lines:
        match = _RANK.match(line.text.strip())
        if match:
            ranks.append(RankLine(int(match[1]), match[2], int(match[3]), match[4].strip(), match[5].strip()))
            rank_place = content.place(line)
        elif re.match(r"#?\s*Rank\s", line.text.strip()):
            raise content.error("cannot read this line of the rank list", line)
    check_ranks(tuple(ranks), rank_place)
    headers = [line for line in lines if _is_header(line)]
    if len(headers) > 1:
        raise content.error(
            "a second table header before the first row: the output of several processes is mixed", headers[1]
        )
    warnings: list[Problem] = []
    rows = _rows(lines[lines.index(headers[0]) + 1 :], headers[0], content, warnings) if headers else ()
    place = content.place(headers[0] if headers else lines[-1])
    if not rows:
        if not ranks:
            raise content.error("the table has no rows: nothing was measured, run it again", headers[0])
        warnings.append(
            Problem(place, "the log has a rank list but no rows: nothing was measured, run it again")
        )
    collective, count = infer(rows, tuple(ranks), _collective_name(lines), place)
    if not any(_AVERAGE.match(line.text.strip()) for line in lines):
        warnings.append(
            Problem(content.place(lines[-1]), "the closing summary is missing: the log may be cut")
        )
    for line in lines:
        failed = _OUT_OF_BOUNDS.match(line.text.strip())
        if failed and int(failed[1]):
            raise content.error(f"{failed[1]} values were out of bounds: the run is not valid", line)
    return CollectiveRun(
        source=content.source,
        place=place,
        collective=collective,
        ranks=tuple(ranks),
        rank_count=count,
        rows=rows,
        average_busbw_bytes_per_s=_average(lines, content),
        warnings=tuple(warnings),
    )


def _collective_name(lines: list[Line]) -> str | None:
    for line in lines:
        match = _TITLE.search(line.text) or _COLLECTIVE.search(line.text if "_perf" in line.text else "")
        if match:
            return canonical_collective(match[1])
    return None


def canonical_collective(name: str) -> str | None:
    """``AllReduce``, ``all_reduce_perf`` ... as nccl-tests names its programs; None = unknown."""
    key = re.sub(r"_?perf$", "", name.lower()).replace("_", "")
    return next((known for known in FACTOR_0 | FACTOR_1 | FACTOR_2 if known.replace("_", "") == key), None)


def _average(lines: list[Line], content: Text) -> float | None:
    for line in lines:
        match = _AVERAGE.match(line.text.strip())
        if match and match[1].lower() != "nan":
            return read_numbers([Cell(match[1], line, line.text.index(match[1]))], content)[0] * GB
    return None


def _rows(lines: list[Line], header: Line, content: Text, warnings: list[Problem]) -> tuple[Row, ...]:
    columns = [cell.text for cell in _header_cells(header)]
    missing = [name for name in ("size", "algbw", "busbw") if name not in columns]
    if missing or not any(name in _TIME_NAMES for name in columns):
        raise content.error(f"the header has no column {', '.join(missing or ['time'])}: it is cut", header)
    for name in ("size", "count", "type", "redop", "root"):
        if columns.count(name) > 1:
            raise content.error(f"column {name} occurs twice", header)
    modes = _modes(columns, content, header)
    unit_line = next((line for line in lines if "(B)" in line.text or "(us)" in line.text), None)
    if unit_line is not None:
        odd = [word for word in unit_line.text.split() if re.fullmatch(r"\([^)]*s\)", word)]
        odd = [word for word in odd if word not in ("(elements)", "(us)", "(GB/s)")]
        if odd:
            raise content.error(f"expected bytes, us and GB/s as units, got {' '.join(odd)}", unit_line)
    rows: list[Row] = []
    for line in lines:
        words = line.text.split()
        if not words or words[0].startswith("#") or _is_header(line):
            continue
        cells = _with_whole_timestamps(line.cells())
        if not any(cell.text.isdigit() for cell in cells[:1]) and columns[0] == "size":
            if re.match(r"[\d.,]+$", words[0]):
                raise content.error(f"expected a message size in whole bytes, got {words[0]!r}", cells[0])
            continue  # NCCL's own warnings and other programs' lines
        last = not content.complete and line is content.lines[-1]
        if len(cells) != len(columns) or last:
            if line is content.lines[-1]:
                warnings.append(Problem(content.place(line), "the last row is cut and was left out"))
                continue
            raise content.error(f"the row has {len(cells)} cells for {len(columns)} columns", line)
        row = _row(dict(zip(range(len(columns)), cells, strict=True)), columns, modes, content)
        if row is not None:
            rows.append(row)
    if any(one.size_bytes == two.size_bytes for one, two in pairwise(rows)) and columns.count("size") == 1:
        raise content.error(
            "a message size occurs twice in a row: the output of several processes is mixed", header
        )
    return tuple(rows)


def _with_whole_timestamps(cells: list[Cell]) -> list[Cell]:
    """Cells with date and time, which a blank separates, joined into one."""
    joined: list[Cell] = []
    for cell in cells:
        if joined and _DATE.fullmatch(joined[-1].text) and ":" in cell.text:
            joined[-1] = Cell(f"{joined[-1].text} {cell.text}", joined[-1].line, joined[-1].start)
        else:
            joined.append(cell)
    return joined


def _header_cells(header: Line) -> list[Cell]:
    cells = header.cells()
    if cells[0].text == "#":
        return cells[1:]
    if cells[0].text.startswith("#") and cells[0].text != "#wrong":
        return [Cell(cells[0].text[1:], header, cells[0].start + 1), *cells[1:]]
    return cells


def _modes(columns: list[str], content: Text, header: Line) -> list[dict[str, int]]:
    """Column numbers of time, algbw, busbw and errors of each mode, in order."""
    times = [index for index, name in enumerate(columns) if name in _TIME_NAMES]
    algbws = [index for index, name in enumerate(columns) if name == "algbw"]
    busbws = [index for index, name in enumerate(columns) if name == "busbw"]
    errors = [index for index, name in enumerate(columns) if name in _ERROR_NAMES]
    if not len(times) == len(algbws) == len(busbws) or len(times) > 2:
        raise content.error(
            "time, algbw and busbw do not come in equal numbers: the header is damaged", header
        )
    return [
        {
            "time": times[i],
            "algbw": algbws[i],
            "busbw": busbws[i],
            **({"wrong": errors[i]} if i < len(errors) else {}),
        }
        for i in range(len(times))
    ]


def _row(
    cells: dict[int, Cell], columns: list[str], modes: list[dict[str, int]], content: Text
) -> Row | None:
    size_cell = cells[columns.index("size")]
    if not size_cell.text.isdigit():
        raise content.error(f"expected a message size in whole bytes, got {size_cell.text!r}", size_cell)
    size = int(size_cell.text)
    if size == 0:
        return None
    timings = [_timing(cells, mode, size, content) for mode in modes]
    return Row(size, timings[0], timings[1] if len(timings) > 1 else None)


def _timing(cells: dict[int, Cell], mode: dict[str, int], size: int, content: Text) -> Timing | None:
    figures = [cells[mode[name]] for name in ("time", "algbw", "busbw")]
    if all(cell.text.lower() in ("n/a", "-") for cell in figures):
        return None
    time_us, algbw, busbw = read_numbers(figures, content)
    wrong: int | None = None
    if "wrong" in mode:
        cell = cells[mode["wrong"]]
        if cell.text.upper() != "N/A":
            wrong = int(read_numbers([cell], content)[0])
            if wrong:
                raise content.error(f"{wrong} elements had a wrong value: the run is not valid", cell)
    check_timing(size, time_us, algbw, busbw, figures[1].at(content.source))
    return Timing(time_us * US, algbw * GB, busbw * GB, wrong)


def check_timing(size: int, time_us: float, algbw: float, busbw: float, place: str) -> None:
    """Refuses figures that cannot belong together.

    Raises:
        InputError: the time is not positive, or algbw is not size / time within the printed digits.
    """
    if time_us <= 0 or algbw < 0 or busbw < 0:
        raise InputError(Problem(place, "expected a positive time and bandwidths that are not negative"))
    expected = size / (time_us * US)
    if abs(algbw * GB - expected) > _ROUNDING_BYTES_PER_S + _ROUNDING_RELATIVE * expected:
        raise InputError(
            Problem(
                place,
                f"algbw {algbw:g} GB/s is not size / time = {expected / GB:.2f} GB/s: the row is damaged",
            )
        )
