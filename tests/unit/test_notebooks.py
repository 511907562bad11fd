"""Notebooks are stored as text without outputs; here each one runs, and what it says is checked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.notebook_runner import run_notebook

NOTEBOOKS = REPOSITORY / "notebooks"


def test_quick_start_ends_with_a_result_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    notebook = run_notebook(NOTEBOOKS / "quick_start.py", monkeypatch)
    assert notebook.names["checks"].ok
    assert notebook.names["result"].gap < 1e-5
    assert notebook.figures() == 4


def test_the_formulation_on_4_gpus_closes_the_gap_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyomo")
    names = run_notebook(NOTEBOOKS / "formulation_on_4_gpus.py", monkeypatch).names
    gaps = names["gaps"]
    assert len(gaps) >= 3, "the loop has nothing to show"
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-6 < gaps[0]
    assert names["incumbent_s"] == pytest.approx(names["exhaustive_s"], rel=1e-6)
    assert names["outcome"].simulated_s == pytest.approx(names["exhaustive_s"], rel=1e-6)


def test_the_cut_loop_needs_few_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    notebook = run_notebook(NOTEBOOKS / "cut_loop.py", monkeypatch)
    worst = notebook.names["worst"]
    assert len(worst) >= 3, "the loop has nothing to show"
    assert worst == sorted(worst, reverse=True)
    assert worst[-1] < 1e-9 < worst[0]
    assert notebook.names["exact_s"] > 1.05 * notebook.names["estimate_s"], (
        "the text says that it misses much"
    )
    assert 0 <= notebook.names["gap"] < 1e-5


def test_solvers_are_compared_on_the_same_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    notebook = run_notebook(NOTEBOOKS / "solver_comparison.py", monkeypatch)
    runs = notebook.names["runs"]
    assert len(runs) == 28
    assert (runs["above_best_%"].dropna() >= 0).all()
    without_a_proof = notebook.names["heuristics"] + notebook.names["published"]
    assert runs[runs["solver"].isin(without_a_proof)]["gap"].isna().all()
    assert notebook.figures() == 2
    assert notebook.names["low"] == pytest.approx(0.5, abs=0.05), "the text says so"


def test_placement_matters_where_links_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    notebook = run_notebook(NOTEBOOKS / "slow_nodes_and_pods.py", monkeypatch)
    gains = notebook.names["table"]["placement_gains_%"]
    assert gains["even"] < 0.1 * gains["two pods"], "the text says little"
    assert gains["two pods"] > 2.0
    assert notebook.figures() == 2


def test_estimates_are_compared_with_published_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    notebook = run_notebook(NOTEBOOKS / "accuracy.py", monkeypatch)
    compared = notebook.names["compared"]
    assert len(compared) == 10
    assert compared["estimated_s"].notna().all(), compared["refused"].to_list()
    # 96 x 512 x 2048 x 24 x 2304^2 x (1 + ...) FLOP over 32 GPUs at 137 TFLOP/s, worked out by hand
    assert compared["measured_s"].iloc[0] == pytest.approx(3.53, abs=0.01)
    assert notebook.figures() == 2


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.py")), ids=lambda path: path.name)
def test_it_is_a_notebook_without_outputs_that_is_tested(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    cells = jupytext.read(path).cells
    assert {cell.cell_type for cell in cells} == {"markdown", "code"}
    assert all(not cell.get("outputs") for cell in cells)
    assert cells[0].source.startswith("# "), "a title first"
    # the explanation carries the notebook, not the code alone
    words = sum(len(re.findall(r"\w+", cell.source)) for cell in cells if cell.cell_type == "markdown")
    assert words > 150
    assert f'"{path.name}"' in Path(__file__).read_text(encoding="utf-8")
