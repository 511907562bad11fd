"""Shared by all tests: where outside data lies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
INSTANCES = REPOSITORY / "instances"


def shared_data(relative: str = "") -> Path:
    """A path below the sibling folder ``shared`` of the checkout.

    Skips the test where it is absent, because a clone alone must pass; with ``PIPETTE_SHARED=required`` in
    the environment that is a failure instead.
    """
    path = REPOSITORY.parent / "shared" / relative
    if not path.exists():
        reason = f"no outside data at shared/{relative}"
        if os.environ.get("PIPETTE_SHARED") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return path
