"""Writing files: whole or not at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipette_milp.errors import InputError

ONE_LINE = 100
"""Longest object, in characters, that is not spread over lines."""


def dump_json(value: Any) -> str:
    """JSON for files: indented, but a list of plain values or a small object stays on one line.

    Ends with a newline.
    """
    return _dump(value, 0) + "\n"


def _dump(value: Any, depth: int) -> str:
    if not isinstance(value, dict | list | tuple) or not _nested(value):
        flat = json.dumps(value, allow_nan=False)
        if not isinstance(value, dict) or len(flat) <= ONE_LINE:
            return flat
    pad, end = "  " * (depth + 1), "  " * depth
    if isinstance(value, dict):
        items = (f"{pad}{json.dumps(str(key))}: {_dump(item, depth + 1)}" for key, item in value.items())
        return "{\n" + ",\n".join(items) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + _dump(item, depth + 1) for item in value) + f"\n{end}]"


def _nested(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return any(isinstance(item, dict | list | tuple) for item in items)


def write_text_atomically(path: str | Path, text: str) -> None:
    """Writes a file whole or not at all; ``-`` is standard output.

    The text goes to a temporary file beside the target, which then takes its name.

    Raises:
        InputError: the place cannot be written to.
    """
    if str(path) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path)
    if target.is_dir():
        raise InputError("is a directory, expected a file name", source=str(path))
    # A symbolic link keeps pointing where it did: the file behind it is replaced.
    target = target.resolve() if target.is_symlink() else target
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=str(path)) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", source=str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_json_atomically(path: str | Path, value: Any) -> None:
    """`dump_json` of ``value`` to a file, whole or not at all; ``-`` is standard output."""
    write_text_atomically(path, dump_json(value))
