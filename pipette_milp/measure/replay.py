"""The replay of a plan: every rank runs its program with real messages and timed or real compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipette_milp.cost.build import CostModel
from pipette_milp.errors import InputError
from pipette_milp.measure.assignment import Assignment, assign
from pipette_milp.measure.clock import common_start, offsets_to_rank_0
from pipette_milp.measure.comparison import compare
from pipette_milp.measure.events import Event
from pipette_milp.measure.matrix_work import MatrixWork
from pipette_milp.measure.program import Compute, Exchange, Message, RankProgram, ReplayPlan, replay_plan
from pipette_milp.measure.rings import RingCollective
from pipette_milp.measure.session import Session
from pipette_milp.measure.transport import Edge, Transport
from pipette_milp.schema.instance import Instance
from pipette_milp.schema.plan import Plan

START_DELAY_S = 0.05
"""From agreeing on a start to the start, and a little per rank: all must have heard of it."""
START_DELAY_PER_RANK_S = 0.001
NOT_WAITED_S = 0.0003
"""A wait shorter than this found its message there: it is the cost of asking. Measured 0.02 to 0.2 ms."""
ACKNOWLEDGE = 1
"""Tags come in pairs: message, acknowledgement."""

COMPUTE = ("wait", "matrix")


@dataclass(frozen=True)
class ReplayOptions:
    """How often, and what stands for compute."""

    iterations: int = 3
    warm_up: int = 1
    compute: str = "wait"
    """wait: nothing runs for the planned time; matrix: matrix products that take that long alone."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.warm_up < 0:
            raise InputError("expected at least 1 iteration and 0 for warming up")
        if self.compute not in COMPUTE:
            raise InputError(f"compute {self.compute!r}: expected {' or '.join(COMPUTE)}")


Progress = Callable[[str], None]


def replay(
    session: Session,
    instance: Instance,
    plan: Plan,
    order: Any | None,
    options: ReplayOptions,
    key: str = "replay",
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Run a plan; the report at rank 0 (see `pipette_milp.measure.comparison.compare`).

    Raises:
        InputError, PlanError: the plan does not fit the instance or the ranks that were started.
        MeasurementError: a rank was lost or a link stalled.
    """
    wanted = replay_plan(CostModel.of(instance), plan, order)
    assignment = assign(wanted, session.nodes)
    runner = _Runner(session, wanted, assignment, options)
    runs: list[list[Event]] = []
    runner.connect()
    offset_s = offsets_to_rank_0(session, runner.control)
    for number in range(options.warm_up + options.iterations):
        if progress is not None and session.rank == 0:
            progress(f"iteration {number + 1} of {options.warm_up + options.iterations}")
        delay = START_DELAY_S + START_DELAY_PER_RANK_S * session.world_size
        start_s = common_start(session, runner.control, offset_s, delay)
        events = runner.iteration(start_s)
        if number >= options.warm_up:
            runs.append(events)
    collected = session.collect(f"{key}/events", runs)
    if collected is None:
        return None
    of_plan = [collected[assignment.launched_of_plan[rank]] for rank in range(len(wanted.programs))]
    return compare(
        instance,
        wanted,
        of_plan,
        transport=session.transport,
        compute=options.compute,
        by_name=assignment.by_name,
    )


def replay_files(
    session: Session, instance: str, plan: str, options: ReplayOptions, key: str
) -> dict[str, Any] | None:
    """`replay` of an instance and a plan given as paths."""
    from pipette_milp.schema.instance import load_instance
    from pipette_milp.schema.result import load_plan

    return replay(session, load_instance(instance), load_plan(plan), None, options, key)


class _Runner:
    """One rank's part of a replay."""

    def __init__(
        self, session: Session, wanted: ReplayPlan, assignment: Assignment, options: ReplayOptions
    ) -> None:
        torch, device = session.torch, session.device
        self.session = session
        self.program: RankProgram = wanted.programs[assignment.plan_of_launched[session.rank]]
        self.launched = assignment.launched_of_plan
        self.transport = Transport(session)
        self.control = session.control_group("replay/control")
        count = wanted.plan.configuration.num_micro_batches
        self._boundaries = wanted.plan.configuration.num_virtual_stages
        self._micro_batches = count
        # contents do not matter: messages of one direction share their buffer
        self._outgoing = torch.zeros(self.program.hop_bytes, dtype=torch.uint8, device=device)
        self._incoming = torch.zeros(self.program.hop_bytes, dtype=torch.uint8, device=device)
        first_tag = 4 * self._boundaries * count + 4
        self.sync = self._collective(self.program.sync, first_tag)
        self.gather = self._collective(self.program.gather, first_tag)
        size = self.program.embedding_bytes
        self._embedding = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self.all_edges = self._edges(wanted)
        self.matrix_work = MatrixWork(torch, device) if options.compute == "matrix" else None
        self.now_s = 0.0
        """Where the schedule stands, relative to the start: deadlines, not wake-ups."""
        self.start_s = 0.0
        self.events: list[Event] = []

    def _collective(self, work: Any, first_tag: int) -> RingCollective | None:
        if work is None:
            return None
        from dataclasses import replace

        from pipette_milp.measure.ring_order import Channel

        channels = tuple(
            Channel(tuple(self.launched[rank] for rank in channel.ranks)) for channel in work.channels
        )
        return RingCollective(self.transport, replace(work, channels=channels), first_tag)

    def _edges(self, wanted: ReplayPlan) -> list[Edge]:
        """Connections that this rank needs."""
        own = self.session.rank
        found: list[Edge] = []
        for step in self.program.steps:
            messages = step.messages if isinstance(step, Exchange) else (step.needs, step.sends)
            for message in messages:
                if message is not None:
                    partner = self.launched[message.partner]
                    found.append((min(own, partner), max(own, partner), self._lane(message)))
        if self.program.embedding_partner is not None:
            partner = self.launched[self.program.embedding_partner]
            for sender, receiver in ((own, partner), (partner, own)):
                lane = self.transport.lane("E", sender, receiver)
                found.append((min(own, partner), max(own, partner), lane))
        for ring in (self.sync, self.gather):
            found += [] if ring is None else ring.edges
        return found

    def connect(self) -> None:
        """Make groups and connections."""
        kinds = ("F", "B", "E", "ring")
        lanes = {self.transport.lane(kind, *ends) for kind in kinds for ends in ((0, 1), (1, 0))}
        self.transport.connect(self.all_edges, lanes)
        if self.matrix_work is not None:
            self.matrix_work.calibrate()

    # ------------------------------------------------------------ one iteration
    def iteration(self, start_s: float) -> list[Event]:
        """Run the program once from ``start_s`` of this rank's clock."""
        self.start_s = start_s
        self.now_s = 0.0
        self.events = []
        waiting = self._post_needs()
        sleep_until(start_s)
        outgoing: list[Any] = []
        for step in self.program.steps:
            if isinstance(step, Exchange):
                self._exchange(step)
            else:
                self._compute(step, waiting, outgoing)
        self._tail()
        for work in outgoing:
            self.transport.wait(work, "the end of an activation or gradient that was sent")
        return self.events

    def clock(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start_s

    def _post_needs(self) -> dict[Message, Any]:
        """async: all receives of the iteration, so that a transfer never waits for its receiver."""
        return {
            step.needs: self._receive(step.needs)
            for step in self.program.steps
            if isinstance(step, Compute) and step.needs is not None
        }

    def _compute(self, step: Compute, waiting: dict[Message, Any], outgoing: list[Any]) -> None:
        if step.needs is not None:
            reached = self.clock()
            self.transport.wait(waiting.pop(step.needs), self._says(step.needs))
            arrived = self.clock()
            waited = arrived - reached >= NOT_WAITED_S
            if waited:
                self.now_s = arrived
            self._note(
                _received(step.needs), step.needs.boundary, step.needs.micro_batch, reached, arrived, waited
            )
            self._gathered()
        begin = self.now_s
        self._spend(step.seconds)
        self._note(_TASKS[step.kind], step.virtual_stage, step.micro_batch, begin, self.now_s)
        if step.sends is not None:
            self._note(
                _sent(step.sends), step.sends.boundary, step.sends.micro_batch, self.now_s, self.clock()
            )
            outgoing.append(self._send(step.sends))

    def _exchange(self, step: Exchange) -> None:
        reached = self.now_s
        receives = [message for message in step.messages if not message.sends]
        sends = [message for message in step.messages if message.sends]
        acknowledges = self.transport.acknowledges
        # receives first: gloo would otherwise serialise the two directions of a pair
        incoming = [self._receive(message) for message in receives]
        words = [
            self.transport.expect_word(self.launched[m.partner], self._tag(m) + ACKNOWLEDGE, self._lane(m))
            for m in sends
            if acknowledges
        ]
        outgoing = [self._send(message) for message in sends]
        answers = []
        for message, work in zip(receives, incoming, strict=True):
            self.transport.wait(work, self._says(message))
            self._note(_received(message), message.boundary, message.micro_batch, reached, self.clock(), True)
            if acknowledges:
                tag = self._tag(message) + ACKNOWLEDGE
                answers.append(
                    self.transport.say_word(self.launched[message.partner], tag, self._lane(message))
                )
        for work in [*outgoing, *words, *answers]:
            self.transport.wait(work, "the end of an exchange")
        self.now_s = self.clock()
        for message in sends:
            self._note(_sent(message), message.boundary, message.micro_batch, reached, self.now_s)
        if receives:
            self._gathered()

    def _tail(self) -> None:
        """Synchronisation, embedding, barrier, optimiser, parameter gather, the rest."""
        program = self.program
        if self.sync is not None:
            self._timed("gradient_sync", self.sync.run)
        if program.embedding_partner is not None:
            self._timed("embedding_sync", self._exchange_embedding)
        self._timed("barrier", lambda: self.session.meet(self.control))
        self._timed("optimizer", lambda: self._spend(program.optimizer_s), waits=False)
        if self.gather is not None:
            self._timed("parameter_gather", self.gather.run)
        self._timed("fixed", lambda: self._spend(program.fixed_s), waits=False)

    def _timed(self, name: str, work: Callable[[], None], *, waits: bool = True) -> None:
        begin = self.now_s
        work()
        if waits:
            self.now_s = self.clock()
        self._note(name, None, None, begin, self.now_s)

    def _exchange_embedding(self) -> None:
        partner = self.program.embedding_partner
        if partner is None:
            return
        own, other = self.session.rank, self.launched[partner]
        tag = 4 * self._boundaries * self._micro_batches
        incoming = self.transport.receive(
            self._embedding[0], other, tag, self.transport.lane("E", other, own)
        )
        outgoing = self.transport.send(self._embedding[1], other, tag, self.transport.lane("E", own, other))
        self.transport.wait(incoming, f"the embedding's gradient from rank {other}")
        self.transport.wait(outgoing, f"the embedding's gradient to rank {other}")

    def _gathered(self) -> None:
        if self.program.hop_gather_s > 0:
            self.now_s += self.program.hop_gather_s
            sleep_until(self.start_s + self.now_s)

    def _spend(self, seconds: float) -> None:
        """Compute for so long, counted from where the schedule stands."""
        if self.matrix_work is None:
            self.now_s += seconds
            sleep_until(self.start_s + self.now_s)
        else:
            self.matrix_work.run(seconds)
            self.session.synchronize()
            self.now_s = self.clock()

    # ------------------------------------------------------------ messages
    def _send(self, message: Message) -> Any:
        return self.transport.send(
            self._outgoing, self.launched[message.partner], self._tag(message), self._lane(message)
        )

    def _receive(self, message: Message) -> Any:
        return self.transport.receive(
            self._incoming, self.launched[message.partner], self._tag(message), self._lane(message)
        )

    def _lane(self, message: Message) -> str:
        own, partner = self.session.rank, self.launched[message.partner]
        ends = (own, partner) if message.sends else (partner, own)
        return self.transport.lane(message.kind, *ends)

    def _tag(self, message: Message) -> int:
        kind = 0 if message.kind == "F" else 1
        return 2 * ((kind * self._boundaries + message.boundary) * self._micro_batches + message.micro_batch)

    def _says(self, message: Message) -> str:
        partner = self.launched[message.partner]
        return f"the {message.name} from rank {partner}{self.session.place(partner)}"

    def _note(
        self,
        name: str,
        position: int | None,
        micro_batch: int | None,
        begin: float,
        end: float,
        waited: bool | None = None,
    ) -> None:
        self.events.append(Event(name, position, micro_batch, begin, end, waited))


_TASKS = {"F": "forward", "B": "backward", "W": "weight_gradient"}
_HOPS = {"F": "forward", "B": "backward"}


def _sent(message: Message) -> str:
    return f"send_{_HOPS[message.kind]}"


def _received(message: Message) -> str:
    return f"receive_{_HOPS[message.kind]}"


def sleep_until(deadline_s: float) -> None:
    """Until an instant of the monotonic clock."""
    while (left := deadline_s - time.monotonic()) > 0:
        time.sleep(left)
