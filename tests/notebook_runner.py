"""Runs a notebook stored as text the way Jupyter does: cell by cell, showing the last expression of each."""

from __future__ import annotations

import ast
import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import REPOSITORY


@dataclass
class Notebook:
    """What a run left behind."""

    names: dict[str, Any]
    shown: list[Any] = field(default_factory=list)
    """Values of last expressions."""

    def figures(self) -> int:
        """How many of the values shown are figures."""
        return sum(type(value).__name__ == "Figure" for value in self.shown)


def run_notebook(path: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Runs all cells and renders what they show.

    They run in the root of the repository, so that child processes find a package that is not installed.
    """
    jupytext = pytest.importorskip("jupytext")
    monkeypatch.chdir(REPOSITORY)
    # dataclasses and typing look their module up by name
    module = ModuleType(f"notebook_{path.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    notebook = Notebook(module.__dict__)
    # annotations of all cells follow the first cell's import, which Jupyter carries over too
    flags = 0
    for number, cell in enumerate(jupytext.read(path).cells):
        if cell.cell_type != "code":
            continue
        source = "\n".join("" if line.lstrip().startswith("%") else line for line in cell.source.splitlines())
        tree = ast.parse(source, filename=path.name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        place = f"{path.name}, cell {number}"
        code = compile(tree, place, "exec", flags=flags, dont_inherit=True)
        flags |= code.co_flags & _annotations_flag()
        exec(code, notebook.names)
        if last is not None and not cell.source.rstrip().endswith(";"):
            expression = compile(
                ast.Expression(last.value),
                f"{path.name}, cell {number}",
                "eval",
                flags=flags,
                dont_inherit=True,
            )
            value = eval(expression, notebook.names)
            if value is not None:
                render(value)
                notebook.shown.append(value)
    return notebook


def render(value: Any) -> None:
    """What Jupyter would do to show a value."""
    if type(value).__name__ == "Figure":
        value.savefig(io.BytesIO(), format="png", dpi=60)
    elif hasattr(value, "_repr_html_"):
        assert value._repr_html_()
    else:
        assert repr(value)


def _annotations_flag() -> int:
    import __future__

    return __future__.annotations.compiler_flag
