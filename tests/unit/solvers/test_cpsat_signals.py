"""An in-process CP-SAT solve leaves the process's answer to Ctrl-C as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.conftest import REPOSITORY

PROGRAM = """
import signal
from pipette_milp import load_instance
from pipette_milp.cost.build import CostModel
from pipette_milp.search_space import enumerate_space
from pipette_milp.solvers.joint import solve_joint

signal.signal(signal.SIGINT, signal.default_int_handler)
families = enumerate_space(CostModel.of(load_instance("instances/tiny-4x2-a100-flat.json"))).families
outcome = solve_joint(families, backend="cpsat", in_process=True, time_limit_s=20.0, iteration_limit=1)
print(len(outcome.rounds))
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("answered")
"""


def test_sigint_still_raises_keyboard_interrupt() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=REPOSITORY, env=environment
    )
    assert run.returncode != -signal.SIGINT, "the default action of SIGINT came back"
    assert run.stdout.split() == ["1", "answered"], run.stderr
