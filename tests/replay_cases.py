"""Plans to replay on small instances, and a clock that runs their programs without a network."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipette_milp.cost.build import CostModel
from pipette_milp.measure.events import Event
from pipette_milp.measure.program import Compute, Exchange, Message, ReplayPlan, replay_plan
from pipette_milp.plans import placement_of_cells
from pipette_milp.schema.plan import Plan
from tests.instance_cases import configuration, instance


def costs_of(nodes: int, gpus: int, **sections: dict[str, Any]) -> CostModel:
    """A cluster of so many nodes whose links differ."""
    rng = np.random.default_rng(nodes)
    values = rng.uniform(0.5, 2.0, (nodes, nodes)).tolist()
    for node in range(nodes):
        values[node][node] = None
    changes = {
        "cluster/nodes/0/count": nodes,
        "cluster/nodes/0/gpus": gpus,
        "cluster/network/inter_node": {
            "bandwidth": {"unit": "GB/s", "values": values},
            "measures": "node_pair",
            "latency": "10 us",
            "source": "measured",
        },
    }
    return CostModel.of(instance(changes, **sections))


def random_plan(costs: CostModel, layers: tuple[int, ...], seed: int = 0, **fields: Any) -> Plan:
    """A configuration on a random placement."""
    chosen = configuration(layers, **fields)
    places = np.repeat(np.arange(costs.cluster.num_nodes), costs.cluster.gpus_per_node // chosen.tensor)
    cells = np.random.default_rng(seed).permutation(places)[: chosen.pipeline * chosen.data]
    placed = cells.reshape(chosen.pipeline, chosen.data)
    return Plan(configuration=chosen, placement=placement_of_cells(costs.cluster, chosen, placed))


def played(wanted: ReplayPlan) -> list[list[Event]]:
    """Events of every rank if every transfer took its simulated time: programs run on a clock of its own.

    Nothing of the simulator is used: a rank does its steps in order, an exchange starts for each message when
    both ends are there, an async transfer when it was sent and the one before it has ended.
    """
    durations = wanted.durations
    programs = wanted.programs
    now = [0.0] * len(programs)
    position = [0] * len(programs)
    events: list[list[Event]] = [[] for _ in programs]
    issued: dict[tuple[int, Message], float] = {}  # of the sending rank's message
    reached: dict[tuple[int, Message], float] = {}
    channel_free: dict[tuple[int, str, int], float] = {}

    def hop_s(message: Message, replica: int) -> float:
        table = durations.hop_forward_s if message.kind == "F" else durations.hop_backward_s
        return float(table[message.boundary, replica])

    def mirrored(rank: int, message: Message) -> tuple[int, Message]:
        other = Message(not message.sends, rank, message.kind, message.boundary, message.micro_batch)
        return message.partner, other

    progress = True
    while progress:
        progress = False
        for rank, program in enumerate(programs):
            while position[rank] < len(program.steps):
                step = program.steps[position[rank]]
                if isinstance(step, Exchange):
                    for message in step.messages:
                        reached[rank, message] = now[rank]
                    others = [mirrored(rank, message) for message in step.messages]
                    if not all(other in reached for other in others):
                        break
                    ends = [
                        max(now[rank], reached[other]) + hop_s(message, program.replica)
                        for message, other in zip(step.messages, others, strict=True)
                    ]
                    for message, end in zip(step.messages, ends, strict=True):
                        name = ("send_" if message.sends else "receive_") + _HOPS[message.kind]
                        events[rank].append(
                            Event(name, message.boundary, message.micro_batch, now[rank], end, True)
                        )
                    now[rank] = max(ends)
                else:
                    arrived = _arrival(rank, step, program.replica, issued, channel_free, mirrored, hop_s)
                    if arrived is None:
                        break
                    if step.needs is not None:
                        name = f"receive_{_HOPS[step.needs.kind]}"
                        waited = arrived > now[rank]
                        place = step.needs.boundary, step.needs.micro_batch
                        events[rank].append(Event(name, *place, now[rank], max(arrived, now[rank]), waited))
                    begin = max(now[rank], arrived)
                    now[rank] = begin + step.seconds
                    task = (_TASKS[step.kind], step.virtual_stage, step.micro_batch)
                    events[rank].append(Event(*task, begin, now[rank]))
                    if step.sends is not None:
                        issued[rank, step.sends] = now[rank]
                        name = f"send_{_HOPS[step.sends.kind]}"
                        place = step.sends.boundary, step.sends.micro_batch
                        events[rank].append(Event(name, *place, now[rank], now[rank]))
                position[rank] += 1
                progress = True
    stuck = [rank for rank, program in enumerate(programs) if position[rank] < len(program.steps)]
    if stuck:
        raise AssertionError(f"ranks {stuck} wait for ever")
    _tail(wanted, now, events)
    return events


_TASKS = {"F": "forward", "B": "backward", "W": "weight_gradient"}
_HOPS = {"F": "forward", "B": "backward"}


def _arrival(
    rank: int, step: Compute, replica: int, issued: Any, free: Any, mirrored: Any, hop_s: Any
) -> float | None:
    """When a task's payload is there; None while it was not sent."""
    if step.needs is None:
        return 0.0
    sent = issued.get(mirrored(rank, step.needs))
    if sent is None:
        return None
    channel = (rank, step.needs.kind, step.needs.boundary)
    end = max(sent, free.get(channel, 0.0)) + hop_s(step.needs, replica)
    free[channel] = end
    return float(end)


def _tail(wanted: ReplayPlan, now: list[float], events: list[list[Event]]) -> None:
    durations, programs = wanted.durations, wanted.programs
    pipeline = wanted.plan.configuration.pipeline
    ends = []
    for stage in range(pipeline):
        own = [program.rank for program in programs if program.stage == stage]
        # the simulator counts a stage as done after its last task: the gradient it sends then travels on
        ready = max(_last_task_end(events[rank]) for rank in own)
        ends.append(ready + float(durations.gradient_sync_s[stage]))
        for rank in own:
            if programs[rank].sync is not None:
                events[rank].append(Event("gradient_sync", None, None, now[rank], ends[stage]))
    barrier = max(*ends, max(ends[0], ends[-1]) + durations.embedding_sync_s) if ends else 0.0
    for program in programs:
        begin = barrier
        for name, seconds in (
            ("optimizer", float(durations.optimizer_s[program.stage])),
            ("parameter_gather", float(durations.parameter_gather_s[program.stage])),
            ("fixed", durations.fixed_s),
        ):
            events[program.rank].append(Event(name, None, None, begin, begin + seconds))
            begin += seconds


def _last_task_end(events: list[Event]) -> float:
    return max(event.end_s for event in events if event.name in _TASKS.values())


def replayable(costs: CostModel, plan: Plan, order: Any | None = None) -> ReplayPlan:
    """`replay_plan` under a name that tests read well with."""
    return replay_plan(costs, plan, order)
