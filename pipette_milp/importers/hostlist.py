"""Slurm's short form of many names: ``node[01-03,7],login`` (several brackets, leading zeros, lists)."""

from __future__ import annotations

import itertools
import re

MOST_NAMES = 65_536
"""More names than this in one list are taken for a slip of the keyboard."""

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """The names of a host list, in order.

    Raises:
        ValueError: brackets that do not match, a range that runs backwards, an empty name, too many names.
    """
    names: list[str] = []
    for item in _parts(text):
        if not item:
            raise ValueError(f"an empty name in {text[:60]!r}")
        names += _names(item, MOST_NAMES - len(names))
    return names


def _parts(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign == "[") - (sign == "]")
        if depth not in (0, 1):
            raise ValueError(f"brackets do not match in {text[:60]!r}")
        if sign == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth:
        raise ValueError(f"a bracket is not closed in {text[-60:]!r}")
    return [*parts, text[start:]]


def _names(item: str, room: int) -> list[str]:
    pieces: list[list[str]] = []
    count = 1
    for piece in re.split(r"(\[[^\]]*\])", item):
        choices = _choices(piece[1:-1], room) if piece.startswith("[") else [piece]
        pieces.append(choices)
        count *= len(choices)
        if count > room:
            raise ValueError(f"{item[:60]!r} stands for more than {MOST_NAMES} names")
    return ["".join(chosen) for chosen in itertools.product(*pieces)]


def _choices(ranges: str, room: int) -> list[str]:
    found: list[str] = []
    for text in ranges.split(","):
        match = _RANGE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected numbers such as [01-03,7], got [{ranges[:40]}]")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"the range {text} runs backwards")
        if high - low >= room:
            raise ValueError(f"the range {text} stands for more than {MOST_NAMES} names")
        # leading zeros of the first number fix the width
        width = len(match[1]) if match[1].startswith("0") else 0
        found += [str(number).zfill(width) for number in range(low, high + 1)]
    return found
