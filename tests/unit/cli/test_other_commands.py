from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipette_milp.certificates import Certificate
from pipette_milp.schema.instance import load_instance
from pipette_milp.schema.output import write_json_atomically, write_text_atomically
from tests.conftest import REPOSITORY

from .conftest import PLAN, TINY, Run, result_for

Tiny = Callable[..., Path]
INIT = (
    "init", "--model", "llama-3.1-8b", "--cluster", "8x8:a100-80gb", "--network", "8x200Gbit/s",
    "--global-batch", "512", "--sequence-length", "8192",
)  # fmt: skip


def test_init_prints_an_instance(run: Run) -> None:
    outcome = run(*INIT)
    assert outcome.code == 0
    assert load_instance(json.loads(outcome.out)).cluster.num_gpus == 64


def test_init_writes_a_file_and_says_what_next(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    outcome = run(*INIT, "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    assert f"pipette-milp solve {path}" in outcome.err
    assert load_instance(path).training.global_batch_size == (512,)


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--cluster", "8x8:a100", "choose from a100-40gb, a100-80gb"),
        ("--model", "gpt", "is ambiguous"),
        ("--model", "absent.json", "no such file"),
        ("--network", "8x200gb/s", "in doubt"),
        ("--global-batch", "0", "training.global_batch_size"),
        ("--global-batch", "many", "'--global-batch'"),
        ("--sequence-length", "-4", "model.sequence_length"),
        ("--hosts", "absent", "absent: no such file"),
    ],
)
def test_init_refuses(run: Run, option: str, value: str, says: str) -> None:
    outcome = run(*INIT, option, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert "Traceback" not in outcome.err


def test_init_needs_the_sequence_length(run: Run) -> None:
    outcome = run(*INIT[:-2])
    assert outcome.code == 2
    assert "--sequence-length" in outcome.err


def test_init_names_what_a_model_with_experts_lacks(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mixtral", "num_local_experts": 8}))
    outcome = run(*INIT, "--model", path)
    assert outcome.code == 2
    assert "num_experts_per_tok: is required" in outcome.err


@pytest.mark.parametrize("kind", ["instance", "plan", "result"])
def test_schema(run: Run, kind: str) -> None:
    outcome = run("schema", kind)
    assert outcome.code == 0
    assert json.loads(outcome.out)["$schema"].startswith("https://json-schema.org/")


def test_schema_of_something_else(run: Run) -> None:
    outcome = run("schema", "cluster")
    assert (outcome.code, outcome.out) == (2, "")
    assert "choose from instance, plan, result" in outcome.err


def test_estimate_completes_the_configuration(run: Run, fake_estimate: dict[str, Any]) -> None:
    outcome = run("estimate", TINY, "--pipeline", 2, "--tensor", 1, "--micro-batch", 1)
    assert outcome.code == 0
    configuration = fake_estimate["called"][1]
    assert (configuration.data, configuration.num_micro_batches, configuration.layers_per_stage) == (
        2,
        4,
        (3, 3),
    )
    assert "7,802 tokens/s" in outcome.out
    assert "waiting 19.0 %" in outcome.out


def test_estimate_options_replace_fields_of_the_file(
    run: Run, fake_estimate: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "c.json"
    write_json_atomically(
        path, {"configuration": {"pipeline": 2, "micro_batch": 1, "layers_per_stage": [4, 2]}}
    )
    assert run("estimate", TINY, "--config", path, "--micro-batch", 2).code == 0
    configuration = fake_estimate["called"][1]
    assert (configuration.micro_batch, configuration.layers_per_stage) == (2, (4, 2))
    assert run("estimate", TINY, "--config", path, "--layers-per-stage", "2,4").code == 0
    assert fake_estimate["called"][1].layers_per_stage == (2, 4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--pipeline", "2"], "micro_batch: is required"),
        (["--pipeline", "3", "--micro-batch", "1"], "does not divide the 4 usable GPUs"),
        (["--pipeline", "2", "--micro-batch", "3"], "does not divide the global batch 8"),
        (["--pipeline", "0", "--micro-batch", "1"], "--pipeline"),
        (["--micro-batch", "1", "--layers-per-stage", "3;3"], "such as 9,8,8,7"),
        (["--micro-batch", "1", "--recompute", "some"], "recompute"),
        (["--micro-batch", "1", "--num-micro-batches", "4"], "the global batch is 8"),
    ],
)
def test_illegal_configurations_exit_2(
    run: Run, fake_estimate: dict[str, Any], words: list[str], says: str
) -> None:
    outcome = run("estimate", TINY, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert fake_estimate["called"] is None


def test_simulate_reads_plans_and_results(run: Run, fake_estimate: dict[str, Any], tmp_path: Path) -> None:
    plan, result = tmp_path / "plan.json", tmp_path / "result.json"
    write_json_atomically(plan, PLAN.model_dump(mode="json"))
    write_text_atomically(result, result_for(load_instance(TINY)).to_json())
    for path in (plan, result):
        outcome = run("simulate", TINY, path, "--json")
        assert outcome.code == 0
        assert json.loads(outcome.out)["simulated_s"] == 1.05
        assert fake_estimate["called"][1] == PLAN


def test_simulate_writes_a_trace(run: Run, fake_estimate: dict[str, Any], tmp_path: Path) -> None:
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    write_json_atomically(plan, PLAN.model_dump(mode="json"))
    assert run("simulate", TINY, plan, "--trace", trace).code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert any("node-001:1" in name for name in names)


def test_a_result_of_another_instance_is_refused(
    run: Run, fake_estimate: dict[str, Any], fake_verify: dict[str, Any], tmp_path: Path, tiny: Tiny
) -> None:
    result = tmp_path / "result.json"
    write_text_atomically(result, result_for(load_instance(TINY)).to_json())
    other = tiny({"training/global_batch_size": 16})
    simulated = run("simulate", other, result)
    assert (simulated.code, simulated.out) == (2, "")
    assert "another instance" in simulated.err
    verified = run("verify", other, result)
    assert verified.code == 5
    assert "another instance" in verified.err


def test_verify_lists_every_claim(run: Run, fake_verify: dict[str, Any], tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    write_text_atomically(result, result_for(load_instance(TINY)).to_json())
    outcome = run("verify", TINY, result)
    assert outcome.code == 0
    assert "ok      recomputed  simulated_s: 1.05 s" in outcome.out
    assert "ok      solver      lower_bound_s" in outcome.out
    fake_verify["ok"] = False
    outcome = run("verify", TINY, result)
    assert outcome.code == 5
    assert "FAILED  recomputed" in outcome.out
    assert "verification failed" in outcome.err


def test_verify_as_json_with_a_certificate(run: Run, fake_verify: dict[str, Any], tmp_path: Path) -> None:
    instance = load_instance(TINY)
    result, proofs = tmp_path / "result.json", tmp_path / "proofs.json"
    write_text_atomically(result, result_for(instance).to_json())
    certificate = Certificate(
        instance_sha256=instance.sha256(), lower_bound_s=1.0, global_batch_size=8, proofs=()
    )
    write_text_atomically(proofs, certificate.to_json())
    outcome = run("verify", TINY, result, "--certificate", proofs, "--json")
    assert (outcome.code, json.loads(outcome.out)) == (0, {"ok": True})
    assert fake_verify["certificate"] == certificate
    proofs.write_text(proofs.read_text().replace('"proofs"', '"prooofs"'))
    outcome = run("verify", TINY, result, "--certificate", proofs)
    assert outcome.code == 2
    assert "prooofs" in outcome.err


def test_certify_needs_a_bound(run: Run, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    document = json.loads(result_for(load_instance(TINY), termination="LIMIT").to_json())
    write_json_atomically(result, {**document, "lower_bound_s": None, "gap": None})
    outcome = run("certify", TINY, result, "-o", tmp_path / "proofs.json")
    assert outcome.code == 2
    assert "no lower bound" in outcome.err
    assert run("certify", TINY, result, "-o", tmp_path / "nowhere" / "proofs.json").code == 2


def test_verify_of_a_file_that_is_no_result(run: Run, fake_verify: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{"termination": "OPTIMAL"}')
    outcome = run("verify", TINY, path)
    assert outcome.code == 2
    assert "instance_sha256: is required" in outcome.err


def test_verify_of_a_result_that_cannot_be(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    document = json.loads(result_for(load_instance(TINY)).to_json())
    write_json_atomically(path, {**document, "lower_bound_s": 2.0})
    outcome = run("verify", TINY, path)
    assert (outcome.code, outcome.out) == (5, "")
    assert "is above simulated_s" in outcome.err


def test_verify_refuses_made_up_figures(run: Run, tmp_path: Path) -> None:
    """Without any stand-in: the plan is simulated again."""
    path = tmp_path / "r.json"
    write_text_atomically(path, result_for(load_instance(TINY)).to_json())
    outcome = run("verify", TINY, path)
    assert outcome.code == 5
    assert "FAILED  recomputed  simulated_s" in outcome.out


def test_estimate_and_simulate_agree(run: Run, tmp_path: Path) -> None:
    words = ("--pipeline", 2, "--tensor", 2, "--micro-batch", 1, "--json")
    estimated = run("estimate", TINY, *words)
    assert estimated.code == 0
    document = json.loads(estimated.out)
    path, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    write_json_atomically(path, {key: document[key] for key in ("configuration", "placement")})
    simulated = run("simulate", TINY, path, "--json", "--trace", trace)
    assert json.loads(simulated.out) == document
    last_us = max(
        event["ts"] + event["dur"] for event in json.loads(trace.read_text())["traceEvents"] if "dur" in event
    )
    assert last_us == pytest.approx(document["simulated_s"] * 1e6, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--pipeline", 1, "--tensor", 4), "exceeds the 2 GPUs of a node"),
        (("--pipeline", 2, "--layers-per-stage", "1,1"), "hold 2 layers"),
        (("--pipeline", 2, "--schedule", "zb-h1", "--virtual-stages", 2), "virtual stage"),
    ],
)
def test_estimate_names_the_rule(run: Run, words: tuple[object, ...], says: str) -> None:
    outcome = run("estimate", TINY, *words, "--micro-batch", 1)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err


def test_no_arguments_and_unknown_commands(run: Run) -> None:
    assert "solve" in run("--help").out
    assert run("--version").out.strip() == "0.1.0"
    outcome = run("sovle")
    assert outcome.code == 2
    assert "sovle" in outcome.err


def test_help_loads_nothing_heavy() -> None:
    # pydantic is not among them: newer versions of typer load it to convert arguments.
    code = (
        "import sys\nfrom pipette_milp.cli import main\n"
        "try:\n    main(['solve', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pandas', 'pyomo', 'ortools', 'highspy', 'numba'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--time-limit" in done.stdout


def test_a_reader_that_leaves_early_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -m pipette_milp schema result | head -c 1",
        shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
