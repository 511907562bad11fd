from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipette_milp.errors import InputError
from pipette_milp.experiments.log import RunLog, read_records

RECORDS = [{"key": f"run {number}", "value": number / 3, "text": "zeile\nümlaut"} for number in range(4)]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A log of all records."""
    path = tmp_path / "runs.jsonl"
    with RunLog(path) as log:
        for record in RECORDS:
            log.append(record)
    return path


def test_reads_back_what_was_appended(whole: Path) -> None:
    assert read_records(whole) == RECORDS
    with RunLog(whole) as log:
        assert log.records == RECORDS
        assert "run 2" in log
        assert "run 9" not in log


def test_a_log_cut_at_any_byte_loses_only_the_torn_line(whole: Path) -> None:
    """Whatever a kill or a power cut leaves of the last line: reopened, appended to, read."""
    content = whole.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        whole.write_bytes(content[:cut])
        kept = sum(end <= cut for end in ends)
        with RunLog(whole) as log:
            assert log.records == RECORDS[:kept]
            for record in RECORDS[kept:]:
                log.append(record)
        assert whole.read_bytes() == content


def test_a_tail_of_zero_bytes_is_cut_off(whole: Path) -> None:
    """What some file systems leave after a power cut: the length is there, the content is not."""
    with open(whole, "ab") as file:
        file.write(b"\0" * 40)
    with RunLog(whole) as log:
        assert log.records == RECORDS
    assert read_records(whole) == RECORDS


@pytest.mark.parametrize("line", [b"{]\n", b"[1, 2]\n", b'"key"\n', b'{"value": 1}\n', b"\n", b"\xff\xfe\n"])
def test_a_damaged_line_is_named(whole: Path, line: bytes) -> None:
    first, rest = whole.read_bytes().split(b"\n", 1)
    whole.write_bytes(first + b"\n" + line + rest)
    with pytest.raises(InputError, match="line 2"):
        RunLog(whole)
    with pytest.raises(InputError, match="line 2"):
        read_records(whole)


def test_a_repeated_run_is_refused(whole: Path) -> None:
    with RunLog(whole) as log, pytest.raises(ValueError, match="in the log already"):
        log.append(RECORDS[1])
    with open(whole, "ab") as file:
        file.write(json.dumps(RECORDS[1]).encode() + b"\n")
    with pytest.raises(InputError, match="line 5: repeats"):
        read_records(whole)


def test_a_record_that_is_no_json_leaves_the_log_as_it_was(whole: Path) -> None:
    with RunLog(whole) as log, pytest.raises(ValueError, match="Out of range"):
        log.append({"key": "new", "value": float("nan")})
    assert read_records(whole) == RECORDS


def test_one_writer_at_a_time(whole: Path) -> None:
    with RunLog(whole), pytest.raises(InputError, match="another process"):
        RunLog(whole)
    with RunLog(whole) as log:
        assert len(log.records) == 4


def test_the_lock_dies_with_its_process(whole: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pipette_milp.experiments.log import RunLog\n"
        "log = RunLog(sys.argv[1])\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(whole)], check=False)
    assert done.returncode == -9
    with RunLog(whole) as log:
        assert log.records == RECORDS


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        RunLog(blocked / "runs.jsonl")
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(InputError, match="cannot be written"):
            RunLog(tmp_path / "new" / "runs.jsonl")
        tmp_path.chmod(0o700)


def test_an_interrupt_right_after_the_write_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with RunLog(tmp_path / "runs.jsonl") as log:
        log.append(RECORDS[0])
        monkeypatch.setattr("os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.append(RECORDS[1])
        monkeypatch.undo()
        assert log.records == RECORDS[:2]
        assert log.of([RECORDS[1]["key"], "another", RECORDS[0]["key"]]) == [RECORDS[1], RECORDS[0]]
