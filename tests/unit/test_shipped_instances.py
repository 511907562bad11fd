"""Every shipped instance loads, round-trips, and comes out of the generator byte for byte."""

from __future__ import annotations

import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

from pipette_milp.schema.export import json_schema
from pipette_milp.schema.instance import load_instance
from tests.conftest import INSTANCES

FILES = sorted(INSTANCES.glob("*.json"))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("instance_generator", INSTANCES / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads_and_round_trips(path: Path) -> None:
    instance = load_instance(path)
    assert instance.name == path.stem
    assert instance.warnings == []
    assert instance.missing_pairs() == []
    assert load_instance(json.loads(json.dumps(instance.model_dump(mode="json")))) == instance


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_agrees_with_the_json_schema(path: Path) -> None:
    schema = json_schema("instance")
    jsonschema.Draft202012Validator.check_schema(schema)
    as_written = json.loads(path.read_text())
    jsonschema.validate(as_written, schema)
    jsonschema.validate(load_instance(path).model_dump(mode="json"), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**as_written, "surprise": 1}, schema)


def test_the_generator_reproduces_every_file(tmp_path: Path) -> None:
    generator().main(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FILES}
    for path in FILES:
        assert (tmp_path / path.name).read_text() == path.read_text(), path.name


def test_the_readme_lists_every_file() -> None:
    text = (INSTANCES / "README.md").read_text()
    for path in FILES:
        assert f"| `{path.stem}` |" in text


@pytest.mark.parametrize("seed", range(5))
def test_links_vary_as_documented(seed: int) -> None:
    module = generator()
    matrix = module.matrix("flat", 16, 77.0, seed)
    links = [value for row in matrix for value in row if value is not None]
    assert len(links) == 240
    assert statistics.mean(links) == pytest.approx(77.0, rel=0.01)
    assert statistics.pstdev(links) / statistics.mean(links) == pytest.approx(module.SPREAD, rel=0.25)
    ratios = [
        max(matrix[a][b] / matrix[b][a], matrix[b][a] / matrix[a][b]) for a in range(16) for b in range(a)
    ]
    assert 1.05 < max(ratios) <= 1 + module.ASYMMETRY + 1e-4


def test_pods_and_slow_nodes_are_where_they_should_be() -> None:
    module = generator()
    pods = module.matrix("pods", 16, 77.0, 1)
    fast = [sum(value is not None and value > 50 for value in row) for row in pods]
    assert fast == [module.POD_SIZE - 1] * 16
    slow = module.matrix("slow", 16, 77.0, 1, (5, 11))
    for a in range(16):
        for b in range(16):
            if a != b:
                assert (slow[a][b] < 50) == bool({a, b} & {5, 11})
