"""The process that holds an emulated cluster: ``python -m pipette_milp.measure.emulation.host``.

It reads JSON lines: first what the cluster looks like, then jobs, which it hands to every rank. It writes one
line per job: ``{"result": what rank 0 said}`` or ``{"error": message}``. At the end of its input, or when a
rank has failed, it ends all ranks and itself. PyTorch is imported once, then every rank is forked.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp.errors import PipetteError
from pipette_milp.measure.emulation import shaping
from pipette_milp.measure.emulation.namespaces import (
    apply_settings,
    die_with_parent,
    enter,
    open_namespaces,
    run_batch,
)
from pipette_milp.measure.emulation.worker import serve
from pipette_milp.measure.launch_environment import LaunchEnvironment
from pipette_milp.measure.session import load_torch

AFTER_FAILURE_S = 5.0
"""How long the other ranks have to say what they saw, once one has failed."""


@dataclass
class _Rank:
    process: int
    node: str
    pipe: socket.socket
    received: bytes = b""
    answer: dict[str, Any] | None = None
    """Of the current job."""
    ended: bool = False
    status: int | None = None
    """Of the process, once it was waited for."""

    def reap(self) -> bool:
        """Whether the process has ended; its number may be reused after that."""
        if self.status is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self.status = status
        return self.status is not None


class _Input:
    """Lines of standard input without a buffer that a selector cannot see."""

    def __init__(self) -> None:
        self._text = b""

    def lines(self) -> list[str] | None:
        """What has arrived; None at the end."""
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return None
        *lines, self._text = (self._text + chunk).split(b"\n")
        return [line.decode() for line in lines]


def main() -> None:
    """Build the cluster, hand on jobs, end everything."""
    source = _Input()
    pending: list[str] = []
    while not pending:
        lines = source.lines()
        if lines is None:
            return
        pending += lines
    description = json.loads(pending.pop(0))
    ranks: list[_Rank] = []
    try:
        try:
            ranks = _start(description)
            answer = _collect(ranks, source, pending)
        except (PipetteError, OSError) as error:
            answer = {"error": str(error)}
        while answer is not None:
            print(json.dumps(answer), flush=True)
            if "error" in answer:
                return
            job = _next_job(ranks, source, pending)
            if job is None:
                return
            if "error" in job:
                answer = job
                continue
            for rank in ranks:
                rank.answer = None
                with contextlib.suppress(BrokenPipeError):
                    rank.pipe.sendall(json.dumps(job).encode() + b"\n")
            answer = _collect(ranks, source, pending)
    finally:
        for rank in ranks:
            if not rank.reap():
                os.kill(rank.process, signal.SIGKILL)
                os.waitpid(rank.process, 0)
        shutil.rmtree(description["folder"], ignore_errors=True)


def _start(description: dict[str, Any]) -> list[_Rank]:
    network = shaping.EmulatedNetwork(
        np.array(description["pair_bytes_per_s"]),
        np.array(description["egress_bytes_per_s"]),
        np.array(description["ingress_bytes_per_s"]),
    )
    load_torch()
    handles = open_namespaces(network.size + 1)  # this process stays in the last one, the switch's
    own = os.getpid()
    paths = [f"/proc/{own}/fd/{handle}" for handle in handles[:-1]]
    run_batch("ip", shaping.switch_links(network.size, paths))
    run_batch("tc", shaping.switch_shaping(network, description["ranks_per_node"]))
    ranks: list[_Rank] = []
    for node in range(network.size):
        enter(handles[node])
        run_batch("ip", shaping.node_links(network, node))
        apply_settings(shaping.settings())
        run_batch("tc", shaping.node_shaping(network, node, description["ranks_per_node"]))
        for local in range(description["ranks_per_node"]):
            environment = LaunchEnvironment(
                rank=len(ranks),
                world_size=network.size * description["ranks_per_node"],
                local_rank=local,
                node_name=description["names"][node],
                rendezvous=f"file://{description['folder']}/store",
                launcher="emulation",
            )
            ranks.append(_fork(environment, description["timeout_s"], own))
    enter(handles[-1])
    for handle in handles[:-1]:
        os.close(handle)
    return ranks


def _fork(environment: LaunchEnvironment, timeout_s: float, parent: int) -> _Rank:
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process:
        theirs.close()
        return _Rank(process, environment.node_name, ours)
    status = 1
    try:
        die_with_parent(parent)
        ours.close()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.dup2(2, 1)  # standard output belongs to the host's answers
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        status = serve(environment, timeout_s, theirs)
    finally:
        os._exit(status)


def _next_job(ranks: list[_Rank], source: _Input, pending: list[str]) -> dict[str, Any] | None:
    """The next line of input, None at its end; an error where a rank ends meanwhile."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        for rank in ranks:
            selector.register(rank.pipe, selectors.EVENT_READ, rank)
        while not pending:
            for key, _ in selector.select():
                if key.data is not None:
                    return _failure(ranks)
                lines = source.lines()
                if lines is None:
                    return None
                pending += lines
    return dict(json.loads(pending.pop(0)))


def _collect(ranks: list[_Rank], source: _Input, pending: list[str]) -> dict[str, Any] | None:
    """Wait until every rank has answered; None if the input ends first."""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        for rank in ranks:
            selector.register(rank.pipe, selectors.EVENT_READ, rank)
        while any(rank.answer is None for rank in ranks):
            for key, _ in selector.select():
                if key.data is None:
                    lines = source.lines()
                    if lines is None:
                        return None
                    pending += lines
                elif not _receive(key.data) or "error" in (key.data.answer or {}):
                    return _failure(ranks)
    return ranks[0].answer


def _receive(rank: _Rank) -> bool:
    """Take what a rank has sent; False when it has ended."""
    try:
        chunk = rank.pipe.recv(1 << 20)
    except ConnectionResetError:
        chunk = b""
    if not chunk:
        rank.ended = True
        return False
    rank.received += chunk
    if rank.received.endswith(b"\n"):
        rank.answer, rank.received = json.loads(rank.received), b""
    return True


def _failure(ranks: list[_Rank]) -> dict[str, Any]:
    """What every rank said, once one has failed."""
    deadline = time.monotonic() + AFTER_FAILURE_S
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            if not rank.ended:
                selector.register(rank.pipe, selectors.EVENT_READ, rank)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if not _receive(key.data):
                    selector.unregister(key.fileobj)
    said = []
    for number, rank in enumerate(ranks):
        if rank.answer is not None and "error" in rank.answer:
            text = str(rank.answer["error"])
        elif rank.ended:
            text = f"ended without a word ({_how_it_ended(rank)})"
        else:
            text = f"still silent after {AFTER_FAILURE_S:g} s"
        said.append(f"rank {number} on {rank.node}: {text}")
    return {"error": "an emulated rank failed\n  " + "\n  ".join(said)}


def _how_it_ended(rank: _Rank) -> str:
    if not rank.reap() or rank.status is None:
        return "its process is still there"
    code = os.waitstatus_to_exitcode(rank.status)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


if __name__ == "__main__":
    main()
