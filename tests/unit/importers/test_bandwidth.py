"""mpiGraph, the reference code's JSON, tables and lists."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import matrix_table, mpigraph, pair_list, reference_json
from pipette_milp.importers.units_in_text import unit_in_file_name, units_in
from pipette_milp.units import GB, MIB
from tests.importer_samples import sample


def test_mpigraph_keeps_how_many_flows_ran() -> None:
    log = mpigraph.parse(sample("bandwidth/mpigraph.out"), "f")
    assert log.ranks_per_host == 2
    assert log.message_bytes == 104857600
    assert log.warnings == ()
    pairs = log.pairwise()
    assert (pairs.measures, pairs.simultaneous_flows, pairs.names) == ("flow", 2, ("hosta", "hostb", "hostc"))
    # a -> b: 11010 plus the ranks' shares, mean over the four rank pairs, MiB/s
    assert pairs.values[0, 1] == pytest.approx((11010 + 0.5 + 0.25) * MIB)
    assert pairs.values[1, 0] == pytest.approx((11100 + 2.5 + 0.05) * MIB)
    assert np.isnan(np.diag(pairs.values)).all()


def test_mpigraph_forks_print_other_separators() -> None:
    one = mpigraph.parse(sample("bandwidth/mpigraph.out"), "f")
    two = mpigraph.parse(sample("bandwidth/mpigraph_fork.out"), "f")
    assert np.array_equal(one.send, two.send, equal_nan=True)
    assert one.message_bytes == two.message_bytes


def test_mpigraph_cut_in_the_second_matrix_is_said() -> None:
    text = sample("bandwidth/mpigraph.out")
    log = mpigraph.parse(text[: text.index("hostc:5 from")], "f")
    assert np.isnan(log.receive).all()
    assert "cut" in log.warnings[0].message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("11010.200", "21010.100", "apart"),
        ("11010.200", "1101x.100", r"f:\d+:\d+: expected a number"),
        ("11010.200\t", "", "figures for 6 ranks"),
        ("hosta:1 to", "hosta:0 to", "occurs twice"),
        ("Send\thosta:0", "Sent\thosta:0", "no header line of the Send matrix"),
        ("hosta:0 to\t0.000", "hosta:0 to\t5.000", "itself is not 0"),
        ("11010.200", "0.000", "expected more than 0"),
    ],
)
def test_mpigraph_damage_is_named(old: str, new: str, message: str) -> None:
    text = sample("bandwidth/mpigraph.out")
    assert old in text
    with pytest.raises(InputError, match=message):
        mpigraph.parse(text.replace(old, new, 1), "f")


def test_mpigraph_with_unequal_hosts_is_refused() -> None:
    text = sample("bandwidth/mpigraph.out").replace("hostc:4", "hostb:4")
    with pytest.raises(InputError, match="different numbers of ranks"):
        mpigraph.parse(text, "f")


def test_mpigraph_maximum_that_is_not_in_the_matrix_is_said() -> None:
    text = sample("bandwidth/mpigraph.out").replace("Send max\t3", "Send max\t4")
    assert "largest figure" in mpigraph.parse(text, "f").warnings[0].message


def test_reference_json_of_mpigraph_is_sent_from_row_to_column() -> None:
    found = reference_json.parse(sample("bandwidth/pipette_mpigraph.json"), "f")
    assert found.values[0, 2] == pytest.approx(18100.25 * MIB)
    assert np.isnan(found.values[0, 0])
    assert found.simultaneous_flows is None


def test_reference_json_of_nccl_tests_is_in_gb() -> None:
    found = reference_json.parse(sample("bandwidth/pipette_nccl.json"), "f")
    assert found.values[1, 2] == 18.125 * GB
    assert not found.directed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["0"]["bandwidth"][1].__setitem__(0, 1.0), "apart"),
        (lambda d: d["1"]["bandwidth"].pop(), "expected 3 rows of 3 figures"),
        (lambda d: d["1"]["gpus"].__setitem__(0, "hostb"), "more than once"),
        (lambda d: d["1"]["bandwidth"][0].__setitem__(1, "x"), r'\["1"\]\.bandwidth\[0\]\[1\]'),
        (lambda d: d.pop("1"), "expected the keys"),
        (
            lambda d: [row.__setitem__(slice(None), [x / 1000 for x in row]) for row in d["1"]["bandwidth"]],
            "--unit",
        ),
    ],
)
def test_reference_json_damage_is_named(change: object, message: str) -> None:
    data = json.loads(sample("bandwidth/pipette_mpigraph.json"))
    change(data)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        reference_json.parse(json.dumps(data), "f")


def test_matrix_with_blanks_for_what_is_unknown() -> None:
    found = matrix_table.parse(sample("bandwidth/matrix.tsv"), "f")
    assert found.unit == "GB/s"
    assert found.values[0, 1] == 19.25 * GB
    assert found.unknown_pairs == (("n1", "n4"), ("n4", "n1"))


def test_matrix_with_decimal_commas() -> None:
    found = matrix_table.parse(sample("bandwidth/matrix_decimal_comma.csv"), "f")
    assert found.values[1, 0] == 19.125 * GB


def test_matrix_whose_rows_receive_is_turned() -> None:
    text = sample("bandwidth/matrix.tsv").replace("from\\to", "to\\from")
    found = matrix_table.parse(text, "f")
    assert found.values[1, 0] == 19.25 * GB


def test_matrix_is_matched_by_name() -> None:
    lines = sample("bandwidth/matrix.tsv").splitlines(keepends=True)
    swapped = "".join([lines[0], *lines[:0:-1]])
    assert np.array_equal(
        matrix_table.parse(swapped, "f").values,
        matrix_table.parse("".join(lines), "f").values,
        equal_nan=True,
    )


def test_matrix_without_unit_is_kept_in_its_own() -> None:
    text = sample("bandwidth/matrix.tsv").replace(" (GB/s)", "")
    assert matrix_table.parse(text, "f").unit is None
    assert matrix_table.parse(text, "f", unit="Gbit/s").values[0, 1] == pytest.approx(19.25e9 / 8)
    with pytest.raises(InputError, match="--unit"):
        matrix_table.parse(text, "f", unit="gb/s")


def test_matrix_with_another_unit_than_told_is_refused() -> None:
    with pytest.raises(InputError, match=r"several units: GB/s, MiB/s"):
        matrix_table.parse(sample("bandwidth/matrix.tsv"), "f", unit="MiB/s")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("19.25", "0", r"f:2:5: n1 and n2: expected more than 0, got 0"),
        ("19.25", "-19.25", "expected more than 0"),
        ("19.25", "fast", r"f:2:5: expected a number, got 'fast'"),
        ("19.25\t", "", "2 figures for 4|3 figures for 4"),
        ("n2\t19.125", "n9\t19.125", "row 'n9' has no column"),
        ("\tn2\t", "\tn1\t", "occurs twice"),
    ],
)
def test_matrix_damage_is_named(old: str, new: str, message: str) -> None:
    text = sample("bandwidth/matrix.tsv")
    assert old in text
    with pytest.raises(InputError, match=message):
        matrix_table.parse(text.replace(old, new, 1), "f")


def test_matrix_that_loses_its_empty_cells_is_refused() -> None:
    with pytest.raises(InputError, match="write a dash"):
        matrix_table.parse(sample("bandwidth/matrix.tsv").replace("\t", " "), "f")


def test_matrix_that_ends_in_a_figure_without_line_end_is_said() -> None:
    text = "from\\to\ta\tb\na\t\t19.25\nb\t19.125\t20"
    assert any("may be cut" in warning.message for warning in matrix_table.parse(text, "f", "GB/s").warnings)


def test_pairs_hold_both_ways_unless_they_say_a_direction() -> None:
    found = pair_list.parse(sample("bandwidth/pairs.txt"), "f")
    assert found.unit == "GB/s"
    assert found.values[0, 1] == found.values[1, 0] == 91.2 * GB
    directed = pair_list.parse(sample("bandwidth/pairs_directed.csv"), "f")
    assert directed.values[0, 1] == pytest.approx(154e9 / 8)
    assert directed.values[1, 0] == pytest.approx(151e9 / 8)


def test_pairs_whose_header_turns_the_direction() -> None:
    text = sample("bandwidth/pairs_directed.csv").replace("src,dst", "dst,src")
    assert pair_list.parse(text, "f").values[1, 0] == pytest.approx(154e9 / 8)


def test_pairs_with_arrows_and_units() -> None:
    found = pair_list.parse("a -> b: 12.5 GB/s\nb -> a: 11 GB/s\n", "f")
    assert found.directed
    assert found.values.tolist()[0][1] == 12.5e9


@pytest.mark.parametrize(
    "text",
    ["host1\thost2\tbusbw(GB/s)\nn1\tn2\t92.5\n", "# GB/s\n| n1 | n2 | 92.5 |\n", "n1;n2;92,5 GB/s\n"],
)
def test_pairs_in_other_dress(text: str) -> None:
    assert pair_list.detect(text) > 0.5
    assert pair_list.parse(text, "f").values[0, 1] == 92.5e9


def test_pairs_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"f:2:5: a to b is 30 here and 50 on line 1|b to a is 30 here"):
        pair_list.parse("a b 50\nb a 30\n", "f")
    assert pair_list.parse("a b 50\nb a 51\n", "f").values[0, 1] == 50.5


def test_pairs_damage_is_named() -> None:
    with pytest.raises(InputError, match=r"f:2:1: expected two names and a figure"):
        pair_list.parse("a b 50\nc 30\n", "f")
    with pytest.raises(InputError, match="paired with itself"):
        pair_list.parse("a a 50\nb c 1\n", "f")


def test_units_are_found_where_people_write_them() -> None:
    assert units_in("bandwidth [MiB/s], GB/s") == ["MiB/s", "GB/s"]
    assert unit_in_file_name("out/x_send_MiBps.tsv") == "MiB/s"
    assert unit_in_file_name("links_Gbps.csv") == "Gb/s"
    assert unit_in_file_name("links.csv") is None
