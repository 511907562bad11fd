"""Units at the border of the program: everything inside is SI (bytes, bytes/s, seconds, FLOP/s).

Text quantities are case-sensitive, because ``Gb`` and ``GB`` differ by a factor of eight. A spelling
that could be read in more than one way is refused together with its readings.
"""

from __future__ import annotations

import math
import re
from enum import Enum

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2.0**10, 2.0**20, 2.0**30, 2.0**40
BITS_PER_BYTE = 8.0
US, MS = 1e-6, 1e-3
TFLOP_PER_S = 1e12

_BYTE_UNITS = {
    "B": 1.0,
    "kB": KB,
    "MB": MB,
    "GB": GB,
    "TB": TB,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}
_BIT_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FLOP_PREFIXES = {"": 1.0, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def _bandwidth_units() -> dict[str, float]:
    units = {f"{name}/s": factor for name, factor in _BYTE_UNITS.items()}
    for prefix, factor in _BIT_PREFIXES.items():
        units[f"{prefix}bit/s"] = factor / BITS_PER_BYTE
        if prefix:
            units[f"{prefix}b/s"] = factor / BITS_PER_BYTE
            units[f"{prefix}bps"] = factor / BITS_PER_BYTE
    return units


class Dimension(Enum):
    """What a quantity measures. The value is the name of its SI unit."""

    BYTES = "bytes"
    BANDWIDTH = "bytes/s"
    TIME = "seconds"
    FLOP_RATE = "FLOP/s"


UNITS: dict[Dimension, dict[str, float]] = {
    Dimension.BYTES: _BYTE_UNITS,
    Dimension.BANDWIDTH: _bandwidth_units(),
    Dimension.TIME: {"s": 1.0, "ms": MS, "us": US, "µs": US, "μs": US, "ns": 1e-9, "min": 60.0, "h": 3600.0},
    Dimension.FLOP_RATE: {f"{prefix}FLOP/s": factor for prefix, factor in _FLOP_PREFIXES.items()},
}
"""Factor to SI of every accepted spelling."""

EXAMPLES: dict[Dimension, str] = {
    Dimension.BYTES: '"80 GiB"',
    Dimension.BANDWIDTH: '"25 GB/s" or "200 Gbit/s"',
    Dimension.TIME: '"8 us"',
    Dimension.FLOP_RATE: '"312 TFLOP/s"',
}

# Spellings seen in the wild that are not accepted, because two readings are in use.
_DOUBTFUL: dict[str, tuple[str, ...]] = {
    "KB": ("kB", "KiB"),
    "KB/s": ("kB/s", "KiB/s"),
    "GBps": ("GB/s", "Gbit/s"),
    "MBps": ("MB/s", "Mbit/s"),
}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")


def _spelling_key(unit: str) -> str:
    """Folds what people confuse: case, ``per second`` spellings, plural FLOPS."""
    key = unit.lower().replace(" ", "")
    key = re.sub(r"flops?(?:/s)?$", "flop/s", key)
    key = re.sub(r"ps$", "/s", key)
    return re.sub(r"(bytes?)(?=$|/)", "b", key).replace("bit", "b").replace("ib", "b")


def readings(unit: str) -> tuple[str, ...]:
    """Accepted units that a refused spelling could stand for, any dimension."""
    if unit in _DOUBTFUL:
        return _DOUBTFUL[unit]
    key = _spelling_key(unit)
    found: list[str] = []
    seen: set[tuple[Dimension, float]] = set()
    for dimension, units in UNITS.items():
        for name, factor in units.items():
            if _spelling_key(name) == key and (dimension, factor) not in seen:
                seen.add((dimension, factor))
                found.append(name)
    return tuple(found)


def unit_factor(unit: str, dimension: Dimension) -> float:
    """Factor from ``unit`` to SI.

    Raises:
        ValueError: unknown unit, unit of another dimension, or a spelling with several readings; the
            message says what would be accepted.
    """
    factor = UNITS[dimension].get(unit)
    if factor is not None:
        return factor
    for other, units in UNITS.items():
        if unit in units:
            raise ValueError(
                f"unit {unit!r} measures {other.value}, expected {dimension.value}, "
                f"for example {EXAMPLES[dimension]}"
            )
    possible = [name for name in readings(unit) if name in UNITS[dimension]]
    if possible:
        choices = " or ".join(f'"{name}"' for name in possible)
        raise ValueError(f"unit {unit!r} is in doubt (units are case-sensitive): write {choices}")
    raise ValueError(f"unknown unit {unit!r}, expected {dimension.value}, for example {EXAMPLES[dimension]}")


def parse_quantity(value: object, dimension: Dimension) -> float:
    """A quantity in SI units, from text with a unit (``"25 GB/s"``) or a plain number in SI.

    Raises:
        ValueError: not a finite, non-negative quantity of this dimension.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(
            f"expected {dimension.value} as a number or as text such as {EXAMPLES[dimension]}, "
            f"got {_shown(value)}"
        )
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise ValueError(f"cannot read {value!r} as {dimension.value}, write {EXAMPLES[dimension]}")
        if match[2] is None:
            raise ValueError(
                f"{value!r} has no unit, write for example {EXAMPLES[dimension]}, "
                f"or a plain number in {dimension.value}"
            )
        number = float(match[1]) * unit_factor(match[2], dimension)
    else:
        number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number of {dimension.value}, got {value}")
    if number < 0:
        raise ValueError(f"expected {dimension.value} that are not negative, got {value}")
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_DISPLAY: dict[Dimension, tuple[tuple[str, float], ...]] = {
    Dimension.BYTES: (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB), ("B", 1.0)),
    Dimension.BANDWIDTH: (("TB/s", TB), ("GB/s", GB), ("MB/s", MB), ("kB/s", KB), ("B/s", 1.0)),
    Dimension.TIME: (("s", 1.0), ("ms", MS), ("us", US), ("ns", 1e-9)),
    Dimension.FLOP_RATE: (
        ("EFLOP/s", 1e18),
        ("PFLOP/s", 1e15),
        ("TFLOP/s", 1e12),
        ("GFLOP/s", 1e9),
        ("MFLOP/s", 1e6),
        ("FLOP/s", 1.0),
    ),
}


def format_quantity(value: float, dimension: Dimension, digits: int = 3) -> str:
    """Text for people: the largest unit that leaves at least one before the point.

    FLOP/s stay in TFLOP/s up to 10,000, as data sheets and logs print them; time above a second stays in
    seconds.
    """
    if value == 0:
        return f"0 {_DISPLAY[dimension][-1][0] if dimension is not Dimension.TIME else 's'}"
    for unit, factor in _DISPLAY[dimension]:
        threshold = 1e16 if unit == "PFLOP/s" else factor
        if abs(value) >= threshold:
            return f"{_significant(value / factor, digits)} {unit}"
    unit, factor = _DISPLAY[dimension][-1]
    return f"{_significant(value / factor, digits)} {unit}"


def _significant(number: float, digits: int) -> str:
    """``digits`` significant digits, but never an exponent and never fewer than the whole part."""
    whole = len(str(int(abs(number))))
    text = f"{number:.{max(digits - whole, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
