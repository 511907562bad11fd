"""A log of finished runs that survives any kill: one JSON object per line, appended and synchronised.

A run is finished once its line is on disk, line feed included. What a kill or a power cut leaves of a line is
cut off when the log is opened again, so the run it belonged to is done once more and no other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from pipette_milp.errors import InputError, Problem

Record = dict[str, Any]
KEY = "key"
"""Field that names a run; no two records of a log have the same."""


def read_records(path: str | Path) -> list[Record]:
    """All whole records of a log; an incomplete last line is passed over.

    Raises:
        InputError: a whole line that is no record, or two records of one run.
    """
    return _parse(Path(path).read_bytes(), str(path))[0]


def _parse(content: bytes, source: str) -> tuple[list[Record], int]:
    """Records, and the number of bytes they take."""
    whole = content.rfind(b"\n") + 1
    records: list[Record] = []
    seen: set[str] = set()
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            record = json.loads(line)
            key = record[KEY]
        except (ValueError, TypeError, KeyError):
            raise InputError(
                Problem(f"line {number}", "is no record of a run: delete it, and that run is done again"),
                source=source,
            ) from None
        if key in seen:
            raise InputError(Problem(f"line {number}", f"repeats the run {key!r}: delete it"), source=source)
        seen.add(key)
        records.append(record)
    return records, whole


class RunLog:
    """An open log; a context manager, one writer at a time.

    Raises:
        InputError: the directory cannot be written to, another process holds the log, or the file is damaged
            elsewhere than at its end.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(self.path, "a+b")  # noqa: SIM115  closed by __exit__
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", source=str(self.path)) from None
        try:
            _lock(self._file, self.path)
            self._file.seek(0)
            records, whole = _parse(self._file.read(), str(self.path))
            self._file.truncate(whole)
            _synchronise_directory(self.path.parent)
        except BaseException:
            self._file.close()
            raise
        self._keys = {record[KEY] for record in records}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    @property
    def records(self) -> list[Record]:
        """All records, as they are on disk: an interrupt may come right after one was written."""
        return read_records(self.path)

    def of(self, keys: Iterable[str]) -> list[Record]:
        """Those of some runs that are finished, in the order of the keys."""
        by_key = {record[KEY]: record for record in self.records}
        return [by_key[key] for key in keys if key in by_key]

    def append(self, record: Record) -> None:
        """Put one finished run on disk before returning.

        Raises:
            ValueError: the run is there already, or a value is no JSON.
        """
        key = record[KEY]
        if key in self._keys:
            raise ValueError(f"the run {key!r} is in the log already")
        self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._keys.add(key)


def _lock(file: BinaryIO, path: Path) -> None:
    """Hold the log until the process ends, however it ends."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            "another process writes to it: wait until it ends, or name another directory", source=str(path)
        ) from None


def _synchronise_directory(directory: Path) -> None:
    """A new file's name is on disk as well."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
