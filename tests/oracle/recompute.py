"""Recompute ``simulated_s`` of a result file from its ``durations`` and ``order``, and nothing else.

A stranger's program: it imports nothing of the package. ``python recompute.py result.json`` prints seconds.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def recompute(durations: dict[str, Any], order: list[list[list[Any]]]) -> float:
    """Seconds of the iteration by the rules of the contract, "How durations compose"."""
    replicas = len(durations["forward_s"][0])
    finish = [replica_finish(durations, order, z) for z in range(replicas)]
    stages = range(len(order))
    sync_end = [max(f[s] for f in finish) + durations["gradient_sync_s"][s] for s in stages]
    embed_end = max(sync_end[0], sync_end[-1]) + durations["embedding_sync_s"]
    step = max(durations["optimizer_s"][s] + durations["parameter_gather_s"][s] for s in stages)
    return max(*sync_end, embed_end) + step + durations["fixed_s"]


def replica_finish(durations: dict[str, Any], order: list[list[list[Any]]], z: int) -> list[float]:
    """Walk all stages in turn, each as far as what it waits for is known."""
    exchange = any(step[0] == "X" for steps in order for step in steps)
    stage_of = {step[1]: s for s, steps in enumerate(order) for step in steps if step[0] == "F"}
    last_virtual = max(stage_of)
    task_s = {"F": durations["forward_s"], "B": durations["backward_s"]}
    task_s["W"] = durations.get("weight_gradient_s")
    hop_s = {"F": durations["hop_forward_s"], "B": durations["hop_backward_s"]}

    position = [0] * len(order)
    clock = [0.0] * len(order)
    finish = [0.0] * len(order)
    reached: dict[tuple[int, str, int, int], float] = {}  # stage and transfer -> when the stage came to it
    arrival: dict[tuple[str, int, int], float] = {}
    task_end: dict[tuple[str, int, int], float] = {}

    def arrived(kind: str, boundary: int, m: int) -> float | None:
        """async: end of a transfer, None while it is not known."""
        if (kind, boundary, m) not in arrival:
            sender = boundary if kind == "F" else boundary + 1
            ready = task_end.get((kind, sender, m))
            before = 0.0 if m == 0 else arrived(kind, boundary, m - 1)
            if ready is None or before is None:
                return None
            arrival[kind, boundary, m] = max(ready, before) + hop_s[kind][boundary][z]
        return arrival[kind, boundary, m]

    def step_end(s: int, step: list[Any]) -> float | None:
        if step[0] == "X":
            for _, kind, boundary, m in step[1]:
                reached.setdefault((s, kind, boundary, m), clock[s])
            ends = []
            for _, kind, boundary, m in step[1]:
                both = [reached.get((stage_of[j], kind, boundary, m)) for j in (boundary, boundary + 1)]
                if None in both:
                    return None
                ends.append(max(both) + hop_s[kind][boundary][z])
            return max(ends)
        kind, j, m = step
        start: float | None = clock[s]
        if not exchange and kind == "F" and j > 0:
            payload = arrived("F", j - 1, m)
            start = None if payload is None else max(clock[s], payload)
        if not exchange and kind == "B" and j < last_virtual:
            payload = arrived("B", j, m)
            start = None if payload is None else max(clock[s], payload)
        if start is None:
            return None
        task_end[kind, j, m] = finish[s] = start + task_s[kind][j][z]
        return task_end[kind, j, m]

    progress = True
    while progress:
        progress = False
        for s, steps in enumerate(order):
            while position[s] < len(steps):
                end = step_end(s, steps[position[s]])
                if end is None:
                    break
                clock[s] = end
                position[s] += 1
                progress = True
    if any(position[s] < len(steps) for s, steps in enumerate(order)):
        raise ValueError("the order never ends")
    return finish


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    print(repr(recompute(document["durations"], document["order"])))
