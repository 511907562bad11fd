from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from pipette_milp.errors import InputError
from pipette_milp.schema.export import SCHEMAS, json_schema
from pipette_milp.schema.output import dump_json, write_json_atomically, write_text_atomically
from pipette_milp.schema.plan import Configuration, Placement, Plan, split_stages
from pipette_milp.schema.result import SolveResult, load_plan, load_result

CONFIGURATION = Configuration(
    pipeline=2, tensor=1, data=1, micro_batch=1, num_micro_batches=4, stages=split_stages((3, 2))
)
PLAN = Plan(configuration=CONFIGURATION, placement=Placement(gpu_of_rank=(1, 0)))


def result(**changes: Any) -> SolveResult:
    fields: dict[str, Any] = {
        "instance_sha256": "0" * 64,
        "termination": "GAP_REACHED",
        "simulated_s": 2.0,
        "lower_bound_s": 1.99,
        "solver": "auto",
        "links": "nominal",
        "plan": PLAN,
    }
    return SolveResult(**{**fields, **changes})


def test_round_trip_with_all_kinds_of_records(tmp_path: Path) -> None:
    original = result(
        plans=[{"configuration": CONFIGURATION, "placement": PLAN.placement, "simulated_s": 2.0}],
        configurations=[
            {
                "configuration": CONFIGURATION,
                "status": "solved",
                "lower_bound_s": 1.99,
                "bound_kind": "checked",
            },
            {"configuration": {"tensor": 3}, "status": "refused", "reason": "8 heads"},
        ],
        trace=[{"time_s": 0.1}, {"time_s": 0.2, "incumbent_s": 2.0, "bound_s": 1.9}],
        settings={"model_error": 0.05},
    )
    path = tmp_path / "result.json"
    write_text_atomically(path, original.to_json())
    again = load_result(path)
    assert again == original
    assert isinstance(again.configurations[0].configuration, Configuration)
    assert again.configurations[1].configuration == {"tensor": 3}
    assert load_plan(path) == PLAN


def test_the_gap_follows_from_objective_and_bound() -> None:
    assert result().gap == pytest.approx(0.005)
    assert result(lower_bound_s=None).gap is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lower_bound_s": 2.0 + 1e-6}, "is above simulated_s"),
        ({"termination": "INFEASIBLE"}, "cannot be there with termination INFEASIBLE"),
        ({"termination": "NO_PLAN_FOUND"}, "cannot be there"),
        (
            {"plan": None, "simulated_s": None, "lower_bound_s": None},
            "is required with termination GAP_REACHED",
        ),
        ({"plan": None, "termination": "INTERRUPTED"}, "comes with a plan"),
        ({"simulated_s": -1.0, "lower_bound_s": None}, "greater than or equal to 0"),
        ({"simulated_s": float("nan")}, "finite"),
        ({"lower_bound_s": float("inf")}, "finite"),
        ({"termination": "OPTIMAL"}, "OPTIMAL needs a gap"),
        ({"gap": 0.1}, "is not"),
        ({"gap": 0.0, "lower_bound_s": None}, "needs simulated_s and lower_bound_s"),
        ({"claimed_s": 1.0}, "comes with claimed_s"),
        ({"termination": "DONE"}, "OPTIMAL"),
        ({"instance_sha256": "abc"}, "pattern"),
        ({"wall_time_s": -0.5}, "greater than or equal to 0"),
        ({"surprise": 1}, "Extra"),
    ],
)
def test_impossible_states_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        result(**changes)


def test_a_bound_equal_up_to_rounding_is_possible() -> None:
    assert result(lower_bound_s=2.0 * (1 + 1e-12), termination="OPTIMAL").gap == 0.0


def test_interrupted_with_nothing_to_show() -> None:
    empty = result(plan=None, simulated_s=None, termination="INTERRUPTED")
    assert empty.plan is None
    assert empty.lower_bound_s == 1.99


def test_reading_reports_every_problem_with_its_path() -> None:
    text = result().to_json().replace('"tensor": 1', '"tensor": 0, "tensro": 1')
    text = text.replace('"wall_time_s": 0.0', '"wall_time_s": -1')
    with pytest.raises(InputError) as caught:
        SolveResult.from_json(text)
    assert {problem.path for problem in caught.value.problems} == {
        "plan.configuration.tensor",
        "plan.configuration.tensro",
        "wall_time_s",
    }


def test_layers_per_stage_is_derived_and_checked() -> None:
    dumped = CONFIGURATION.model_dump()
    assert dumped["layers_per_stage"] == (3, 2)
    assert Configuration.model_validate(dumped) == CONFIGURATION
    short = {key: value for key, value in dumped.items() if key != "stages"}
    assert Configuration.model_validate(short) == CONFIGURATION
    with pytest.raises(ValidationError, match="contradicts stages"):
        Configuration.model_validate({**dumped, "layers_per_stage": [2, 3]})
    with pytest.raises(ValidationError, match="not supported yet"):
        Configuration.model_validate({**dumped, "rank_order": ["tensor", "context", "pipeline", "data"]})


def test_a_result_without_plan_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(result(plan=None, simulated_s=None, termination="NO_PLAN_FOUND").to_json())
    with pytest.raises(InputError, match="has no plan"):
        load_plan(path)


def test_dump_is_json_and_keeps_rows_on_a_line() -> None:
    value = {"a": [[1, 2], [3, 4]], "b": {}, "c": [], "d": {"x": 1.5, "y": None}, "e": "ü"}
    text = dump_json(value)
    assert json.loads(text) == value
    assert "    [1, 2]," in text.splitlines()
    assert '  "d": {"x": 1.5, "y": null},' in text.splitlines()
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_json({"a": float("nan")})


def test_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    write_json_atomically(path, {"a": 1})
    path.chmod(0o640)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(InputError, match="No space left"):
            write_json_atomically(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["out.json"]
    write_json_atomically(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_write_to_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        write_json_atomically(tmp_path / "absent" / "x.json", {})
    with pytest.raises(InputError, match="is a directory"):
        write_json_atomically(tmp_path, {})


def test_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_json_atomically("-", {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_json_schema_describes_every_field(kind: str) -> None:
    schema = json_schema(kind)
    json.dumps(schema, allow_nan=False)
    assert set(schema["properties"]) >= set(SCHEMAS[kind].model_fields)
    assert schema["additionalProperties"] is False


def test_results_and_plans_agree_with_their_json_schema() -> None:
    jsonschema.validate(json.loads(result().to_json()), json_schema("result"))
    jsonschema.validate(PLAN.model_dump(mode="json"), json_schema("plan"))


def test_unknown_schema() -> None:
    with pytest.raises(InputError, match="choose from instance, plan, result"):
        json_schema("cluster")
