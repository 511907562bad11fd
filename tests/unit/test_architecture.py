"""Imports go towards the base only, and every module belongs somewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "pipette_milp"

GROUPS = (
    ("errors", "units", "arrays", "accelerate"),
    ("schema", "presets"),
    ("uplinks", "cluster", "layer_shapes", "transformer", "plans", "importers", "init"),
    ("schedules", "cost", "legality", "search_space", "partial_configuration"),
    ("simulator", "assessment", "estimate"),
    ("formulations", "solvers", "baselines", "calibration", "certificates", "verify"),
    ("exporters", "plots", "report", "experiments", "measure", "cli"),
)
"""From the base outwards. A module may import what stands before it, in its own group or an earlier one."""

RANK = {name: rank for rank, name in enumerate(name for group in GROUPS for name in group)}
FACADE = {"__init__", "__main__", "warm_up"}
"""The public names at the top, which are resolved on first use."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py"))


def unit_of(path: Path) -> str:
    """The module or sub-package right below the package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_units(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every unit of this package that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            names = (
                [f"pipette_milp.{alias.name}" for alias in node.names]
                if node.module == "pipette_milp"
                else [node.module or ""]
            )
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "pipette_milp" and len(parts) > 1:
                yield node.lineno, parts[1]


def upward_imports(unit: str, source: str) -> list[str]:
    """What breaks the order in one file."""
    return [
        f"line {line}: {unit} imports {other}"
        for line, other in imported_units(ast.parse(source))
        if other in RANK and RANK[other] > RANK[unit]
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_towards_the_base(path: Path) -> None:
    unit = unit_of(path)
    if unit in FACADE:
        return
    assert unit in RANK, f"{unit} has no place in GROUPS"
    assert upward_imports(unit, path.read_text(encoding="utf-8")) == []


def test_the_check_sees_an_upward_import() -> None:
    source = "def f():\n    from pipette_milp.solvers import solve\n    import pipette_milp.cli.main\n"
    assert len(upward_imports("cost", source)) == 2
    assert upward_imports("cost", "from pipette_milp.schema.plan import Plan\n") == []
