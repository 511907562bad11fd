"""Pasted text made readable: encodings, line ends, colour codes, launcher tags, and numbers of any locale.

What stays visible through all of it is the place in the file, so that a diagnostic can name line and column.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipette_milp.errors import InputError, Problem

_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# `mpirun --tag-output` writes "[1,0]<stdout>:", `srun --label` writes "0: ".
_MPIRUN_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_SRUN_TAG = re.compile(r"\d+: ")


@dataclass(frozen=True)
class Line:
    """One line of a source: ``text`` is what is left of the line that stood at ``number`` (from 1)."""

    number: int
    text: str
    removed: tuple[tuple[int, int], ...] = ()
    """(position in the raw line, length) of what was taken out, ascending."""

    def column(self, index: int) -> int:
        """Column in the raw line (from 1) of ``text[index]``."""
        for position, length in self.removed:
            if position <= index:
                index += length
        return index + 1

    def cells(self) -> list[Cell]:
        """The words of the line, split at white space."""
        return [Cell(match[0], self, match.start()) for match in re.finditer(r"\S+", self.text)]

    def split(self, separator: str) -> list[Cell]:
        """The parts of the line between ``separator``, each without surrounding blanks."""
        cells: list[Cell] = []
        start = 0
        for part in self.text.split(separator):
            indent = len(part) - len(part.lstrip())
            cells.append(Cell(part.strip(), self, start + indent))
            start += len(part) + len(separator)
        return cells


@dataclass(frozen=True)
class Cell:
    """A word and where it stood."""

    text: str
    line: Line
    start: int

    def at(self, source: str) -> str:
        """``file:line:column``."""
        return f"{source}:{self.line.number}:{self.line.column(self.start)}"


@dataclass(frozen=True)
class Text:
    """A source as lines, and whether its last line ends with a line break."""

    source: str
    lines: tuple[Line, ...]
    complete: bool

    def place(self, line: Line | None = None) -> str:
        """``file:line:1``, or the end of the file."""
        number = line.number if line is not None else max(len(self.lines), 1)
        return f"{self.source}:{number}:{line.column(0) if line is not None else 1}"

    def cut_warnings(self) -> list[Problem]:
        """A warning where the last line has no line break: its last word may be half of one."""
        if self.complete or not self.lines or not self.lines[-1].text.strip():
            return []
        last = self.lines[-1]
        message = f"the file ends right after {last.text[-20:]!r}, which may be cut off"
        return [Problem(self.place(last), message)]

    def error(self, message: str, where: Cell | Line | None = None) -> InputError:
        """An error at a place."""
        path = where.at(self.source) if isinstance(where, Cell) else self.place(where)
        return InputError(Problem(path, message))


def decode(data: bytes, source: str) -> str:
    """Text of a file: UTF-8, or UTF-16 with a byte order mark (what a Windows shell redirects).

    Raises:
        InputError: neither.
    """
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text (byte {error.start})", source=source) from None
    if "\x00" in text:
        raise InputError("holds zero bytes, expected text", source=source)
    return text


def read(path: str | Path) -> str:
    """Text of a file, ``-`` = standard input.

    Raises:
        InputError: missing, a directory, unreadable, or not text.
    """
    if str(path) == "-":
        return decode(sys.stdin.buffer.read(), "standard input")
    try:
        return decode(Path(path).read_bytes(), str(path))
    except FileNotFoundError:
        raise InputError("no such file", source=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a directory, expected a file", source=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", source=str(path)) from None


def clean(text: str, source: str) -> Text:
    """Lines without colour codes and launcher tags; CRLF and lone CR end lines too.

    A tag of ``srun --label`` is removed only when every line that is not empty carries one, because "0: "
    alone could be content.
    """
    raw = re.split(r"\r\n|\n|\r", text)
    complete = raw[-1] == ""
    if complete:
        raw.pop()
    lines = [_without(Line(number, line), _ANSI, anywhere=True) for number, line in enumerate(raw, start=1)]
    lines = [_without(line, _MPIRUN_TAG, anywhere=False) for line in lines]
    filled = [line for line in lines if line.text.strip()]
    if filled and all(_SRUN_TAG.match(line.text) for line in filled):
        lines = [_without(line, _SRUN_TAG, anywhere=False) for line in lines]
    return Text(source, tuple(lines), complete)


def _without(line: Line, pattern: re.Pattern[str], anywhere: bool) -> Line:
    removed = list(line.removed)
    kept: list[str] = []
    end = 0
    matches = pattern.finditer(line.text) if anywhere else filter(None, [pattern.match(line.text)])
    for match in matches:
        kept.append(line.text[end : match.start()])
        # Positions are those of the raw line: `column` adds the lengths of earlier removals one by one.
        removed.append((line.column(match.start()) - 1, match.end() - match.start()))
        end = match.end()
    if end == 0:
        return line
    kept.append(line.text[end:])
    return Line(line.number, "".join(kept), tuple(sorted(removed)))


_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(?:\d+,?\d*|,\d+)(?:[eE][+-]?\d+)?")
_GROUPED_BY_COMMA = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_GROUPED_BY_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")

_UNKNOWN = frozenset({"", "-", "--", "n/a", "na", "nan", "none", "null", "?", "x"})


def is_unknown(cell: str) -> bool:
    """Whether a cell says that nothing was measured."""
    return cell.strip().lower() in _UNKNOWN


def looks_numeric(text: str) -> bool:
    """Whether this could be a number in some locale."""
    return bool(re.fullmatch(r"[+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?", text))


def read_numbers(cells: Sequence[Cell], text: Text) -> list[float]:
    """Numbers of one table, all read in the one notation that fits them all.

    A decimal comma ("16716,9") and grouped thousands ("16,716.9") are accepted when the table leaves no
    doubt. A table in which every number could be read both ways ("1,234") is refused, because the readings
    differ a thousandfold.

    Raises:
        InputError: a cell is no number, is not finite, or the notation is in doubt; with its place.
    """
    readers = {
        "a decimal point": _decimal_point,
        "a decimal comma": _decimal_comma,
    }
    possible = {
        name: values for name, reader in readers.items() if (values := _read_all(cells, reader)) is not None
    }
    if not possible:
        # Name the cells that are no number in any notation, else the first that breaks the notation.
        wrong = [cell for cell in cells if all(reader(cell.text) is None for reader in readers.values())]
        if not wrong:
            wrong = [cell for cell in cells if _decimal_point(cell.text) is None][:1]
            message = "is written with another decimal sign than the rest of the table"
        else:
            message = "expected a number"
        raise InputError(
            [Problem(cell.at(text.source), f"{message}, got {cell.text!r}") for cell in wrong[:5]]
        )
    answers = list(possible.values())
    if len(answers) == 2 and answers[0] != answers[1]:
        doubtful = next(cell for cell, one, two in zip(cells, *answers, strict=True) if one != two)
        raise text.error(
            f"{doubtful.text!r} could be {_decimal_point(doubtful.text):g} or "
            f"{_decimal_comma(doubtful.text):g}: write a decimal point and no thousands separators",
            doubtful,
        )
    for cell, value in zip(cells, answers[0], strict=True):
        if not math.isfinite(value):
            raise text.error(f"expected a finite number, got {cell.text!r}", cell)
    return answers[0]


def _read_all(cells: Sequence[Cell], reader: Callable[[str], float | None]) -> list[float] | None:
    values: list[float] = []
    for cell in cells:
        value = reader(cell.text)
        if value is None:
            return None
        values.append(value)
    return values


def _decimal_point(text: str) -> float | None:
    if _POINT.fullmatch(text):
        return float(text)
    if _GROUPED_BY_COMMA.fullmatch(text):
        return float(text.replace(",", ""))
    return None


def _decimal_comma(text: str) -> float | None:
    # Plain points count as decimal points wherever a comma does not show otherwise: that is the norm in
    # logs, and "18.325" with a grouping point never occurs beside a decimal comma in them.
    if _COMMA.fullmatch(text):
        return float(text.replace(",", "."))
    if _GROUPED_BY_POINT.fullmatch(text) and ("," in text or text.count(".") > 1):
        return float(text.replace(".", "").replace(",", "."))
    return None


def normalised_names(cells: Iterable[Cell], text: Text, what: str) -> list[str]:
    """Names of hosts, refused when one occurs twice or is empty.

    Raises:
        InputError: with the place of the second one.
    """
    seen: dict[str, Cell] = {}
    names: list[str] = []
    for cell in cells:
        if not cell.text:
            raise text.error(f"expected the name of a {what}, found nothing", cell)
        if cell.text in seen:
            raise text.error(
                f"{what} {cell.text!r} occurs twice, first at {seen[cell.text].at(text.source)}", cell
            )
        seen[cell.text] = cell
        names.append(cell.text)
    return names
