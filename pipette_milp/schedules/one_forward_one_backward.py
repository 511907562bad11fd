"""1F1B without interleaving (PipeDream-flush), as Megatron-Core and DeepSpeed run it.

Source: Megatron-LM ``core/pipeline_parallel/schedules.py``,
``forward_backward_pipelining_without_interleaving``.
"""

from __future__ import annotations

from pipette_milp.schedules.base import (
    ASYNC,
    EXCHANGE,
    InFlight,
    Schedule,
    StageEnds,
    Step,
    Task,
    exchange_steps,
)


class OneForwardOneBackward(Schedule):
    """Stage s runs ``min(M, p - s - 1)`` forwards, then alternates, then drains its backwards."""

    name = "1f1b"
    default_transfers = EXCHANGE
    transfer_modes = (EXCHANGE, ASYNC)

    def order(self, pipeline: int, virtual_stages: int, num_micro_batches: int) -> list[tuple[Task, ...]]:
        """See :meth:`Schedule.order`."""
        return [one_forward_one_backward(stage, pipeline, num_micro_batches) for stage in range(pipeline)]

    def in_flight(
        self, stage: int, pipeline: int, virtual_stages: int, num_micro_batches: int, framework: str
    ) -> InFlight:
        """``min(M, p - s)``; DeepSpeed's engine keeps at least two buffers (``num_pipe_buffers``)."""
        held = min(num_micro_batches, pipeline - stage)
        return InFlight(max(2, held) if framework == "deepspeed" else held, 0)

    def _with_exchanges(
        self, stage: int, pipeline: int, num_micro_batches: int, tasks: tuple[Task, ...]
    ) -> tuple[Step, ...]:
        """Blocking calls of Megatron-Core; the two ends of every call name the same members.

        Warm-up: recv_forward, forward, send_forward. Steady: forward, send_forward_recv_backward,
        backward, send_backward_recv_forward, where the first forward is received beforehand and the last
        backward is only sent. Cooldown: recv_backward, backward, send_backward.
        """
        ends = StageEnds(stage, pipeline)
        warmup = warmup_forwards(stage, pipeline, num_micro_batches)
        steps: list[Step] = []
        for task in tasks:
            m = task.micro_batch
            if task.kind == "F":
                if m <= warmup:
                    steps += exchange_steps(ends.recv_forward(m))
                steps.append(task)
                if m < warmup:
                    steps += exchange_steps(ends.send_forward(m))
                else:
                    steps += exchange_steps(ends.send_forward(m), ends.recv_backward(m - warmup))
            else:
                steady = m + warmup < num_micro_batches
                if not steady:
                    steps += exchange_steps(ends.recv_backward(m))
                steps.append(task)
                follows = m + warmup + 1 < num_micro_batches
                steps += exchange_steps(
                    ends.send_backward(m), ends.recv_forward(m + warmup + 1) if follows else None
                )
        return tuple(steps)


def warmup_forwards(stage: int, pipeline: int, num_micro_batches: int) -> int:
    """Forwards before the first backward of the steady state."""
    return min(pipeline - stage - 1, num_micro_batches)


def one_forward_one_backward(stage: int, pipeline: int, num_micro_batches: int) -> tuple[Task, ...]:
    """Tasks of one stage in execution order."""
    warmup = warmup_forwards(stage, pipeline, num_micro_batches)
    tasks = [Task("F", stage, m) for m in range(warmup)]
    for m in range(num_micro_batches - warmup):
        tasks += [Task("F", stage, m + warmup), Task("B", stage, m)]
    tasks += [Task("B", stage, m) for m in range(num_micro_batches - warmup, num_micro_batches)]
    return tuple(tasks)
