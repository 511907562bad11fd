"""How Megatron-LM divides the layers of a model over pipeline ranks and their chunks.

Exactly one way may be used: even, first/last counts, counting embedding and loss as layers, or a layout
string.
Source: Megatron-LM, validate_args in training/arguments.py and get_num_layers_to_build. Older versions
dropped layers silently (Megatron-LM issues 468, 326, 1304, 1778); here every such set of arguments is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.megatron_layout import LayoutStage, parse_layout


@dataclass(frozen=True)
class SplitFlags:
    """The arguments that decide the split, None or False where they are not given."""

    layers: int
    pipeline: int = 1
    first: int | None = None
    last: int | None = None
    account_for_embedding: bool = False
    account_for_loss: bool = False
    layout: str | None = None
    layers_per_chunk: int | None = None
    """--num-layers-per-virtual-pipeline-stage"""
    chunks: int | None = None
    """--num-virtual-stages-per-pipeline-rank"""


@dataclass(frozen=True)
class Split:
    """Stages in model order; there are ``pipeline * chunks`` of them."""

    stages: tuple[LayoutStage, ...]
    chunks: int

    @property
    def layers_per_stage(self) -> tuple[int, ...]:
        """Decoder layers of each virtual stage."""
        return tuple(stage.layers for stage in self.stages)


def split_of(flags: SplitFlags, place: str) -> Split:
    """The split that the arguments ask for.

    Raises:
        InputError: arguments that exclude each other, or counts that do not divide; the message says which
            counts would.
    """
    problem = _contradiction(flags)
    if problem is not None:
        raise InputError(Problem(place, problem))
    if flags.layout is not None:
        stages = parse_layout(flags.layout, flags.pipeline, place)
        total = sum(stage.layers for stage in stages)
        if total != flags.layers:
            raise InputError(
                Problem(place, f"the layout has {total} decoder layers, --num-layers says {flags.layers}")
            )
        return Split(stages, len(stages) // flags.pipeline)
    if flags.first is not None or flags.last is not None:
        per_rank = _first_last(flags, place)
        extra_first = extra_last = 0
    else:
        per_rank, extra_first, extra_last = _even(flags, place)
    chunks = _chunks(flags, per_rank, place)
    counts = [count // chunks for _ in range(chunks) for count in per_rank]
    counts[0] -= extra_first
    counts[-1] -= extra_last
    if min(counts) < 0:
        raise InputError(Problem(place, "a stage would have fewer than no layers"))
    last = len(counts) - 1
    return Split(
        tuple(LayoutStage(index == 0, count, 0, index == last) for index, count in enumerate(counts)), chunks
    )


def _contradiction(flags: SplitFlags) -> str | None:
    counted = flags.first is not None or flags.last is not None
    accounted = flags.account_for_embedding or flags.account_for_loss
    if counted and flags.pipeline == 1:
        return (
            "first and last stage counts contradict --pipeline-model-parallel-size 1: there is one stage, "
            "and Megatron "
            "would train only that many layers; leave the counts out"
        )
    if 0 in (flags.first, flags.last):
        return "first and last stage counts have to be at least 1: an empty stage needs a layout"
    if counted and accounted:
        return "first/last stage counts exclude --account-for-embedding/loss-in-pipeline-split"
    if flags.layout is not None and (counted or accounted):
        return "--pipeline-model-parallel-layout excludes every other way to divide the layers"
    if flags.layout is not None and (flags.layers_per_chunk is not None or flags.chunks is not None):
        return (
            "--pipeline-model-parallel-layout sets the number of chunks: leave the virtual-stage "
            "arguments out"
        )
    if flags.layers_per_chunk is not None and flags.chunks is not None:
        return (
            "give --num-layers-per-virtual-pipeline-stage or --num-virtual-stages-per-pipeline-rank, not both"
        )
    if counted and flags.layers_per_chunk is not None:
        return "with first/last stage counts the chunks are set by --num-virtual-stages-per-pipeline-rank"
    return None


def _first_last(flags: SplitFlags, place: str) -> list[int]:
    ends = (flags.first or 0) + (flags.last or 0)
    middle = flags.pipeline - (flags.first is not None) - (flags.last is not None)
    rest = flags.layers - ends
    if rest < middle or (middle == 0 and rest) or (middle and rest % middle):
        raise InputError(
            Problem(
                place,
                f"{flags.layers} layers less the {ends} of the first and last stage leave {rest}, which "
                f"{middle} stages cannot share evenly",
            )
        )
    counts = [rest // middle] * middle if middle else []
    return [
        *([] if flags.first is None else [flags.first]),
        *counts,
        *([] if flags.last is None else [flags.last]),
    ]


def _even(flags: SplitFlags, place: str) -> tuple[list[int], int, int]:
    extra_first, extra_last = int(flags.account_for_embedding), int(flags.account_for_loss)
    total = flags.layers + extra_first + extra_last
    if total % flags.pipeline:
        counted = " with embedding and loss counted as asked" if extra_first or extra_last else ""
        raise InputError(
            Problem(
                place,
                f"{flags.layers} layers do not divide evenly by {flags.pipeline} pipeline stages{counted} "
                f"(older "
                f"versions dropped the rest silently): use first/last stage counts, "
                f"--account-for-embedding/loss-in-pipeline-split or --pipeline-model-parallel-layout",
            )
        )
    return [total // flags.pipeline] * flags.pipeline, extra_first, extra_last


def _chunks(flags: SplitFlags, per_rank: list[int], place: str) -> int:
    if flags.layers_per_chunk is not None:
        if per_rank[0] % flags.layers_per_chunk:
            raise InputError(
                Problem(
                    place,
                    f"{per_rank[0]} layers per pipeline stage do not divide by {flags.layers_per_chunk} "
                    f"layers per "
                    f"virtual stage (older versions dropped the rest silently): possible are "
                    f"{_divisors(per_rank[0])}",
                )
            )
        return per_rank[0] // flags.layers_per_chunk
    chunks = flags.chunks or 1
    odd = next((count for count in per_rank if count % chunks), None)
    if odd is not None:
        raise InputError(
            Problem(
                place,
                f"{odd} layers of a pipeline stage do not divide by {chunks} virtual stages: possible are "
                f"{_divisors(odd)}",
            )
        )
    return chunks


def _divisors(number: int) -> str:
    return ", ".join(str(value) for value in range(1, number + 1) if number % value == 0)


def micro_batch_problem(pipeline: int, count: int, group: int | None = None) -> str | None:
    """Why an interleaved schedule cannot run ``count`` micro-batches; None if it can.

    Megatron-LM: pipeline <= group <= micro-batches, and a last group is full or at least one pipeline deep.
    """
    size = pipeline if group is None else group
    if not pipeline <= size <= count:
        return (
            f"interleaving needs pipeline stages <= micro-batch group <= micro-batches, got {pipeline} <= "
            f"{size} <= "
            f"{count}: use a smaller micro-batch or less data parallelism, or no interleaving"
        )
    if count % size and count % size < pipeline:
        return (
            f"{count} micro-batches in groups of {size} leave {count % size}, fewer than the {pipeline} "
            f"pipeline stages"
        )
    return None
