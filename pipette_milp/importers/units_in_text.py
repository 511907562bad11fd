"""The unit of a table of bandwidths, wherever people write it."""

from __future__ import annotations

import re

from pipette_milp.units import UNITS, Dimension

_SPELLED = sorted(UNITS[Dimension.BANDWIDTH], key=len, reverse=True)
_IN_TEXT = re.compile(r"(?<![\w/])(" + "|".join(map(re.escape, _SPELLED)) + r")(?![\w/])")
# File names cannot hold a slash: MiBps, MiB_s, GBs. A lone "GBps" is a byte unit here, because bits are
# "Gbps".
_IN_NAME = re.compile(r"(?<![A-Za-z])([kMGT]i?B|[kMGT]bit|[kMGT]b)(?:ps|_per_s|_s)(?![A-Za-z])")


def units_in(text: str) -> list[str]:
    """Every bandwidth unit spelled in a text, without repeats."""
    return list(dict.fromkeys(match[1] for match in _IN_TEXT.finditer(text)))


def unit_in_file_name(source: str) -> str | None:
    """The unit that a file name ends with, as in ``links_MiBps.tsv``; None where there is none or several."""
    found = {f"{match[1]}/s" for match in _IN_NAME.finditer(source.rsplit("/", 1)[-1])}
    found &= set(UNITS[Dimension.BANDWIDTH])
    return found.pop() if len(found) == 1 else None
