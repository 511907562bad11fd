"""Skips where clusters cannot be emulated, and small instances on disk."""

from __future__ import annotations

import importlib.util

import pytest

from pipette_milp.measure.emulation.namespaces import why_impossible


@pytest.fixture(scope="session")
def torch_installed() -> None:
    """Skip without PyTorch (extra ``measure``)."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install 'pipette_milp[measure]'")


@pytest.fixture(scope="session")
def can_emulate(torch_installed: None) -> None:
    """Skip where network namespaces cannot be made."""
    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
