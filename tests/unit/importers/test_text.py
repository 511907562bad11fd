from __future__ import annotations

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers.text import Cell, clean, decode, read_numbers


def numbers(*cells: str) -> list[float]:
    text = clean(" ".join(cells), "f")
    return read_numbers(text.lines[0].cells(), text)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1", "2.5", "1e3", "-4"), [1.0, 2.5, 1000.0, -4.0]),
        (("16716,9", "18,5"), [16716.9, 18.5]),
        (("0,000", "1,234"), [0.0, 1.234]),
        (("16,716.9", "1.5"), [16716.9, 1.5]),
        (("16.716,9",), [16716.9]),
        (("18.325",), [18.325]),
    ],
)
def test_numbers_in_one_notation(cells: tuple[str, ...], expected: list[float]) -> None:
    assert numbers(*cells) == expected


def test_a_table_that_could_be_read_both_ways_is_refused() -> None:
    with pytest.raises(InputError, match=r"f:1:1: '1,234' could be 1234 or 1\.234"):
        numbers("1,234", "5,678")


def test_two_notations_in_one_table_are_refused() -> None:
    with pytest.raises(InputError, match="another decimal sign"):
        numbers("16716.9", "18470,3")


def test_no_number_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match="f:1:5: expected a number, got 'fast'"):
        numbers("1.5", "fast")


def test_columns_count_what_was_removed() -> None:
    line = clean("\x1b[4mab\x1b[0m cd\n", "f").lines[0]
    assert line.text == "ab cd"
    assert line.cells()[0].at("f") == "f:1:5"
    assert line.cells()[1].at("f") == "f:1:12"


def test_tags_of_mpirun_are_removed_and_counted() -> None:
    line = clean("[1,0]<stdout>:  8 2\n", "f").lines[0]
    assert [cell.text for cell in line.cells()] == ["8", "2"]
    assert line.cells()[0].at("f") == "f:1:17"


def test_tags_of_srun_only_when_all_lines_have_one() -> None:
    assert [line.text for line in clean("0: a\n1: b\n", "f").lines] == ["a", "b"]
    assert [line.text for line in clean("0: a\nb\n", "f").lines] == ["0: a", "b"]


def test_line_ends_and_missing_last_one() -> None:
    text = clean("a\r\nb\rc", "f")
    assert [line.text for line in text.lines] == ["a", "b", "c"]
    assert not text.complete


def test_utf16_with_a_mark_is_read_and_other_bytes_refused() -> None:
    assert decode("a\n".encode("utf-16"), "f") == "a\n"
    with pytest.raises(InputError, match="not UTF-8"):
        decode(b"a\xff\xfe", "f")
    with pytest.raises(InputError, match="zero bytes"):
        decode(b"a\x00b", "f")


def test_cells_between_separators_keep_their_columns() -> None:
    cells = clean("a\t\t b\n", "f").lines[0].split("\t")
    assert [(cell.text, cell.start) for cell in cells] == [("a", 0), ("", 2), ("b", 4)]
    assert isinstance(cells[0], Cell)
