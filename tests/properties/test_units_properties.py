from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipette_milp.units import UNITS, Dimension, format_quantity, parse_quantity

dimensions = st.sampled_from(list(Dimension))
# Far inside the range of floats, so that no prefix overflows.
magnitudes = st.floats(min_value=1e-30, max_value=1e30)


@given(dimensions, magnitudes, st.data())
def test_text_with_a_unit_means_number_times_factor(
    dimension: Dimension, number: float, data: st.DataObject
) -> None:
    unit = data.draw(st.sampled_from(sorted(UNITS[dimension])))
    parsed = parse_quantity(f"{number!r} {unit}", dimension)
    assert parsed == pytest.approx(number * UNITS[dimension][unit], rel=1e-15)
    assert parse_quantity(parsed, dimension) == parsed


@given(dimensions, st.floats(min_value=1e-9, max_value=1e24))
def test_what_is_shown_can_be_read_back(dimension: Dimension, value: float) -> None:
    # Three digits above the smallest unit; below it fewer are left.
    smallest = 1e-9 if dimension is Dimension.TIME else 1.0
    assert parse_quantity(format_quantity(value, dimension), dimension) == pytest.approx(
        value, rel=6e-3, abs=6e-3 * smallest
    )


@given(st.text(max_size=12), dimensions)
def test_any_text_is_read_or_refused_with_a_reason(text: str, dimension: Dimension) -> None:
    reason, value = "", -1.0
    try:
        value = parse_quantity(text, dimension)
    except ValueError as error:
        reason = str(error)
    assert value >= 0 or dimension.value in reason or "write" in reason
