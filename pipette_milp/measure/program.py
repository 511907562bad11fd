"""What every rank does in one iteration of a plan: its tasks, messages and rings. Needs no torch.

Everything follows the plan's ``order`` step by step; bytes and the time of tasks come from the cost model, so
that what is replayed is what was simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipette_milp.arrays import Array, IntArray
from pipette_milp.assessment import assess
from pipette_milp.cost.build import CostModel
from pipette_milp.cost.durations import Durations
from pipette_milp.cost.tables import CostTables, Ring
from pipette_milp.errors import InputError, PlanError, Problem
from pipette_milp.legality import check_legal
from pipette_milp.measure.ring_order import Channel, ring_channels
from pipette_milp.plans import cells_of_plan
from pipette_milp.schema.plan import Plan
from pipette_milp.simulator import event_graph, execution_order

Order = Sequence[Sequence[Sequence[Any]]]
"""As in result files: per pipeline stage ``[kind, virtual stage, micro-batch]`` and ``["X", members]``."""


@dataclass(frozen=True)
class Message:
    """One end of one hop of one tensor rank."""

    sends: bool
    partner: int
    """Rank at the other end."""
    kind: str
    """F: activation, B: gradient."""
    boundary: int
    micro_batch: int

    @property
    def name(self) -> str:
        """For people."""
        what = "activation" if self.kind == "F" else "gradient"
        return f"{what} of micro-batch {self.micro_batch} at boundary {self.boundary}"


@dataclass(frozen=True)
class Compute:
    """A task; in async mode with the message it needs first and the one it sends when it is done."""

    kind: str
    virtual_stage: int
    micro_batch: int
    seconds: float
    needs: Message | None = None
    sends: Message | None = None


@dataclass(frozen=True)
class Exchange:
    """Messages that are issued together; the rank goes on when all have ended at both ends."""

    messages: tuple[Message, ...]


Step = Compute | Exchange


@dataclass(frozen=True)
class RingWork:
    """Ring collective of one rank's data-parallel group."""

    channels: tuple[Channel, ...]
    buffer_bytes: float
    """Of the whole gradient (or parameter) buffer of one tensor rank."""
    passes: tuple[str, ...]
    """reduce-scatter, all-gather or both."""


@dataclass(frozen=True)
class RankProgram:
    """One rank's iteration."""

    rank: int
    stage: int
    replica: int
    tensor_index: int
    node: int
    steps: tuple[Step, ...]
    hop_bytes: int
    hop_gather_s: float
    """All-gather inside the receiving cell, waited for after each receive."""
    sync: RingWork | None
    embedding_partner: int | None
    embedding_bytes: int
    optimizer_s: float
    gather: RingWork | None
    fixed_s: float


@dataclass(frozen=True)
class ReplayPlan:
    """A plan with everything that a replay of it needs."""

    plan: Plan
    durations: Durations
    order: Order
    programs: tuple[RankProgram, ...]
    """Of every rank."""
    node_of_rank: tuple[int, ...]
    node_names: tuple[str, ...]
    notes: tuple[str, ...]
    """What the replay does not run as the plan does."""


def replay_plan(costs: CostModel, plan: Plan, order: Order | None = None) -> ReplayPlan:
    """Programs of all ranks.

    Args:
        order: of a result; the schedule's own if left out.

    Raises:
        IllegalConfigurationError: the configuration breaks a rule.
        PlanError: placement or order is malformed.
        InputError: the plan overlaps its gradient reduction, which a replay does not run.
    """
    configuration = plan.configuration
    check_legal(costs, configuration)
    cells = cells_of_plan(costs.cluster, plan)
    tables = costs.tables(configuration)
    _check_supported(costs, tables)
    layers = np.array(configuration.layers_per_stage, dtype=np.int64)
    durations = durations_of(costs, plan)
    if order is None:
        order = execution_order(
            event_graph(
                configuration.schedule,
                configuration.pipeline,
                configuration.virtual_stages,
                configuration.num_micro_batches,
                configuration.pipeline_transfers,
            )
        )
    _check_order(order, plan)
    tensor, data = configuration.tensor, configuration.data
    sync_bytes, gather_bytes = (
        _sent_bytes(tables, ring, which, layers) for which, ring in enumerate((tables.sync, tables.gather))
    )
    programs = []
    for rank in range(configuration.num_gpus):
        cell, index = divmod(rank, tensor)
        stage, replica = divmod(cell, data)
        steps = _steps(rank, order[stage], plan, durations)
        sync = _ring(tables, float(sync_bytes[stage]), stage, cells, index, _sync_passes(tables))
        gather = None
        if tables.gather_exposed:
            gather = _ring(tables, float(gather_bytes[stage]), stage, cells, index, ("all-gather",))
        partner = _embedding_partner(tables, stage, replica, index)
        programs.append(
            RankProgram(
                rank=rank,
                stage=stage,
                replica=replica,
                tensor_index=index,
                node=int(cells[stage, replica]),
                steps=steps,
                hop_bytes=max(1, round(tables.hop_bytes)),
                hop_gather_s=tables.hop_gather_s,
                sync=sync,
                embedding_partner=partner,
                embedding_bytes=0 if partner is None else max(1, round(tables.embedding_bytes)),
                optimizer_s=float(durations.optimizer_s[stage]),
                gather=gather,
                fixed_s=float(durations.fixed_s),
            )
        )
    return ReplayPlan(
        plan=plan,
        durations=durations,
        order=order,
        programs=tuple(programs),
        node_of_rank=tuple(program.node for program in programs),
        node_names=costs.cluster.node_names,
        notes=_notes(tables),
    )


def durations_of(costs: CostModel, plan: Plan) -> Durations:
    """What `simulate` takes for this plan, as arrays."""
    record = assess(costs, plan.configuration, plan.placement).durations
    shape = (plan.configuration.num_virtual_stages - 1, plan.configuration.data)
    values: dict[str, Any] = {}
    for name, value in record.model_dump().items():
        array = np.asarray(value, dtype=float) if isinstance(value, list | tuple) else value
        values[name] = array.reshape(shape) if name.startswith("hop_") else array
    values.setdefault("weight_gradient_s", None)
    return Durations(**values)


def _check_supported(costs: CostModel, tables: CostTables) -> None:
    """Refuse what a replay would run otherwise than the plan does.

    Raises:
        InputError: each such option of the configuration.
    """
    configuration = tables.configuration
    place = "plan.configuration"
    problems = []
    if tables.sync_buckets > 1:
        problems.append(
            Problem(
                f"{place}.overlap.gradient_reduce",
                "a replay does not run the gradient reduction under the last backward yet: solve with "
                "training.overlap.gradient_reduce false to replay",
            )
        )
    if configuration.cell_size > int(costs.cluster.gpus_per_node.max()):
        problems.append(
            Problem(f"{place}.tensor", "a replay does not run tensor groups over several nodes yet")
        )
    if configuration.context > 1:
        problems.append(Problem(f"{place}.context", "a replay does not run context parallelism yet"))
    if configuration.expert > 1:
        problems.append(Problem(f"{place}.expert", "a replay does not run experts spread over ranks yet"))
    if configuration.data_sharding == "parameters":
        problems.append(
            Problem(
                f"{place}.data_sharding",
                "a replay does not run gathers of sharded parameters within tasks yet",
            )
        )
    if problems:
        raise InputError(problems)


def _notes(tables: CostTables) -> tuple[str, ...]:
    notes = []
    if tables.tensor > 1:
        notes.append("collectives of tensor groups are part of the time of a task, they move no bytes")
    if tables.hop_gather_s > 0:
        notes.append("the all-gather of scattered hops is a timed wait at the receiver")
    if not tables.gather_exposed and np.any(tables.gather.bytes_extra > 0):
        notes.append("the parameter all-gather hides under the next forward and is not run")
    return tuple(notes)


def _check_order(order: Order, plan: Plan) -> None:
    """Every task of the plan once, on its stage."""
    configuration = plan.configuration
    if len(order) != configuration.pipeline:
        raise PlanError(Problem("order", f"has {len(order)} stages, the plan has {configuration.pipeline}"))
    problems = []
    for stage, steps in enumerate(order):
        tasks = [tuple(step) for step in steps if step[0] != "X"]
        kinds = {task[0] for task in tasks}
        wanted = {
            (kind, virtual, m)
            for kind in kinds | {"F", "B"}
            for virtual in range(stage, configuration.num_virtual_stages, configuration.pipeline)
            for m in range(configuration.num_micro_batches)
        }
        if len(tasks) != len(set(tasks)) or set(tasks) != wanted:
            problems.append(Problem(f"order[{stage}]", "does not run every task of the stage exactly once"))
    if problems:
        raise PlanError(problems)


def _steps(rank: int, steps: Sequence[Sequence[Any]], plan: Plan, durations: Durations) -> tuple[Step, ...]:
    configuration = plan.configuration
    replica = (rank // configuration.tensor) % configuration.data
    seconds = {
        "F": durations.forward_s,
        "B": durations.backward_s,
        "W": durations.weight_gradient_s,
    }
    exchanges = configuration.pipeline_transfers == "exchange"

    def message(sends: bool, kind: str, boundary: int, micro_batch: int) -> Message:
        ends = boundary % configuration.pipeline, (boundary + 1) % configuration.pipeline
        # the stage that the payload leaves, and the one it reaches
        source, target = ends if kind == "F" else (ends[1], ends[0])
        stage = target if sends else source
        partner = rank % configuration.tensor + configuration.tensor * (replica + configuration.data * stage)
        return Message(sends, partner, kind, boundary, micro_batch)

    def compute(kind: str, virtual: int, micro_batch: int) -> Compute:
        durations_of_kind = seconds[kind]
        if durations_of_kind is None:
            raise PlanError(Problem("order", f"has tasks of kind {kind}, the schedule has none"))
        needs = sends = None
        last = configuration.num_virtual_stages - 1
        if not exchanges and kind == "F":
            needs = message(False, "F", virtual - 1, micro_batch) if virtual > 0 else None
            sends = message(True, "F", virtual, micro_batch) if virtual < last else None
        elif not exchanges and kind == "B":
            needs = message(False, "B", virtual, micro_batch) if virtual < last else None
            sends = message(True, "B", virtual - 1, micro_batch) if virtual > 0 else None
        return Compute(kind, virtual, micro_batch, float(durations_of_kind[virtual, replica]), needs, sends)

    result: list[Step] = []
    for step in steps:
        if step[0] == "X":
            result.append(Exchange(tuple(message(m[0] == "send", m[1], m[2], m[3]) for m in step[1])))
        else:
            result.append(compute(step[0], step[1], step[2]))
    return tuple(result)


def _sent_bytes(tables: CostTables, ring: Ring, which: int, layers: IntArray) -> Array:
    """[p] bytes of a ring over every directed edge, for the synchronisation (0) or the gather (1)."""
    detail = tables.detail
    if detail is not None:
        layer_bytes = detail.gather_layer_bytes if which else detail.sync_layer_bytes
        return detail.sent_bytes(ring, layer_bytes, layers)
    stage_layers = layers.reshape(tables.configuration.virtual_stages, tables.pipeline).sum(axis=0)
    return np.asarray(ring.bytes_per_layer * stage_layers + ring.bytes_extra)


def _sync_passes(tables: CostTables) -> tuple[str, ...]:
    sharded = tables.configuration.data_sharding != "none"
    return ("reduce-scatter",) if sharded else ("reduce-scatter", "all-gather")


def _ring(
    tables: CostTables,
    sent_bytes: float,
    stage: int,
    cells: IntArray,
    tensor_index: int,
    passes: tuple[str, ...],
) -> RingWork | None:
    """The ring of one tensor index of a stage; None where nothing is exchanged."""
    data = tables.data
    if data == 1 or sent_bytes <= 0:
        return None
    ranks = [tensor_index + tables.tensor * (replica + data * stage) for replica in range(data)]
    channels = ring_channels([int(node) for node in cells[stage]], ranks)
    return RingWork(channels, sent_bytes * data / (len(passes) * (data - 1)), passes)


def _embedding_partner(tables: CostTables, stage: int, replica: int, index: int) -> int | None:
    last = tables.pipeline - 1
    if tables.embedding_bytes <= 0 or stage not in (0, last):
        return None
    other = last if stage == 0 else 0
    return index + tables.tensor * (replica + tables.data * other)
