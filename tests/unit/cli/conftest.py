"""Runs commands in this process, with stand-ins for the solver where only the command line is tested."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pipette_milp import solvers
from pipette_milp.cli import main
from pipette_milp.schema.plan import Configuration, Placement, Plan, split_stages
from pipette_milp.schema.result import SolveResult
from tests.conftest import INSTANCES

TINY = INSTANCES / "tiny-2x2-a100-nominal.json"


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line and returns exit code, standard output and standard error."""

    def call(*words: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        code = caught.value.code
        return Outcome(0 if code is None else int(code), captured.out, captured.err)

    return call


CONFIGURATION = Configuration(
    pipeline=2, tensor=2, data=1, micro_batch=1, num_micro_batches=8, stages=split_stages((3, 3))
)
PLAN = Plan(configuration=CONFIGURATION, placement=Placement(gpu_of_rank=(0, 1, 2, 3)))
MEMORY = {
    "per_stage": [
        {
            "weights_bytes": 1e9,
            "gradients_bytes": 2e9,
            "optimizer_bytes": 6e9,
            "activations_bytes": 1e9,
            "other_bytes": 1e9,
            "allocated_peak_bytes": 11e9,
            "reserved_peak_bytes": 12e9,
            "peak_bytes": 13e9,
            "capacity_bytes": 85e9,
            "usable_bytes": 82e9,
            "tightest_gpu": 0,
        }
    ]
    * 2
}
EVALUATION: dict[str, Any] = {
    "configuration": CONFIGURATION.model_dump(mode="json"),
    "simulated_s": 1.05,
    "critical_path": {"compute_s": 0.9, "pipeline_comm_s": 0.1, "optimizer_s": 0.05},
    "breakdown": {"stage": 0, "replica": 0, "compute_s": 0.8, "bubble_s": 0.2, "optimizer_s": 0.05},
    "throughput": {
        "tokens_per_s": 7801.9,
        "tokens_per_s_per_gpu": 1950.5,
        "model_flop_per_s_per_gpu": 120e12,
        "mfu": 0.385,
        "flop_convention": "6 N",
        "peak_used": 312e12,
    },
    "memory": MEMORY,
    "durations": {
        "forward_s": [[0.03], [0.03]],
        "backward_s": [[0.06], [0.06]],
        "hop_forward_s": [[0.001]],
        "hop_backward_s": [[0.001]],
        "gradient_sync_s": [0.0, 0.0],
        "embedding_sync_s": 0.0,
        "optimizer_s": [0.05, 0.05],
        "parameter_gather_s": [0.0, 0.0],
        "fixed_s": 0.0,
    },
    "order": [],
    "fits": True,
    "warnings": [],
}


def result_for(instance: Any, **changes: Any) -> SolveResult:
    """A plausible result of the tiny instance."""
    second = CONFIGURATION.model_copy(update={"micro_batch": 2, "num_micro_batches": 4, "recompute": "full"})
    parts = {key: EVALUATION[key] for key in ("critical_path", "breakdown", "throughput", "memory")}
    fields: dict[str, Any] = {
        "instance_sha256": instance.sha256(),
        "termination": "GAP_REACHED",
        "simulated_s": 1.05,
        "lower_bound_s": 1.045,
        "solver": "auto",
        "links": "nominal",
        "plan": PLAN,
        "plans": [
            {"configuration": CONFIGURATION, "placement": PLAN.placement, "simulated_s": 1.05, **parts},
            {
                "configuration": second,
                "placement": PLAN.placement,
                "simulated_s": 1.2,
                **parts,
                "critical_path": {"compute_s": 1.04, "pipeline_comm_s": 0.11, "optimizer_s": 0.05},
            },
        ],
        "default_order_s": 1.06,
        "wall_time_s": 2.5,
        "settings": {"model_error": 0.05},
        **parts,
    }
    return SolveResult(**{**fields, **changes})


@pytest.fixture
def fake_solver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the solver. ``["changes"]`` alters the result, ``["raises"]`` is raised instead, the process
    gets ``["signal"]`` while it solves; what the solver was called with lies under ``["called"]``."""
    control: dict[str, Any] = {"changes": {}, "raises": None, "signal": None, "called": None}

    def solve(instance: Any, **options: Any) -> SolveResult:
        control["called"] = {"instance": instance, **options}
        print("a banner that must not reach standard output")
        for event in (
            SimpleNamespace(time_s=0.1, incumbent_s=1.2, bound_s=None, message="greedy"),
            SimpleNamespace(time_s=0.2, incumbent_s=1.05, bound_s=1.045, message=""),
        ):
            options["listener"](event)
        if control["signal"] is not None:
            signal.raise_signal(control["signal"])
        if control["raises"] is not None:
            raise control["raises"]
        return result_for(instance, **control["changes"])

    monkeypatch.setattr(solvers, "solve", solve, raising=False)
    return control


@pytest.fixture
def fake_estimate(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces `estimate` and `simulate_plan`; ``["called"]`` holds what they were given."""
    control: dict[str, Any] = {"called": None}

    def evaluate(instance: Any, what: Any) -> dict[str, Any]:
        control["called"] = (instance, what)
        return EVALUATION

    module = SimpleNamespace(estimate=evaluate, simulate_plan=evaluate)
    monkeypatch.setitem(sys.modules, "pipette_milp.estimate", module)
    return control


@pytest.fixture
def fake_verify(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    control: dict[str, Any] = {"ok": True}

    def verify(instance: Any, result: Any, certificate: Any) -> Any:
        control["certificate"] = certificate
        claims = [
            SimpleNamespace(claim="simulated_s", how="recomputed", ok=control["ok"], detail="1.05 s"),
            SimpleNamespace(claim="lower_bound_s", how="solver", ok=True, detail=""),
        ]
        return SimpleNamespace(claims=claims, ok=control["ok"], to_dict=lambda: {"ok": control["ok"]})

    monkeypatch.setitem(sys.modules, "pipette_milp.verify", SimpleNamespace(verify=verify))
    return control


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Path]:
    """Writes the tiny instance with changes given as ``{"training/precision": "bf16"}``; ... deletes."""

    def write(changes: dict[str, Any] | None = None) -> Path:
        data = json.loads(TINY.read_text())
        for place, value in (changes or {}).items():
            *parents, last = place.split("/")
            target = data
            for part in parents:
                target = target[int(part)] if isinstance(target, list) else target[part]
            if value is ...:
                del target[last]
            else:
                target[last] = value
        path = tmp_path / "instance.json"
        path.write_text(json.dumps(data))
        return path

    return write
