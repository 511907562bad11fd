"""Commands measure and replay: what is refused before any rank meets another."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipette_milp.cli.replay_summary import print_report
from pipette_milp.measure import session
from pipette_milp.measure.comparison import compare
from tests.replay_cases import costs_of, played, random_plan, replayable
from tests.unit.cli.conftest import PLAN, TINY, Run, result_for

LAUNCHER = {
    "RANK": "1",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.model_dump_json())
    return path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets a launcher's variables, with PyTorch taken for granted."""

    def set_variables(**changes: str) -> None:
        monkeypatch.setattr(session, "load_torch", lambda: None)
        for name, value in {**LAUNCHER, **changes}.items():
            monkeypatch.setenv(name, value)

    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    return set_variables


@pytest.mark.parametrize("words", [["measure", "network"], ["measure", "compute", TINY], ["replay", TINY]])
def test_without_pytorch_all_say_what_to_install(
    run: Run, plan: Path, monkeypatch: pytest.MonkeyPatch, words: list[object]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = run(*words, *([plan] if words[0] == "replay" else []))
    assert found.code == 2
    assert "pip install 'pipette_milp[measure]'" in found.err
    assert found.out == ""


@pytest.mark.parametrize("words", [["measure", "network"], ["replay", TINY]])
def test_without_a_launcher(
    run: Run, plan: Path, monkeypatch: pytest.MonkeyPatch, words: list[object]
) -> None:
    monkeypatch.setattr(session, "load_torch", lambda: None)
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    found = run(*words, *([plan] if words[0] == "replay" else []))
    assert found.code == 2
    for launcher in ("torchrun", "mpirun", "srun"):
        assert launcher in found.err


@pytest.mark.parametrize("rank", ["0", "1", "2"])
def test_a_wrong_number_of_ranks_is_told_by_every_rank(
    run: Run, plan: Path, launched: Callable[..., None], rank: str
) -> None:
    launched(RANK=rank)
    found = run("replay", TINY, plan)
    assert found.code == 2
    assert "the plan has 4 ranks, torchrun started 3: start 4" in found.err


def test_a_result_of_another_instance(run: Run, tmp_path: Path, tiny: Callable[..., Path]) -> None:
    from pipette_milp.schema.instance import load_instance

    result = tmp_path / "result.json"
    result.write_text(result_for(load_instance(TINY)).to_json())
    found = run("replay", tiny({"training/global_batch_size": 16}), result)
    assert found.code == 2
    assert "another instance" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compute", "dream"], "compute 'dream': expected wait or matrix"),
        (["--timeout", "0"], "--timeout: expected more than 0 seconds"),
        (["--trace", "/nowhere/t.json"], "/nowhere/t.json: cannot be written"),
        (["--iterations", "0"], "iterations"),
        (["--rendezvous", "nonsense"], "expected HOST:PORT"),
        (["--device", "tpu"], "device 'tpu': expected cpu or cuda"),
    ],
)
def test_bad_options_of_replay(
    run: Run, plan: Path, launched: Callable[..., None], words: list[str], message: str
) -> None:
    launched(WORLD_SIZE="4")
    found = run("replay", TINY, plan, *words)
    assert found.code == 2
    assert message in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--merged", "x.json"], "--merged: needs an INSTANCE"),
        (["--largest", "5 apples"], "--largest"),
        (["--largest", "1 kB"], "expected >= 4096"),
        (["--pair-timeout", "100 s"], "--timeout: expected at least twice --pair-timeout"),
        (["--append", "nothing.json"], "nothing.json: no such file"),
        (["--append", str(TINY)], "is no file of `measure network`"),
        (["-o", "/nowhere/t.json"], "/nowhere/t.json: cannot be written"),
    ],
)
def test_bad_options_of_measure_network(
    run: Run, launched: Callable[..., None], words: list[str], message: str
) -> None:
    launched()
    found = run("measure", "network", *words)
    assert found.code == 2
    assert message in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tensor", "two"], "--tensor: expected whole numbers"),
        (["--tensor", "3"], "3 does not divide attention_heads 16"),
        (["--tensor", "0"], "--tensor: 0"),
        (["--micro-batch", "0"], "--micro-batch: 0: expected at least 1"),
        (["--precision", "int4"], "--precision: 'int4': expected fp32"),
        (["--kind", "attention"], "--kind: 'attention': expected dense"),
        (["--device", "tpu"], "device 'tpu'"),
    ],
)
def test_bad_options_of_measure_compute(run: Run, words: list[str], message: str) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pipette_milp[measure]'")
    found = run("measure", "compute", TINY, *words)
    assert found.code == 2
    assert message in found.err


def test_what_a_person_sees() -> None:
    costs = costs_of(4, 2, model={"layers": 8})
    plan = random_plan(costs, (4, 4), tensor=2, data=2, num_micro_batches=8)
    wanted = replayable(costs, plan)
    report = compare(costs.instance, wanted, [[e] for e in played(wanted)], transport="gloo", compute="wait")
    report.pop("trace")
    stream = io.StringIO()
    print_report(json.loads(json.dumps(report)), stream)
    text = stream.getvalue()
    assert "+0.00%" in text
    assert "gradient sync" in text
    assert "boundary 0 forward" in text
    assert "note: collectives of tensor groups" in text
