from __future__ import annotations

import math

import pytest

from pipette_milp.units import UNITS, Dimension, format_quantity, parse_quantity, readings


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("25 GB/s", Dimension.BANDWIDTH, 25e9),
        ("200 Gbit/s", Dimension.BANDWIDTH, 25e9),
        ("200Gb/s", Dimension.BANDWIDTH, 25e9),
        ("400 Gbps", Dimension.BANDWIDTH, 50e9),
        ("18443 MiB/s", Dimension.BANDWIDTH, 18443 * 2.0**20),
        ("80 GiB", Dimension.BYTES, 80 * 2.0**30),
        ("79.1GiB", Dimension.BYTES, 79.1 * 2.0**30),
        ("8 us", Dimension.TIME, 8e-6),
        ("8 µs", Dimension.TIME, 8e-6),
        ("1.5e2 ns", Dimension.TIME, 1.5e-7),
        ("312 TFLOP/s", Dimension.FLOP_RATE, 312e12),
        (" 1 PFLOP/s ", Dimension.FLOP_RATE, 1e15),
        (5, Dimension.TIME, 5.0),
        (2.5e9, Dimension.BANDWIDTH, 2.5e9),
    ],
)
def test_reads(text: object, dimension: Dimension, expected: float) -> None:
    assert parse_quantity(text, dimension) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "says"),
    [
        ("25 gb/s", Dimension.BANDWIDTH, ['"GB/s"', '"Gbit/s"', "case-sensitive"]),
        ("25 GBPS", Dimension.BANDWIDTH, ['"GB/s"', '"Gbit/s"']),
        ("25 GBps", Dimension.BANDWIDTH, ['"GB/s"', '"Gbit/s"']),
        ("64 KB", Dimension.BYTES, ['"kB"', '"KiB"']),
        ("312 TFLOPS", Dimension.FLOP_RATE, ['"TFLOP/s"']),
        ("8 US", Dimension.TIME, ['"us"']),
        ("80 GiB", Dimension.BANDWIDTH, ["measures bytes", "expected bytes/s"]),
        ("25 GB/s", Dimension.BYTES, ["measures bytes/s", "expected bytes"]),
        ("25 parsec", Dimension.BANDWIDTH, ["unknown unit 'parsec'"]),
        ("25", Dimension.BANDWIDTH, ["no unit"]),
        ("fast", Dimension.BANDWIDTH, ["cannot read 'fast'"]),
        ("1,000 GB/s", Dimension.BANDWIDTH, ["',000 GB/s'"]),
        ("-25 GB/s", Dimension.BANDWIDTH, ["not negative"]),
        (-1, Dimension.TIME, ["not negative"]),
        (math.nan, Dimension.TIME, ["finite"]),
        (math.inf, Dimension.BANDWIDTH, ["finite"]),
        (True, Dimension.TIME, ["expected seconds", "True"]),
        (None, Dimension.BYTES, ["expected bytes"]),
    ],
)
def test_refuses_and_says_what_would_do(text: object, dimension: Dimension, says: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        parse_quantity(text, dimension)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize("dimension", list(Dimension))
def test_no_spelling_means_two_things(dimension: Dimension) -> None:
    for other in Dimension:
        if other is not dimension:
            assert not set(UNITS[dimension]) & set(UNITS[other])


def test_readings_of_a_folded_spelling_are_all_accepted_units() -> None:
    accepted = {name for units in UNITS.values() for name in units}
    for spelling in ("gb/s", "mb/s", "GIB", "tflops", "Gigabytes"):
        assert set(readings(spelling)) <= accepted
    assert readings("gb/s")


@pytest.mark.parametrize(
    ("value", "dimension", "expected"),
    [
        (79.1 * 2**30, Dimension.BYTES, "79.1 GiB"),
        (19.3e9, Dimension.BANDWIDTH, "19.3 GB/s"),
        (312e12, Dimension.FLOP_RATE, "312 TFLOP/s"),
        (2250e12, Dimension.FLOP_RATE, "2250 TFLOP/s"),
        (8e-6, Dimension.TIME, "8 us"),
        (12.3456, Dimension.TIME, "12.3 s"),
        (0.0, Dimension.TIME, "0 s"),
        (1234.5, Dimension.TIME, "1234 s"),
    ],
)
def test_shows(value: float, dimension: Dimension, expected: str) -> None:
    assert format_quantity(value, dimension) == expected
