"""ZB-H1: 1F1B with the weight gradient split off and delayed (Qi et al., arXiv 2401.10241).

Stage s runs the weight-gradient pass of micro-batch k after the input-gradient pass of micro-batch k + s,
what remains after its last one. Later stages start later and have s passes left to fill the drain.
Without communication and for ``M >= p``: ``M(f + b + w) + (p - 1)(f + b - w)`` while ``w <= b``.
"""

from __future__ import annotations

from pipette_milp.schedules.base import ASYNC, InFlight, Schedule, Task
from pipette_milp.schedules.one_forward_one_backward import one_forward_one_backward


class ZeroBubbleH1(Schedule):
    """Task B is the input-gradient part, W the rest; W sends nothing.

    Only async, as its authors' runtime issues its transfers. The global barrier before the optimiser
    stays (no post-validation).
    """

    name = "zb-h1"
    default_transfers = ASYNC
    transfer_modes = (ASYNC,)
    separates_weight_gradient = True

    def order(self, pipeline: int, virtual_stages: int, num_micro_batches: int) -> list[tuple[Task, ...]]:
        """See :meth:`Schedule.order`."""
        stages = []
        for stage in range(pipeline):
            tasks: list[Task] = []
            for task in one_forward_one_backward(stage, pipeline, num_micro_batches):
                tasks.append(task)
                delayed = task.micro_batch - stage
                if task.kind == "B" and delayed >= 0:
                    tasks.append(Task("W", stage, delayed))
            left = range(max(0, num_micro_batches - stage), num_micro_batches)
            stages.append(tuple(tasks + [Task("W", stage, m) for m in left]))
        return stages

    def in_flight(
        self, stage: int, pipeline: int, virtual_stages: int, num_micro_batches: int, framework: str
    ) -> InFlight:
        """``p - s`` fully and ``s`` more for the weight-gradient pass, together at most M."""
        full = min(num_micro_batches, pipeline - stage)
        return InFlight(full, min(num_micro_batches - full, stage))
