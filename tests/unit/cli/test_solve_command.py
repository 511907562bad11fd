from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.errors import SolverError
from pipette_milp.schema.output import write_text_atomically
from pipette_milp.schema.plan import Configuration, Plan
from pipette_milp.schema.result import load_result

from .conftest import PLAN, TINY, Run

Tiny = Callable[..., Path]


def test_the_summary_answers_the_questions_a_person_has(run: Run, fake_solver: dict[str, Any]) -> None:
    outcome = run("solve", TINY)
    assert outcome.code == 0
    for part in (
        "pipeline 2 x tensor 2 x data 1, micro-batch 1 (8 per replica)",
        "7,802 tokens/s",
        "MFU 38.5 %",
        "no plan is more than 0.478 % faster (proven)",
        "0.95 % faster than the same in default rank order",
        "links of this cluster spread by 0.0 %",
        "node-000",
        "+14.29 %: compute +0.140 s",
        "12.1 GiB",
        "links are nominal, not measured",
        "full recompute",
    ):
        assert part in outcome.out, part
    assert "\x1b[" not in outcome.out
    assert "incumbent    1.0500 s" in outcome.err


def test_options_reach_the_solver(run: Run, fake_solver: dict[str, Any]) -> None:
    run(
        "solve", TINY, "--solver", "greedy", "--time-limit", "2 min", "--gap", "0.02",
        "--seed", "3", "--keep", "2", "--iteration-limit", "9", "--threads", "1",
    )  # fmt: skip
    called = fake_solver["called"]
    expected = {
        "solver": "greedy",
        "time_limit_s": 120.0,
        "gap": 0.02,
        "seed": 3,
        "keep": 2,
        "iteration_limit": 9,
    }
    assert {name: called[name] for name in expected} == expected
    assert called["threads"] == 1
    assert called["baseline"] is None


def test_json_is_one_document_and_nothing_else(run: Run, fake_solver: dict[str, Any]) -> None:
    outcome = run("solve", TINY, "--json")
    assert json.loads(outcome.out)["termination"] == "GAP_REACHED"


@pytest.mark.parametrize("extra", [[], ["--json"], ["--quiet"]])
def test_output_dash_prints_the_result_once(run: Run, fake_solver: dict[str, Any], extra: list[str]) -> None:
    outcome = run("solve", TINY, "-o", "-", *extra)
    assert json.loads(outcome.out)["simulated_s"] == 1.05


def test_quiet_says_nothing(run: Run, fake_solver: dict[str, Any], tmp_path: Path) -> None:
    outcome = run("solve", TINY, "--quiet", "-o", tmp_path / "r.json")
    assert (outcome.code, outcome.err) == (0, "")
    assert load_result(tmp_path / "r.json").plan == PLAN


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"termination": "LIMIT"}, 0, "a limit was reached"),
        ({"termination": "INTERRUPTED"}, 0, "interrupted, the best plan so far"),
        ({"termination": "INFEASIBLE"}, 3, "No plan exists (proven)."),
        ({"termination": "NO_PLAN_FOUND"}, 4, "No plan was found within the limits"),
        ({"termination": "INTERRUPTED", "plan": None}, 130, "Interrupted before a plan"),
        ({"termination": "ERROR", "plan": None}, 1, "The solver failed."),
        ({"lower_bound_s": None}, 0, "this solver gives no lower bound"),
    ],
)
def test_terminations_exit_codes_and_words(
    run: Run, fake_solver: dict[str, Any], changes: dict[str, Any], code: int, says: str
) -> None:
    if changes.get("plan", PLAN) is None or changes.get("termination") in ("INFEASIBLE", "NO_PLAN_FOUND"):
        changes = {**changes, "plan": None, "simulated_s": None, "plans": []}
    fake_solver["changes"] = changes
    outcome = run("solve", TINY)
    assert outcome.code == code
    assert says in outcome.out


def test_infeasible_names_what_blocks(run: Run, fake_solver: dict[str, Any]) -> None:
    reason = "memory: stage 0 needs 92.4 GiB per GPU in the best split, 76.7 GiB of 79.1 GiB is usable"
    fake_solver["changes"] = {
        "termination": "INFEASIBLE",
        "plan": None,
        "simulated_s": None,
        "plans": [],
        "configurations": [{"configuration": {"tensor": 2}, "status": "infeasible", "reason": reason}],
    }
    outcome = run("solve", TINY)
    assert outcome.code == 3
    assert reason in " ".join(outcome.out.split())


def test_an_interrupt_that_nobody_caught(run: Run, fake_solver: dict[str, Any]) -> None:
    fake_solver["raises"] = KeyboardInterrupt()
    outcome = run("solve", TINY)
    assert (outcome.code, outcome.out) == (130, "")
    assert "interrupted, nothing to show" in outcome.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_the_end_of_a_batch_job_are_the_same(
    run: Run, fake_solver: dict[str, Any], number: signal.Signals
) -> None:
    before = signal.getsignal(number)
    fake_solver["signal"] = number
    assert run("solve", TINY).code == 130
    assert signal.getsignal(number) == before


def test_a_failed_solver_and_an_internal_fault(run: Run, fake_solver: dict[str, Any], tmp_path: Path) -> None:
    fake_solver["raises"] = SolverError("HiGHS ended with status 4")
    outcome = run("solve", TINY, "-o", tmp_path / "r.json")
    assert (outcome.code, outcome.out) == (1, "")
    assert "error: HiGHS ended with status 4" in outcome.err
    fake_solver["raises"] = ZeroDivisionError("division by zero")
    outcome = run("solve", TINY)
    assert outcome.code == 1
    assert "internal error: ZeroDivisionError: division by zero" in outcome.err
    assert "--debug" in outcome.err
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_debug_keeps_the_traceback(fake_solver: dict[str, Any]) -> None:
    from pipette_milp.cli import main

    fake_solver["raises"] = ZeroDivisionError("division by zero")
    with pytest.raises(ZeroDivisionError):
        main(["solve", str(TINY), "--debug"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--time-limit", "0"], "--time-limit: expected more than 0 seconds"),
        (["--time-limit", "-5"], "--time-limit"),
        (["--time-limit", "soon"], "--time-limit: cannot read 'soon'"),
        (["--time-limit", "nan"], "--time-limit"),
        (["--gap", "nan"], "--gap: expected a share"),
        (["--gap", "1.5"], "--gap: expected a share"),
        (["--gap", "much"], "--gap"),
        (["--keep", "0"], "--keep"),
        (["--threads", "0"], "--threads"),
        (["--assume-missing", "15 gb/s"], "--assume-missing: unit 'gb/s' is in doubt"),
        (["--assume-missing", "0 GB/s"], "--assume-missing: expected more than 0"),
        (["-o", "/no/such/place/r.json"], "no such directory"),
        (["--baseline", "absent.json"], "absent.json: no such file"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_bad_options_exit_2_before_any_work(
    run: Run, fake_solver: dict[str, Any], words: list[str], says: str
) -> None:
    outcome = run("solve", TINY, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert fake_solver["called"] is None


NETWORK = "cluster/network/inter_node/bandwidth"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({NETWORK: "25 gb/s"}, f"{NETWORK.replace('/', '.')}: unit 'gb/s' is in doubt"),
        ({NETWORK: "25 GiB"}, "measures bytes, expected bytes/s"),
        ({NETWORK: -1}, "not negative"),
        ({NETWORK: float("nan")}, "nan"),
        ({NETWORK: {"unit": "GB/s", "values": [[None, 1], [1]]}}, "expected a square"),
        ({"cluster/nodes": []}, "at least one node"),
        ({"cluster/node_types/node/gpus": ["A100-SXM4-80GB", 0]}, "at least 1, got 0"),
        ({"cluster/exclude": {"nodes": ["node-000", "node-001"]}}, "leaves no GPU to use"),
        ({"training/global_batch_size": 0}, "training.global_batch_size[0]"),
        ({"model/layers": ...}, "model.layers: is required"),
        ({"model/moe": {"experts": 8}}, "model.moe.top_k: is required"),
    ],
)
def test_bad_instances_exit_2_with_the_place(
    run: Run, fake_solver: dict[str, Any], tiny: Tiny, changes: dict[str, Any], says: str
) -> None:
    outcome = run("solve", tiny(changes))
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no such file"), ("{,}", "is not JSON"), ('{"name": "a", "name": "b"}', "occurs more than once")],
)
def test_files_that_are_no_instance(
    run: Run, fake_solver: dict[str, Any], tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    outcome = run("solve", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


GAPS = {
    NETWORK: {"unit": "GB/s", "values": [[None, None], [20, None]]},
    "cluster/network/inter_node/measures": "node_pair",
}


def test_unmeasured_pairs_come_with_the_command_that_measures_them(
    run: Run, fake_solver: dict[str, Any], tiny: Tiny
) -> None:
    outcome = run("solve", tiny(GAPS))
    assert outcome.code == 2
    assert "node-000 -> node-001" in outcome.err
    assert "node-001 -> node-000" not in outcome.err
    assert "mpirun -np 4 --host node-000:2,node-001:2 mpiGraph" in outcome.err
    assert "--assume-missing" in outcome.err


def test_what_was_assumed_goes_into_the_result(
    run: Run, fake_solver: dict[str, Any], fake_verify: dict[str, Any], tiny: Tiny, tmp_path: Path
) -> None:
    path = tiny(GAPS)
    outcome = run("solve", path, "--assume-missing", "15GB/s", "-o", tmp_path / "r.json")
    assert outcome.code == 0
    assert "unmeasured node pairs were taken to attain 15GB/s" in " ".join(outcome.out.split())
    result = load_result(tmp_path / "r.json")
    assert result.settings["assume_missing_bytes_per_s"] == 15e9
    assert fake_solver["called"]["instance"].missing_pairs() == []
    assert run("verify", path, tmp_path / "r.json").code == 0


def test_warnings_of_the_instance_go_to_standard_error(
    run: Run, fake_solver: dict[str, Any], tiny: Tiny
) -> None:
    path = tiny({"cluster/node_types/node/nics": {"count": 2, "bandwidth": "25 GB/s", "of_gpu": [0, 1]}})
    outcome = run("solve", path)
    assert outcome.code == 0
    assert "warning: cluster.node_types.node.nics.of_gpu is not modelled" in outcome.err


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"pipeline": 2, "tensor": 2, "micro_batch": 1}, Configuration),
        ({"configuration": {"pipeline": 2, "micro_batch": 2}}, Configuration),
        (PLAN.model_dump(mode="json"), Plan),
    ],
)
def test_baselines(run: Run, fake_solver: dict[str, Any], tmp_path: Path, content: Any, kind: type) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(json.dumps(content))
    assert run("solve", TINY, "--baseline", path).code == 0
    assert isinstance(fake_solver["called"]["baseline"], kind)


def test_the_gain_over_a_baseline_is_shown(run: Run, fake_solver: dict[str, Any]) -> None:
    fake_solver["changes"] = {
        "baseline": {"configuration": PLAN.configuration, "simulated_s": 1.26, "fits": False}
    }
    text = " ".join(run("solve", TINY).out.split())
    assert "the best plan is 20.00 % faster" in text
    assert "the baseline does not fit into memory" in text


def test_a_signal_while_the_result_is_written_takes_nothing_away(
    run: Run, fake_solver: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write(path: str, text: str) -> None:
        signal.raise_signal(signal.SIGTERM)
        write_text_atomically(path, text)

    monkeypatch.setattr("pipette_milp.schema.output.write_text_atomically", write)
    assert run("solve", TINY, "-o", tmp_path / "r.json").code == 0
    assert load_result(tmp_path / "r.json").plan == PLAN
