"""An emulated cluster: processes of all ranks in their namespaces, and jobs handed to all of them.

The processes are forked from one that has loaded PyTorch (`pipette_milp.measure.emulation.host`), because
sixteen imports of it take longer than most measurements.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pipette_milp.measure.emulation.namespaces import EmulationError, require
from pipette_milp.measure.emulation.shaping import EmulatedNetwork
from pipette_milp.measure.session import load_torch

START_TIMEOUT_S = 120.0
"""For importing PyTorch and joining all ranks; measured 10 s for 16 ranks on two idle cores."""
STOP_TIMEOUT_S = 10.0


class EmulatedCluster:
    """A context manager; inside it the ranks run and take jobs.

    Everything it made is gone afterwards, also when this process is killed: the host process then reads the
    end of its input, the ranks die with the host by order of the kernel, and the namespaces with the ranks.
    """

    def __init__(
        self,
        network: EmulatedNetwork,
        ranks_per_node: int = 1,
        *,
        names: Sequence[str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """
        Args:
            names: of the nodes; default node-000, node-001, ...
            timeout_s: longest wait of a rank for another one.

        Raises:
            InputError: not possible on this machine, or no PyTorch.
        """
        self.network = network
        self.ranks_per_node = ranks_per_node
        self.names = list(names) if names is not None else [f"node-{n:03d}" for n in range(network.size)]
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._folder: str | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.network.size * self.ranks_per_node

    def __enter__(self) -> EmulatedCluster:
        require()
        load_torch()
        self._folder = tempfile.mkdtemp(prefix="pipette-emulated-")
        description = {
            "pair_bytes_per_s": self.network.pair_bytes_per_s.tolist(),
            "egress_bytes_per_s": self.network.egress_bytes_per_s.tolist(),
            "ingress_bytes_per_s": self.network.ingress_bytes_per_s.tolist(),
            "ranks_per_node": self.ranks_per_node,
            "names": self.names,
            "timeout_s": self.timeout_s,
            "folder": self._folder,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipette_milp.measure.emulation.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C reaches this process only, which then closes the cluster
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PIPETTE_NO_NUMBA": "1"},
        )
        try:
            self._send(description)
            self._answer(START_TIMEOUT_S, "start")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, job: dict[str, Any], timeout_s: float = 600.0) -> Any:
        """Hand a job to all ranks and return what rank 0 answers.

        Raises:
            EmulationError: a rank failed (the cluster is then unusable), or no answer in time.
        """
        self._send(job)
        return self._answer(timeout_s, str(job.get("job")))

    def _send(self, message: Any) -> None:
        process = self._running()
        if process.stdin is None:
            raise EmulationError("the emulated cluster has no input")
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise EmulationError("the emulated cluster has ended, see the messages above") from None

    def _answer(self, timeout_s: float, what: str) -> Any:
        process = self._running()
        output = process.stdout
        if output is None:
            raise EmulationError("the emulated cluster has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            deadline = time.monotonic() + timeout_s
            while not selector.select(max(0.0, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    raise EmulationError(f"the emulated cluster did not answer {what} in {timeout_s:g} s")
        line = output.readline()
        if not line:
            raise EmulationError(f"the emulated cluster ended during {what}")
        answer = json.loads(line)
        if "error" in answer:
            raise EmulationError(str(answer["error"]))
        return answer["result"]

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise EmulationError("the emulated cluster is not running: use it as a context manager")
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()  # end of input: the host ends its ranks and itself
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            shutil.rmtree(Path(self._folder), ignore_errors=True)
            self._folder = None
