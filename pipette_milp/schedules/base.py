"""What a pipeline schedule has to say about itself.

Names: pipeline stage ``s`` of ``p``; virtual stage ``j`` of ``V = p * v`` in model order, run by stage
``j % p``; boundary ``j`` lies between virtual stages ``j`` and ``j + 1``; micro-batch ``m`` of ``M``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

EXCHANGE = "exchange"
ASYNC = "async"


class Task(NamedTuple):
    """Compute of one micro-batch on one virtual stage: kind F, B (backward) or W (weight gradient)."""

    kind: str
    virtual_stage: int
    micro_batch: int


class Transfer(NamedTuple):
    """One end of one hop: this stage's role, the payload's kind (F or B), boundary and micro-batch."""

    role: str
    kind: str
    boundary: int
    micro_batch: int


class Exchange(NamedTuple):
    """Transfers that a stage issues together; it goes on when all of them have ended."""

    members: tuple[Transfer, ...]


Step = Task | Exchange
Program = tuple[tuple[Step, ...], ...]


class InFlight(NamedTuple):
    """Most chunks whose activations a stage holds at once; one chunk is one virtual stage of layers.

    Of ``weight_only`` chunks only what the weight-gradient pass needs is kept.
    """

    full: float
    weight_only: float


class Schedule(ABC):
    """The order in which the stages of a pipeline work through one iteration."""

    name: ClassVar[str]
    default_transfers: ClassVar[str]
    transfer_modes: ClassVar[tuple[str, ...]]
    separates_weight_gradient: ClassVar[bool] = False
    allows_virtual_stages: ClassVar[bool] = False

    def legality(
        self,
        pipeline: int,
        virtual_stages: int,
        num_micro_batches: int,
        transfers: str,
        layers_per_virtual_stage: Sequence[int] | None = None,
    ) -> str | None:
        """Why this use is refused, with the rule that it breaks; None if it is legal.

        ``layers_per_virtual_stage`` (length V) is looked at only where the schedule restricts the layer
        split; leave it out where the framework is given an explicit layout of the pipeline.
        """
        for label, value in (
            ("pipeline", pipeline),
            ("virtual_stages", virtual_stages),
            ("num_micro_batches", num_micro_batches),
        ):
            if value < 1:
                return f"{label} is {value}: it must be at least 1"
        if transfers not in self.transfer_modes:
            return (
                f"schedule {self.name} has no pipeline_transfers {transfers!r}: "
                f"accepted: {', '.join(self.transfer_modes)}"
            )
        if virtual_stages > 1 and not self.allows_virtual_stages:
            return (
                f"schedule {self.name} with {virtual_stages} virtual stages: it runs one virtual stage per "
                f"pipeline stage; several need the interleaved schedule"
            )
        return None

    @abstractmethod
    def order(self, pipeline: int, virtual_stages: int, num_micro_batches: int) -> list[tuple[Task, ...]]:
        """Tasks of every pipeline stage in execution order."""

    @abstractmethod
    def in_flight(
        self, stage: int, pipeline: int, virtual_stages: int, num_micro_batches: int, framework: str
    ) -> InFlight:
        """Most chunks held at once by a stage; ``framework`` is "megatron" or "deepspeed".

        Formulas: costs, section 5.
        """

    def program(self, pipeline: int, virtual_stages: int, num_micro_batches: int, transfers: str) -> Program:
        """What every pipeline stage does, step by step: the tasks and, in exchange mode, the exchanges.

        In async mode the stages issue their transfers without waiting, so the program is the task order.
        """
        order = self.order(pipeline, virtual_stages, num_micro_batches)
        if transfers == EXCHANGE:
            return tuple(
                self._with_exchanges(stage, pipeline, num_micro_batches, tasks)
                for stage, tasks in enumerate(order)
            )
        return tuple(tuple(tasks) for tasks in order)

    def _with_exchanges(
        self, stage: int, pipeline: int, num_micro_batches: int, tasks: tuple[Task, ...]
    ) -> tuple[Step, ...]:
        raise NotImplementedError(f"schedule {self.name} lists exchange mode without a program for it")


def exchange_steps(*members: Transfer | None) -> tuple[Exchange, ...]:
    """The members that exist as one step; no step at all where none does (ends of the pipeline)."""
    present = tuple(member for member in members if member is not None)
    return (Exchange(present),) if present else ()


class StageEnds:
    """The four transfers of a stage with its neighbours, None beyond the ends (one chunk a stage)."""

    def __init__(self, stage: int, pipeline: int) -> None:
        self.stage = stage
        self.first = stage == 0
        self.last = stage == pipeline - 1

    def recv_forward(self, micro_batch: int) -> Transfer | None:
        """Activation from the previous stage."""
        return None if self.first else Transfer("recv", "F", self.stage - 1, micro_batch)

    def send_forward(self, micro_batch: int) -> Transfer | None:
        """Activation to the next stage."""
        return None if self.last else Transfer("send", "F", self.stage, micro_batch)

    def recv_backward(self, micro_batch: int) -> Transfer | None:
        """Gradient from the next stage."""
        return None if self.last else Transfer("recv", "B", self.stage, micro_batch)

    def send_backward(self, micro_batch: int) -> Transfer | None:
        """Gradient to the previous stage."""
        return None if self.first else Transfer("send", "B", self.stage - 1, micro_batch)
