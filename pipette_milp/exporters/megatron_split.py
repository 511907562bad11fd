"""The weakest Megatron-LM arguments that express a layer split: what ran for years before what is new.

Even, then first/last stage counts, then counting embedding and loss as layers, then the layout string,
which can say everything. What a candidate says is read back by the importer, so that no layer is ever lost.
"""

from __future__ import annotations

from pipette_milp.errors import IllegalConfigurationError, InputError, Problem
from pipette_milp.importers.megatron_layout import LayoutStage, format_layout
from pipette_milp.importers.megatron_split import SplitFlags, split_of
from pipette_milp.schema.plan import Configuration


def split_arguments(configuration: Configuration) -> tuple[str, ...]:
    """Arguments after ``--num-layers`` and ``--pipeline-model-parallel-size``; empty for an even split.

    Raises:
        IllegalConfigurationError: the embedding is not on the first stage alone, or the head not on the
            last alone.
    """
    stages = configuration.stages
    last = len(stages) - 1
    if len(stages) != configuration.num_virtual_stages:
        raise IllegalConfigurationError(
            Problem("stages", f"has {len(stages)} entries, expected {configuration.num_virtual_stages}")
        )
    wrong = [
        Problem(
            f"stages[{index}]", "Megatron-LM has the embedding on the first stage and the head on the last"
        )
        for index, stage in enumerate(stages)
        if stage.embedding != (index == 0) or stage.head != (index == last)
    ]
    if wrong:
        raise IllegalConfigurationError(wrong)
    for flags in _candidates(configuration):
        try:
            split = split_of(flags, "")
        except InputError:
            continue
        if (
            split.layers_per_stage == configuration.layers_per_stage
            and split.chunks == configuration.virtual_stages
        ):
            return _arguments(flags)
    raise IllegalConfigurationError(
        Problem("stages", f"Megatron-LM cannot divide the layers as {list(configuration.layers_per_stage)}")
    )


def _candidates(configuration: Configuration) -> list[SplitFlags]:
    layers, pipeline = sum(configuration.layers_per_stage), configuration.pipeline
    chunks = configuration.virtual_stages if configuration.virtual_stages > 1 else None
    per_rank = [sum(configuration.layers_per_stage[rank::pipeline]) for rank in range(pipeline)]

    def flags(**given: object) -> SplitFlags:
        return SplitFlags(layers=layers, pipeline=pipeline, **given)  # type: ignore[arg-type]

    found = [flags(chunks=chunks)]
    if pipeline > 1:
        found += [
            flags(first=per_rank[0], chunks=chunks),
            flags(last=per_rank[-1], chunks=chunks),
            flags(first=per_rank[0], last=per_rank[-1], chunks=chunks),
        ]
    found += [
        flags(account_for_embedding=embedding, account_for_loss=loss, chunks=chunks)
        for embedding, loss in ((True, False), (False, True), (True, True))
    ]
    layout = tuple(
        LayoutStage(stage.embedding, stage.layers, 0, stage.head) for stage in configuration.stages
    )
    return [*found, flags(layout=format_layout(layout))]


def _arguments(flags: SplitFlags) -> tuple[str, ...]:
    named = (
        ("--decoder-first-pipeline-num-layers", flags.first),
        ("--decoder-last-pipeline-num-layers", flags.last),
        ("--pipeline-model-parallel-layout", flags.layout),
        ("--num-virtual-stages-per-pipeline-rank", flags.chunks),
    )
    out = [f"{name} {value}" for name, value in named if value is not None]
    if flags.account_for_embedding:
        out.append("--account-for-embedding-in-pipeline-split")
    if flags.account_for_loss:
        out.append("--account-for-loss-in-pipeline-split")
    return tuple(out)
