"""GPipe: all forwards, then all backwards (Huang et al., arXiv 1811.06965)."""

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


class GPipe(Schedule):
    """Every stage holds the activations of all micro-batches at its turning point.

    Backwards run in micro-batch order, as torch.distributed.pipelining's ScheduleGPipe does (the
    paper draws them reversed; with one duration per stage the time is the same).
    """

    name = "gpipe"
    default_transfers = EXCHANGE
    transfer_modes = (EXCHANGE, ASYNC)

    def order(self, pipeline: int, virtual_stages: int, num_micro_batches: int) -> list[tuple[Task, ...]]:
        """See :meth:`Schedule.order`."""
        return [
            tuple(Task(kind, stage, m) for kind in "FB" for m in range(num_micro_batches))
            for stage in range(pipeline)
        ]

    def in_flight(
        self, stage: int, pipeline: int, virtual_stages: int, num_micro_batches: int, framework: str
    ) -> InFlight:
        """All M micro-batches."""
        return InFlight(num_micro_batches, 0)

    def _with_exchanges(
        self, stage: int, pipeline: int, num_micro_batches: int, tasks: tuple[Task, ...]
    ) -> tuple[Step, ...]:
        """Blocking calls one by one: receive, compute, send."""
        ends = StageEnds(stage, pipeline)
        steps: list[Step] = []
        for task in tasks:
            m = task.micro_batch
            before, after = (
                (ends.recv_forward(m), ends.send_forward(m))
                if task.kind == "F"
                else (ends.recv_backward(m), ends.send_backward(m))
            )
            steps += exchange_steps(before)
            steps.append(task)
            steps += exchange_steps(after)
        return tuple(steps)
