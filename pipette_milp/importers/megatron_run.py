"""What Megatron-LM arguments say together: model, training and parallel configuration.

Defaults and refusals are those of Megatron-LM (training/arguments.py, validate_args).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.megatron_flags import ArgumentReader, Arguments
from pipette_milp.importers.megatron_model import model_fields, padded_vocabulary
from pipette_milp.importers.megatron_split import Split, SplitFlags, micro_batch_problem, split_of
from pipette_milp.importers.megatron_training import TrainingReader
from pipette_milp.schema.plan import Configuration, Stage


@dataclass(frozen=True)
class MegatronRun:
    """What the arguments say. ``None`` = they do not say it."""

    source: str
    model: Mapping[str, Any]
    """Fields of an instance's ``model`` that are known; ``vocab_size`` may be absent."""
    training: Mapping[str, Any]
    """Fields of an instance's ``training``."""
    tensor: int
    pipeline: int
    context: int
    expert: int
    data: int | None
    """None when the number of GPUs is not known."""
    micro_batch: int | None
    global_batch_size: int | None
    split: Split | None
    """None when the number of layers is not known."""
    configuration: Configuration | None
    """None when number of GPUs, layers or batch are not known."""
    rank_order: tuple[str, ...]
    """Fastest first; other than the default with --use-tp-pp-dp-mapping."""
    padded_vocab_size: int | None
    others: tuple[str, ...] = ()
    """Further arguments, which do not concern the plan."""
    missing: tuple[Problem, ...] = ()
    """What a configuration still needs."""
    warnings: tuple[Problem, ...] = field(default=())

    def gpu_of_rank(self) -> tuple[int, ...] | None:
        """Placement in the project's rank order that this run has when its ranks fill the GPUs in order.

        None without a configuration. The identity, except with --use-tp-pp-dp-mapping, where rank
        tensor + T*(context + C*(stage + P*replica)) runs on the GPU of that number.
        """
        configuration = self.configuration
        if configuration is None:
            return None
        if self.rank_order[-1] == "pipeline":
            return tuple(range(configuration.num_gpus))
        group = configuration.tensor * configuration.context
        return tuple(
            inner + group * (stage + configuration.pipeline * replica)
            for stage in range(configuration.pipeline)
            for replica in range(configuration.data)
            for inner in range(group)
        )


def run_of(arguments: Arguments, world_size: int | None, tensor_overlap: float | None) -> MegatronRun:
    """Everything that arguments say; see `megatron.parse` for the options.

    Raises:
        InputError: everything that Megatron-LM refuses, all of it at once.
    """
    return _Reading(arguments, world_size, tensor_overlap).run()


class _Reading(ArgumentReader):
    """One pass over the arguments, gathering everything that is wrong before it raises."""

    def __init__(self, arguments: Arguments, world_size: int | None, tensor_overlap: float | None) -> None:
        super().__init__(arguments, list(arguments.warnings))
        self.tensor_overlap = tensor_overlap
        self.missing: list[Problem] = []
        self.world_size = world_size

    def degree(self, name: str) -> int:
        return self.whole(name) or 1

    def run(self) -> MegatronRun:
        arguments = self.arguments
        self._unsupported()
        tensor = self.degree("tensor-model-parallel-size")
        pipeline = self.degree("pipeline-model-parallel-size")
        context = self.degree("context-parallel-size")
        expert = self.degree("expert-model-parallel-size")
        data = self._data(tensor * pipeline * context)
        try:
            model = model_fields(arguments, self.warnings)
        except InputError as error:
            self.problems += error.problems
            model = {}
        heads, groups = model.get("attention_heads"), model.get("kv_heads")
        self._heads(heads, groups, tensor)
        split = self._split(model.get("layers"), pipeline)
        micro, batch = self.whole("micro-batch-size"), self.whole("global-batch-size")
        if batch is None and micro is not None and data is not None:
            batch = micro * data  # Megatron's default
        reader = TrainingReader(arguments, self.warnings)
        options = reader.options(tensor, self.tensor_overlap)
        self.problems += reader.problems
        order = self._rank_order(tensor * context, pipeline, data, expert)
        count = self._micro_batches(micro, batch, data)
        chunks = split.chunks if split is not None else self.degree("num-virtual-stages-per-pipeline-rank")
        self._interleaving(chunks, pipeline, count)
        if self.problems:
            raise InputError(self.problems)
        for name, value in (("num-layers", split), ("micro-batch-size", micro), ("global-batch-size", batch)):
            if value is None:
                self.missing.append(Problem(arguments.source, f"--{name} is not given"))
        configuration = None
        if split and data and micro and count:
            interleaved = split.chunks > 1
            exchange = not interleaved or arguments.on("no-overlap-p2p-communication")
            configuration = Configuration(
                pipeline=pipeline,
                virtual_stages=split.chunks,
                tensor=tensor,
                context=context,
                data=data,
                expert=expert,
                micro_batch=micro,
                num_micro_batches=count,
                schedule="interleaved" if interleaved else "1f1b",
                pipeline_transfers="exchange" if exchange else "async",
                stages=tuple(
                    Stage(embedding=item.embedding, layers=item.layers, head=item.head)
                    for item in split.stages
                ),
                recompute=options.recompute,
                sequence_parallel=options.sequence_parallel,
                data_sharding=options.data_sharding,
                gradient_dtype=options.gradient_dtype,
                overlap=options.overlap,
            )
        vocabulary = model.get("vocab_size")
        return MegatronRun(
            source=arguments.source,
            model=model,
            training=options.section(batch),
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            expert=expert,
            data=data,
            micro_batch=micro,
            global_batch_size=batch,
            split=split,
            configuration=configuration,
            rank_order=order,
            padded_vocab_size=None
            if vocabulary is None
            else padded_vocabulary(vocabulary, tensor, self.whole("make-vocab-size-divisible-by") or 128),
            others=arguments.others,
            missing=tuple(self.missing),
            warnings=tuple(self.warnings),
        )

    def _unsupported(self) -> None:
        arguments = self.arguments
        if arguments.on("checkpoint-activations"):
            self.refuse(
                "checkpoint-activations",
                "--checkpoint-activations is dead (Megatron exits): use --recompute-granularity",
            )
        if arguments.on("hybrid-layer-pattern"):
            self.refuse("hybrid-layer-pattern", "not supported yet: hybrid layer patterns")
        remat = [name for name in arguments.others if name.startswith("gtp-remat")]
        if remat:
            self.problems.append(
                Problem(arguments.source, f"not supported yet: weight sharding by --{remat[0]}")
            )
        for name in ("rampup-batch-size", "step-batch-size-schedule"):
            if arguments.on(name):
                self.warnings.append(
                    Problem(arguments.place(name), f"--{name}: the plan is for the full global batch size")
                )
        if arguments.on("decrease-batch-size-if-needed"):
            self.warnings.append(
                Problem(
                    arguments.place("decrease-batch-size-if-needed"),
                    "the plan is for the full global batch size",
                )
            )

    def _data(self, group: int) -> int | None:
        nodes, per_node = self.whole("nnodes"), self.whole("nproc-per-node")
        said = self.whole("world-size") or (nodes * per_node if nodes and per_node else None)
        size = self.world_size or said
        if self.world_size and said and said != self.world_size:
            self.refuse(
                "nnodes", f"the launcher starts {said} ranks, but a world size of {self.world_size} was given"
            )
        if size is None:
            self.missing.append(
                Problem(
                    self.arguments.source,
                    "the number of GPUs (torchrun --nnodes and --nproc-per-node): say --world-size",
                )
            )
            return None
        if size % group:
            self.refuse(
                "tensor-model-parallel-size",
                f"{size} GPUs do not divide by tensor * pipeline * context = {group}",
            )
            return None
        return size // group

    def _heads(self, heads: int | None, groups: int | None, tensor: int) -> None:
        if heads is not None and heads % tensor:
            self.refuse(
                "tensor-model-parallel-size", f"{heads} heads do not divide by tensor degree {tensor}"
            )
        elif groups is not None and groups % tensor and tensor % groups:
            self.refuse(
                "tensor-model-parallel-size",
                f"{groups} query groups and tensor degree {tensor}: one must divide the other",
            )

    def _split(self, layers: int | None, pipeline: int) -> Split | None:
        arguments = self.arguments
        flags = SplitFlags(
            layers=layers or 0,
            pipeline=pipeline,
            first=self.whole("decoder-first-pipeline-num-layers"),
            last=self.whole("decoder-last-pipeline-num-layers"),
            account_for_embedding=arguments.on("account-for-embedding-in-pipeline-split"),
            account_for_loss=arguments.on("account-for-loss-in-pipeline-split"),
            layout=arguments.text("pipeline-model-parallel-layout"),
            layers_per_chunk=self.whole("num-layers-per-virtual-pipeline-stage"),
            chunks=self.whole("num-virtual-stages-per-pipeline-rank"),
        )
        if layers is None:
            return None
        names = (
            "pipeline-model-parallel-layout",
            "decoder-last-pipeline-num-layers",
            "decoder-first-pipeline-num-layers",
            "num-layers-per-virtual-pipeline-stage",
            "num-virtual-stages-per-pipeline-rank",
            "pipeline-model-parallel-size",
        )
        place = next((arguments.place(name) for name in names if arguments.on(name)), arguments.source)
        try:
            return split_of(flags, place)
        except InputError as error:
            self.problems += error.problems
            return None

    def _rank_order(self, dense_group: int, pipeline: int, data: int | None, expert: int) -> tuple[str, ...]:
        if not self.arguments.on("use-tp-pp-dp-mapping"):
            return ("tensor", "context", "data", "pipeline")
        expert_tensor = self.whole("expert-tensor-parallel-size", "tensor-model-parallel-size") or 1
        if expert > 1 and pipeline > 1 and expert * expert_tensor != dense_group:
            self.refuse(
                "use-tp-pp-dp-mapping",
                "Megatron accepts this order with expert parallelism only if there is one pipeline stage or "
                "expert data parallelism equals data parallelism: leave the flag out and order the nodes",
            )
        if pipeline == 1 or data == 1:
            return ("tensor", "context", "data", "pipeline")
        return ("tensor", "context", "pipeline", "data")

    def _micro_batches(self, micro: int | None, batch: int | None, data: int | None) -> int | None:
        if micro is None or batch is None or data is None:
            return self.whole("num-microbatches")
        if batch % (micro * data):
            self.refuse(
                "global-batch-size",
                f"global batch {batch} does not divide by micro-batch {micro} * data {data}",
            )
            return None
        return batch // (micro * data)

    def _interleaving(self, chunks: int, pipeline: int, count: int | None) -> None:
        if chunks == 1:
            return
        arguments = self.arguments
        name = next(
            (
                item
                for item in ("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage")
                if arguments.on(item)
            ),
            "pipeline-model-parallel-layout",
        )
        least = 3 if arguments.on("no-overlap-p2p-communication") else 2
        if pipeline < least:
            self.refuse(name, f"interleaving needs at least {least} pipeline stages")
        if count is None:
            return
        problem = micro_batch_problem(
            pipeline, count, self.whole("microbatch-group-size-per-virtual-pipeline-stage")
        )
        if problem is not None:
            self.refuse(name, problem)
