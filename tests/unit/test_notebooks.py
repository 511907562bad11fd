"""Notebooks are stored as text without outputs; here each one runs."""

from __future__ import annotations

import runpy

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"


def test_the_formulation_on_4_gpus_closes_the_gap_round_by_round() -> None:
    pytest.importorskip("pyomo")
    names = runpy.run_path(str(NOTEBOOKS / "formulation_on_4_gpus.py"))
    gaps = names["gaps"]
    assert len(gaps) >= 3, "the loop has nothing to show"
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-6 < gaps[0]
    assert names["incumbent_s"] == pytest.approx(names["exhaustive_s"], rel=1e-6)
    assert names["outcome"].simulated_s == pytest.approx(names["exhaustive_s"], rel=1e-6)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.name)
def test_it_is_a_notebook(path: object) -> None:
    jupytext = pytest.importorskip("jupytext")
    cells = jupytext.read(path).cells
    assert {cell.cell_type for cell in cells} == {"markdown", "code"}
    assert all(not cell.get("outputs") for cell in cells)
