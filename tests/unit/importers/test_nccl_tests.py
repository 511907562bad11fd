from __future__ import annotations

import json

import pytest

from pipette_milp.errors import InputError
from pipette_milp.importers import nccl_tests, nccl_tests_json
from pipette_milp.importers.collective import CollectiveRun
from tests.importer_samples import sample

TWO = "nccl/all_reduce_two_nodes.txt"
HEADER = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong\n"
)


def parse(name: str) -> CollectiveRun:
    (run,) = nccl_tests.parse(sample(name), name)
    return run


def row(size: int, time: float, ratio: float = 1.0) -> str:
    bandwidth = size / time / 1e3
    mode = f"{time:.2f} {bandwidth:.2f} {bandwidth * ratio:.2f} 0"
    return f"{size} {size // 4} float sum -1 {mode} {mode}\n"


def test_all_reduce_of_two_nodes() -> None:
    run = parse(TWO)
    assert run.collective == "all_reduce"
    assert run.rank_count == 16
    assert run.hosts == ("nodeb", "nodea")  # by rank, not by name
    assert run.plateau_busbw_bytes_per_s == pytest.approx(90.4e9, rel=0.01)
    assert run.average_busbw_bytes_per_s == 64.2e9
    assert run.small_message_latency_s == pytest.approx(30.9e-6)
    assert run.warnings == ()


def test_layout_before_2_13() -> None:
    run = parse("nccl/all_reduce_inside_old.txt")
    assert (run.rank_count, run.hosts) == (8, ("nodea",))
    assert run.rows[0].out_of_place is not None
    assert run.rows[0].out_of_place.wrong == 0


def test_newest_layout_names_the_collective() -> None:
    run = parse("nccl/sendrecv_one_rank_per_node.txt")
    assert run.collective == "sendrecv"
    assert run.crossing_flows() == (1, 0)
    assert run.ranks[0].bus_id == "0000:10:00"
    assert run.rows[0].in_place is not None
    assert run.rows[0].in_place.wrong is None


def test_json_says_the_same_as_text() -> None:
    (run,) = nccl_tests_json.parse(sample("nccl/all_reduce_two_nodes.json"), "f")
    assert (run.collective, run.rank_count, run.hosts) == ("all_reduce", 16, ("nodea", "noded"))
    assert [item.size_bytes for item in run.rows] == [8, 134217728, 268435456]


def test_number_of_ranks_from_the_ratio() -> None:
    text = HEADER + row(1 << 30, 10000.0, 2 * 71 / 72)
    assert nccl_tests.parse(text, "f")[0].rank_count == 72


def test_small_messages_give_no_bandwidth() -> None:
    run = nccl_tests.parse(HEADER + row(8, 12.9) + row(4096, 13.1), "f")[0]
    assert run.plateau_busbw_bytes_per_s is None
    assert run.small_message_latency_s == pytest.approx(12.9e-6)


def test_timestamps_and_per_iteration_columns() -> None:
    header = HEADER.replace("#wrong\n", "#wrong i_min i_cv% timestamp\n").replace("time", "cputime")
    text = header + row(1 << 20, 100.0).replace("\n", " 99.1 0.02 2026-01-01 10:00:00\n")
    assert nccl_tests.parse(text, "f")[0].rows[0].timings[0].time_s == pytest.approx(100e-6)


def test_several_runs_in_one_log() -> None:
    runs = nccl_tests.parse(sample(TWO) + sample("nccl/all_reduce_inside_old.txt"), "f")
    assert [run.rank_count for run in runs] == [16, 8]


def test_builds_without_mpi_are_refused() -> None:
    lines = sample(TWO).splitlines(keepends=True)
    ranks = [line for line in lines if "Rank  0" in line]
    text = "".join([*lines[:3], *ranks * 2, *(line for line in lines[3:] if "Rank" not in line)])
    with pytest.raises(InputError, match="independent runs"):
        nccl_tests.parse(text, "f")


def test_interleaved_output_is_refused() -> None:
    with pytest.raises(InputError, match="several processes"):
        nccl_tests.parse(HEADER * 2 + row(8, 12.0) * 2, "f")
    with pytest.raises(InputError, match="several processes"):
        nccl_tests.parse(HEADER + row(8, 12.0) * 2, "f")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("5560.00", "6560.00", r"f:\d+:\d+: algbw .* is not size / time"),
        ("90.52", "80.52", "ratio"),
        ("   268435456 ", "   26843545 ", "is not size / time"),
        ("Rank  3 ", "Rank  9 ", "occurs 2 times"),
        ("Out of bounds values : 0 OK", "Out of bounds values : 3 FAILED", "3 values were out of bounds"),
        ("(GB/s)", "(GiB/s)", "expected bytes, us and GB/s"),
        ("algbw   busbw #wrong     time", "algbw #wrong     time", "equal numbers"),
        ("nodeb device  4", "nodeb devce  4", "cannot read this line of the rank list"),
    ],
)
def test_damage_is_named(old: str, new: str, message: str) -> None:
    text = sample(TWO)
    assert old in text
    with pytest.raises(InputError, match=message):
        nccl_tests.parse(text.replace(old, new, 1), "f")


def test_rank_list_of_another_run_is_refused() -> None:
    text = "".join(line for line in sample(TWO).splitlines(keepends=True) if "nodea" not in line)
    with pytest.raises(InputError, match="do not belong together"):
        nccl_tests.parse(text, "f")


def test_wrong_values_make_a_run_invalid() -> None:
    text = HEADER + row(1 << 20, 100.0).replace(" 0 ", " 7 ", 1)
    with pytest.raises(InputError, match="7 elements"):
        nccl_tests.parse(text, "f")


def test_a_cut_last_row_is_left_out_and_said() -> None:
    text = sample(TWO)
    cut = text[: text.index("5550.00")]
    run = nccl_tests.parse(cut, "f")[0]
    assert run.rows[-1].size_bytes == 134217728
    assert any("cut" in warning.message for warning in run.warnings)


def test_json_places() -> None:
    data = json.loads(sample("nccl/all_reduce_two_nodes.json"))
    data["results"][1]["in_place"]["alg_bw"] = "fast"
    with pytest.raises(InputError, match=r"f: results\[1\]\.in_place\.alg_bw: expected a finite number"):
        nccl_tests_json.parse(json.dumps(data), "f")
