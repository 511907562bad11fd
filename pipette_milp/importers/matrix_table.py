"""A table of bandwidths, node by node: CSV, TSV or aligned columns, with the names of the nodes.

Row = sender, column = receiver, unless the corner cell says otherwise. Columns and rows are matched by
name. The unit must be stated: in a comment, in the corner cell, in the file name, or by the caller.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.facts import PairwiseBandwidth, pairwise
from pipette_milp.importers.text import (
    Cell,
    Line,
    Text,
    clean,
    is_unknown,
    looks_numeric,
    normalised_names,
    read_numbers,
)
from pipette_milp.importers.units_in_text import unit_in_file_name, units_in
from pipette_milp.units import Dimension, unit_factor

KIND = "matrix"

_FROM = r"src|source|from|sender|send|tx"
_TO = r"dst|dest|destination|to|receiver|recv|rx"
_ROW_IS_SENDER = re.compile(rf"\b(?:{_FROM})\b.*\b(?:{_TO})\b", re.IGNORECASE)
_ROW_IS_RECEIVER = re.compile(rf"\b(?:{_TO})\b.*\b(?:{_FROM})\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Table:
    corner: str
    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, tuple[Cell, ...]], ...]
    """(name, one cell per column)"""


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a square table with names."""
    content = clean(text, "")
    lines = _table_lines(content)
    if len(lines) < 3:
        return 0.0
    separator = _separator(lines)
    header, *rows = [_cells(line, separator) for line in lines]
    width = max(len(row) for row in rows)
    if len(rows) < 2 or len(header) not in (width, width - 1) or abs(len(rows) - (width - 1)) > 1:
        return 0.0
    names = header[1:] if len(header) == width else header
    if not names or sum(looks_numeric(cell.text) for cell in names) > len(names) / 2:
        return 0.0
    figures = [cell.text for row in rows for cell in row[1:]]
    good = sum(looks_numeric(cell) or is_unknown(cell) for cell in figures)
    return 0.8 if figures and good >= 0.8 * len(figures) else 0.0


def parse(text: str, source: str, unit: str | None = None) -> PairwiseBandwidth:
    """The matrix in bytes/s; in its own unit, and with ``unit`` None, where nothing states the unit.

    Args:
        unit: of the figures, wins over nothing: it must agree with a unit that the text states.

    Raises:
        InputError: no square table, a row of another length, a name without row or column, a cell that is
            no number, two units; each with line and column.
    """
    content = clean(text, source)
    table = _read(content)
    warnings: list[Problem] = []
    names = normalised_names(table.columns, content, "node")
    row_names = normalised_names([name for name, _ in table.rows], content, "node")
    for name, _ in table.rows:
        if name.text not in names:
            raise content.error(f"row {name.text!r} has no column", name)
    for cell in table.columns:
        if cell.text not in row_names:
            raise content.error(f"column {cell.text!r} has no row: the table is cut", cell)
    known = [cell for _, cells in table.rows for cell in cells if not is_unknown(cell.text)]
    if not known:
        raise content.error("the table holds no figures", table.columns[0])
    numbers = dict(
        zip(((cell.line.number, cell.start) for cell in known), read_numbers(known, content), strict=True)
    )
    n = len(names)
    values = np.full((n, n), np.nan)
    for name, cells in table.rows:
        a = names.index(name.text)
        for b, cell in enumerate(cells):
            value = numbers.get((cell.line.number, cell.start))
            if a == b or value is None:
                continue
            if value <= 0:
                raise content.error(
                    f"{names[a]} and {names[b]}: expected more than 0, got {cell.text} (leave a pair blank "
                    f"that was "
                    f"not measured)",
                    cell,
                )
            values[a, b] = value
    if _ROW_IS_RECEIVER.search(table.corner) and not _ROW_IS_SENDER.search(table.corner):
        values = values.T
    elif not _ROW_IS_SENDER.search(table.corner):
        warnings.append(
            Problem(
                content.place(table.columns[0].line), "does not say what the rows are: taken as the senders"
            )
        )
    last = table.rows[-1][1][-1]
    if not content.complete and last.line is content.lines[-1] and not is_unknown(last.text):
        warnings.append(
            Problem(last.at(source), f"the file ends right after {last.text!r}, which may be cut")
        )
    stated = stated_unit(content, table.corner, unit, warnings)
    return pairwise(
        source,
        tuple(names),
        values,
        None if stated is None else unit_factor(stated, Dimension.BANDWIDTH),
        stated,
        measures=None,
        simultaneous_flows=None,
        directed=True,
        warnings=tuple(warnings),
    )


def stated_unit(content: Text, corner: str, unit: str | None, warnings: list[Problem]) -> str | None:
    """The one unit that the caller, the comments, a header cell or the file name state; None if none does.

    Raises:
        InputError: two of them disagree, or the caller's is no bandwidth.
    """
    if unit is not None:
        try:
            unit_factor(unit, Dimension.BANDWIDTH)
        except ValueError as error:
            raise InputError(f"--unit: {error}") from None
    comments = "\n".join(line.text for line in content.lines if line.text.lstrip().startswith("#"))
    found = list(dict.fromkeys([*units_in(corner), *units_in(comments), *([unit] if unit else [])]))
    if len(found) > 1:
        raise content.error(f"states several units: {', '.join(found)}")
    if found:
        return found[0]
    by_name = unit_in_file_name(content.source)
    if by_name is not None:
        warnings.append(Problem(content.source, f"the unit {by_name} is taken from the name of the file"))
    return by_name


def _table_lines(content: Text) -> list[Line]:
    return [line for line in content.lines if line.text.strip() and not line.text.lstrip().startswith("#")]


def _separator(lines: list[Line]) -> str | None:
    """Tab, semicolon or comma if every line has it, None = blanks."""
    for separator in ("\t", ";"):
        if all(separator in line.text for line in lines):
            return separator
    if all("," in line.text for line in lines):
        # "1,5 2,5" has commas, but as decimal signs: a comma that separates never stands between digits
        # of a line whose words are numbers.
        words = [word for line in lines[1:] for word in line.text.split()[1:]]
        if (
            words
            and all(looks_numeric(word.strip(";")) for word in words)
            and all(len(line.text.split()) > 2 for line in lines[1:])
            and not any(word.endswith(",") for word in words)
        ):
            return None
        return ","
    return None


def _cells(line: Line, separator: str | None) -> list[Cell]:
    if separator is None:
        return line.cells()
    return [Cell(cell.text.strip('"').strip(), line, cell.start) for cell in line.split(separator)]


def _read(content: Text) -> _Table:
    lines = _table_lines(content)
    if len(lines) < 2:
        raise content.error(
            "expected a header line with names of nodes, and a row for each", lines[0] if lines else None
        )
    separator = _separator(lines)
    header = _cells(lines[0], separator)
    bodies = [_cells(line, separator) for line in lines[1:]]
    width = max(len(row) for row in bodies)
    corner = ""
    # Trailing separators of a header line are not columns.
    while len(header) > width and not header[-1].text:
        header.pop()
    if len(header) == width:
        corner, header = header[0].text, header[1:]
    elif len(header) != width - 1:
        raise content.error(
            f"the header has {len(header)} cells, but the longest row has {width}{_blanks_hint(separator)}",
            lines[0],
        )
    odd = [cell for cell in header if looks_numeric(cell.text)]
    if len(odd) == len(header):
        raise content.error("expected names of nodes in the first line, found only numbers", lines[0])
    rows: list[tuple[Cell, tuple[Cell, ...]]] = []
    for line, cells in zip(lines[1:], bodies, strict=True):
        if len(cells) != len(header) + 1:
            hint = _blanks_hint(separator)
            raise content.error(f"the row has {len(cells) - 1} figures for {len(header)} nodes{hint}", line)
        rows.append((cells[0], tuple(cells[1:])))
    return _Table(corner, tuple(header), tuple(rows))


def _blanks_hint(separator: str | None) -> str:
    return (
        " (with blanks between the columns an empty cell is lost: write a dash for it)"
        if separator is None
        else ""
    )
