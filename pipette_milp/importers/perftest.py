"""Logs of perftest (``ib_write_bw`` and its kin): text between dashed lines, or the JSON of ``--out_json``.

``MB/sec`` of old versions is MiB/s like ``MiB/sec``; ``--report_gbits`` prints Gbit/s. Columns are read by
name. A bidirectional bandwidth is the sum of both directions.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Literal

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.jsontext import load, number, whole
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.importers.text import Cell, Line, Text, clean, read_numbers
from pipette_milp.units import MIB, Dimension, unit_factor

KIND = "perftest"

_FACTOR = {"MiB/sec": MIB, "MB/sec": MIB, "Gb/sec": 1e9 / 8}
_US = 1e-6
_TITLE = re.compile(
    r"((?:RDMA_Write|RDMA_Read|Send|Atomic|Raw_?Ethernet)\S*.*?(?:BW|Bandwidth|Latency).*?)\s*$"
)
_HEADER = re.compile(r"#bytes\s+#iterations\b")
_COLUMN = re.compile(r"(#\w+|BW peak|BW average|MsgRate|t_\w+|99(?:\.\d+)?%(?: percentile)?)(\s*\[[^\]]*\])?")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a log of perftest."""
    if re.search(r"#bytes\s+#iterations\s+(?:BW peak|t_min|#)", text):
        return 0.95
    json_keys = ('"MsgSize"', '"n_iterations"', '"BW_average"')
    return (
        0.9 if text.lstrip("\ufeff \t\r\n").startswith("{") and all(key in text for key in json_keys) else 0.0
    )


def parse(text: str, source: str, unit: str | None = None) -> tuple[PointToPoint, ...]:
    """Every test of a log.

    Args:
        unit: of the bandwidths of a JSON file, which does not state it.

    Raises:
        InputError: no table of figures, an unknown unit, a row that does not fit the header; with line.
    """
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return (_from_json(load(text, source), source, unit),)
    content = clean(text, source)
    title = ""
    device: str | None = None
    on_gpu: bool | None = None
    found: list[PointToPoint] = []
    problems: list[Problem] = []
    header: list[tuple[str, str]] | None = None
    rows: list[list[Cell]] = []

    def finish() -> None:
        nonlocal header, rows
        if header is not None and rows:
            found.append(_test(content, title, device, on_gpu, header, rows))
        header, rows = None, []

    for line in content.lines:
        words = line.text.strip()
        if _HEADER.match(words):
            finish()
            header = _columns(words)
            if _COLUMN.sub("", words).strip():
                problems.append(Problem(content.place(line), f"cannot read the header {words[:60]!r}"))
        elif header is not None and re.match(r"\d", words):
            cells = line.cells()
            if len(cells) != len(header):
                place = content.place(line)
                problems.append(Problem(place, f"has {len(cells)} figures, the header {len(header)} columns"))
            else:
                rows.append(cells)
        elif match := re.search(r"\bDevice\s*:\s*(\S+)", words):
            device = match[1]
        elif "CUDA" in words or "GPU memory" in words:
            on_gpu = True
        elif (match := _TITLE.search(words)) and ":" not in words:
            finish()
            title = match[1]
        elif words and not set(words) <= {"-"} and header is not None and not rows:
            problems.append(Problem(content.place(line), f"expected a row of figures, got {words[:60]!r}"))
    finish()
    if problems:
        raise InputError(problems[:10])
    if not found:
        raise content.error("found no row below a header: #bytes #iterations BW peak[MiB/sec] ...")
    return tuple(found)


def _columns(words: str) -> list[tuple[str, str]]:
    """(name, unit) of every column."""
    return [(match[1], (match[2] or "").strip(" []")) for match in _COLUMN.finditer(words)]


def _test(
    content: Text,
    title: str,
    device: str | None,
    on_gpu: bool | None,
    header: list[tuple[str, str]],
    rows: list[list[Cell]],
) -> PointToPoint:
    names = [name for name, _ in header]
    line: Line = rows[0][0].line
    if "BW average" in names:
        index, metric = names.index("BW average"), "bandwidth"
        unit = header[index][1]
        if unit not in _FACTOR:
            raise content.error(f"unknown unit {unit!r}, known are {', '.join(_FACTOR)}", line)
        factor = _FACTOR[unit]
    else:
        column = next((name for name in ("t_typical", "t_avg") if name in names), None)
        if column is None:
            raise content.error("the header has neither BW average nor t_typical", line)
        index, metric, factor = names.index(column), "latency", _US
        if header[index][1] != "usec":
            raise content.error(f"unknown unit {header[index][1]!r}, expected usec", line)
    sizes = [row[0] for row in rows]
    wrong = [cell for cell in sizes if not cell.text.isdigit()]
    if wrong:
        raise content.error("expected a whole number of bytes", wrong[0])
    _check_columns(content, names, rows)
    cells = [row[index] for row in rows]
    values = read_numbers(cells, content)
    nothing = [cell for cell, value in zip(cells, values, strict=True) if value <= 0]
    if nothing:
        raise content.error("expected more than 0", nothing[0])
    warnings = content.cut_warnings()
    if not title:
        warnings.append(
            Problem(content.place(line), "the title of the test is missing: taken as one direction at a time")
        )
    return PointToPoint(
        source=content.source,
        tool="perftest",
        title=title,
        metric="bandwidth" if metric == "bandwidth" else "latency",
        rows=tuple((int(size.text), value * factor) for size, value in zip(sizes, values, strict=True)),
        both_ways="bidirectional" in title.lower(),
        hosts=(),
        device=device,
        on_gpu=on_gpu,
        warnings=tuple(warnings),
    )


def _check_columns(content: Text, names: list[str], rows: list[list[Cell]]) -> None:
    """Whether the figures stand below their own titles, as far as they show it.

    Raises:
        InputError: iterations that are no whole number, a typical time outside its least and most, an average
            bandwidth above its peak.
    """
    order: list[str] = [name for name in ("t_min", "t_typical", "t_max") if name in names]
    if "BW peak" in names:
        order = ["BW average", "BW peak"]
    columns = [read_numbers([row[names.index(name)] for row in rows], content) for name in order]
    for position, row in enumerate(rows):
        if "#iterations" in names and not row[names.index("#iterations")].text.isdigit():
            raise content.error("expected a whole number of iterations", row[names.index("#iterations")])
        figures = [column[position] for column in columns]
        # a peak of 0 was not measured
        if figures[-1:] != [0.0] and any(b < a * (1 - 1e-3) for a, b in pairwise(figures)):
            raise content.error(f"expected {' <= '.join(order)}: are the columns in order?", row[0])


def _from_json(data: Any, source: str, unit: str | None) -> PointToPoint:
    """``--out_json``: what was tested under ``test_info``, figures under ``results``."""
    if not isinstance(data, dict):
        raise InputError(Problem(source, "expected an object"))
    information = data.get("test_info")
    results = data.get("results", data)
    rows = results if isinstance(results, list) else [results]
    values: list[tuple[int, float]] = []
    metrics: set[Literal["bandwidth", "latency"]] = set()
    for index, row in enumerate(rows):
        place = f"{source}: results[{index}]"
        if not isinstance(row, dict) or "MsgSize" not in row:
            raise InputError(Problem(place, "expected an object with MsgSize"))
        size = whole(row["MsgSize"], f"{place}.MsgSize")
        latency = next((name for name in ("t_typical", "t_avg") if name in row), None)
        if "BW_average" in row:
            if unit is None:
                raise InputError(
                    Problem(
                        source,
                        "the JSON of perftest does not state its unit: say --unit Gbit/s or --unit MiB/s",
                    )
                )
            value = number(row["BW_average"], f"{place}.BW_average") * unit_factor(unit, Dimension.BANDWIDTH)
            metrics.add("bandwidth")
        elif latency is not None:
            value = number(row[latency], f"{place}.{latency}") * _US
            metrics.add("latency")
        else:
            raise InputError(Problem(place, "expected BW_average or t_typical"))
        if value <= 0:
            raise InputError(Problem(place, "expected more than 0"))
        values.append((size, value))
    if len(metrics) != 1:
        raise InputError(Problem(source, "expected results of one kind, bandwidth or latency"))
    title = _text(information, "test") or ""
    return PointToPoint(
        source=source,
        tool="perftest",
        title=title,
        metric=metrics.pop(),
        rows=tuple(values),
        both_ways="bidirectional" in title.lower(),
        hosts=(),
        device=_text(information, "device"),
    )


def _text(information: Any, name: str) -> str | None:
    """A text of the test information, whatever the case of its key."""
    if not isinstance(information, dict):
        return None
    found = (value for key, value in information.items() if str(key).lower() == name)
    value = next(found, None)
    return value if isinstance(value, str) else None
