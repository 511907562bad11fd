"""Megatron-LM arguments, from a launch script, an argument string or a JSON object of the same names.

What they say about the model, the training and the parallel configuration. Defaults are those of Megatron-LM
(training/arguments.py, validate_args); what it refuses, or older versions silently got wrong, is refused
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.jsontext import load
from pipette_milp.importers.megatron_flags import KNOWN, SWITCHES, Argument, Arguments, read_arguments
from pipette_milp.importers.megatron_model import model_fields, padded_vocabulary
from pipette_milp.importers.megatron_split import Split, SplitFlags, split_of
from pipette_milp.importers.shell_words import Word, commands, variables
from pipette_milp.importers.text import clean
from pipette_milp.schema.plan import Configuration, DataSharding, GradientDtype, Overlap, Recompute, Stage

KIND = "megatron"

# A command with fewer known arguments is something else (mkdir -p, echo).
_LEAST_ARGUMENTS = 2

_SHARDING: dict[str, DataSharding] = {
    "no_shard": "none",
    "optim": "optimizer",
    "optim_grads": "gradients",
    "optim_grads_params": "parameters",
}


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


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a set of Megatron-LM arguments."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return 0.0
        names = {str(name).replace("_", "-") for name in data} if isinstance(data, dict) else set()
        return 0.9 if len(names & {"tensor-model-parallel-size", "pipeline-model-parallel-size"}) else 0.0
    found = {match[1].replace("_", "-") for match in re.finditer(r"--([a-z][a-z0-9_-]+)", text)}
    return 0.9 if len(found & KNOWN) >= 3 else 0.55 if len(found & KNOWN) == _LEAST_ARGUMENTS else 0.0


def parse(
    text: str,
    source: str,
    settings: Mapping[str, str] | None = None,
    world_size: int | None = None,
    tensor_overlap: float | None = None,
) -> MegatronRun:
    """The run that a script or an argument string starts.

    Args:
        settings: values of shell variables that the script takes from outside.
        world_size: GPUs in all; default nnodes * nproc-per-node of the launcher, else the
            variable WORLD_SIZE.
        tensor_overlap: share of the tensor collectives hidden by --tp-comm-overlap, which the arguments do
            not say; 0 when not given.

    Raises:
        InputError: no or several different runs, a damaged argument, or arguments that Megatron refuses.
    """
    settings = dict(settings or {})
    arguments = _arguments(text, source, settings)
    if world_size is None and not {"nnodes", "world-size"} & set(arguments.given):
        world_size = _world_size_variable(text, source, settings)
    return _Reading(arguments, world_size, tensor_overlap).run()


def _world_size_variable(text: str, source: str, settings: dict[str, str]) -> int | None:
    """What a script sets WORLD_SIZE to, as many do to start their launcher."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return None
    words = variables(text, source, settings).get("WORLD_SIZE", [])
    return int(words[0].text) if len(words) == 1 and re.fullmatch(r"[1-9]\d{0,8}", words[0].text) else None


def _arguments(text: str, source: str, settings: dict[str, str]) -> Arguments:
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return _from_json(load(text, source), source)
    # Lines again, without colour codes and with plain line ends; columns of coloured lines are approximate.
    content = "\n".join(line.text for line in clean(text, source).lines)
    found: list[Arguments] = []
    candidates = commands(content, source, settings)
    for words in candidates:
        if _count(words) >= _LEAST_ARGUMENTS:
            found.append(read_arguments(words, source))
    if not found:
        words = [word for value in variables(content, source, settings).values() for word in value]
        if _count(words) < _LEAST_ARGUMENTS:
            raise InputError(
                Problem(f"{source}:1:1", "found no Megatron-LM arguments such as --num-layers 32")
            )
        found.append(read_arguments(words, source))
    texts = {tuple(sorted((name, argument.text) for name, argument in one.given.items())) for one in found}
    if len(texts) > 1:
        places = ", ".join(next(iter(one.given.values())).place for one in found)
        raise InputError(Problem(places, "several commands with different arguments: give one of them"))
    return found[0]


def _count(words: list[Word]) -> int:
    text = " ".join(word.text for word in words)
    names = {match[1].replace("_", "-") for match in re.finditer(r"--([a-z][a-z0-9_-]+)", text)}
    return len(names & KNOWN)


def _from_json(data: Any, source: str) -> Arguments:
    """Arguments from an object such as {"num_layers": 30, "bf16": true}."""
    if not isinstance(data, dict):
        raise InputError(Problem(source, "expected an object of argument names and values"))
    words: list[Word] = []
    for key, value in data.items():
        name = str(key).replace("_", "-")
        if name == "virtual-pipeline-model-parallel-size":  # the derived name, as programs print it
            name = "num-virtual-stages-per-pipeline-rank"
        if value is None or value is False:
            continue
        if value is True:
            words.append(Word(f"--{name}", 1, 1))
        elif isinstance(value, list):
            words += [Word(f"--{name}", 1, 1), *(Word(str(item), 1, 1) for item in value)]
        else:
            words.append(Word(f"--{name}={value}", 1, 1))
    arguments = read_arguments(words, source)
    if not arguments.given:
        raise InputError(Problem(source, "found no Megatron-LM arguments such as num_layers"))
    given = {name: Argument(name, item.text, f"{source}: {name}") for name, item in arguments.given.items()}
    wrong = [
        name
        for name in SWITCHES
        if name in given and data.get(name.replace("-", "_"), data.get(name)) is not True
    ]
    if wrong:
        raise InputError(Problem(f"{source}: {wrong[0]}", "expected true or false"))
    return Arguments(source, given, arguments.others, arguments.warnings)


class _Reading:
    """One pass over the arguments, gathering everything that is wrong before it raises."""

    def __init__(self, arguments: Arguments, world_size: int | None, tensor_overlap: float | None) -> None:
        self.arguments = arguments
        self.tensor_overlap = tensor_overlap
        self.problems: list[Problem] = []
        self.missing: list[Problem] = []
        self.warnings: list[Problem] = list(arguments.warnings)
        self.world_size = world_size

    def refuse(self, name: str, message: str) -> None:
        self.problems.append(Problem(self.arguments.place(name), message))

    def whole(self, name: str, default: int | None = None) -> int | None:
        try:
            value = self.arguments.whole(name)
        except InputError as error:
            self.problems += error.problems
            return default
        return default if value is None else value

    def degree(self, name: str) -> int:
        return self.whole(name, 1) or 1

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
        precision, gradient = self._precision()
        micro, batch = self.whole("micro-batch-size"), self.whole("global-batch-size")
        if batch is None and micro is not None and data is not None:
            batch = micro * data  # Megatron's default
        sharding = self._sharding()
        overlap = self._overlap(sharding)
        recompute = self._recompute()
        order = self._rank_order(tensor * context, pipeline, data, expert)
        training = self._training(batch, precision, gradient, sharding, overlap, recompute, tensor)
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
                micro_batch=micro,
                num_micro_batches=count,
                schedule="interleaved" if interleaved else "1f1b",
                pipeline_transfers="exchange" if exchange else "async",
                stages=tuple(
                    Stage(embedding=item.embedding, layers=item.layers, head=item.head)
                    for item in split.stages
                ),
                recompute=recompute,
                sequence_parallel=training["sequence_parallel"],
                data_sharding=sharding,
                gradient_dtype=gradient,
                overlap=overlap,
            )
        vocabulary = model.get("vocab_size")
        return MegatronRun(
            source=arguments.source,
            model=model,
            training=training,
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
            else padded_vocabulary(
                vocabulary, tensor, self.whole("make-vocab-size-divisible-by", 128) or 128
            ),
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

    def _precision(self) -> tuple[str, GradientDtype]:
        arguments = self.arguments
        if arguments.on("bf16") and arguments.on("fp16"):
            self.refuse("fp16", "--bf16 and --fp16 exclude each other")
        if arguments.on("bf16"):
            low = arguments.on("grad-reduce-in-bf16") or arguments.text("main-grads-dtype") == "bf16"
            precision = "fp8" if arguments.on("fp8-format") else "bf16"
            return precision, "bf16" if low else "fp32"
        if arguments.on("fp16"):
            return "fp16", "fp32" if arguments.on("accumulate-allreduce-grads-in-fp32") else "fp16"
        return "fp32", "fp32"

    def _sharding(self) -> DataSharding:
        arguments = self.arguments
        if arguments.on("use-torch-fsdp2"):
            return "parameters"
        strategy = arguments.text("data-parallel-sharding-strategy")
        if arguments.on("use-megatron-fsdp") or arguments.on("use-custom-fsdp"):
            if strategy is not None and strategy not in _SHARDING:
                self.refuse(
                    "data-parallel-sharding-strategy",
                    f"expected one of {', '.join(_SHARDING)}, got {strategy!r}",
                )
            return _SHARDING.get(strategy or "no_shard", "none")
        return "optimizer" if arguments.on("use-distributed-optimizer") else "none"

    def _overlap(self, sharding: DataSharding) -> Overlap:
        arguments = self.arguments
        gather = arguments.on("overlap-param-gather")
        if gather and sharding == "none":
            self.refuse("overlap-param-gather", "--overlap-param-gather needs --use-distributed-optimizer")
        if gather and not arguments.on("overlap-grad-reduce"):
            self.refuse("overlap-param-gather", "--overlap-param-gather needs --overlap-grad-reduce")
        tensor = 0.0
        if arguments.on("tp-comm-overlap"):
            tensor = self.tensor_overlap or 0.0
            if self.tensor_overlap is None:
                self.warnings.append(
                    Problem(
                        arguments.place("tp-comm-overlap"),
                        "--tp-comm-overlap does not say how much it hides: taken as nothing (overlap.tensor "
                        "0)",
                    )
                )
        return Overlap(
            gradient_reduce=arguments.on("overlap-grad-reduce"), parameter_gather=gather, tensor=tensor
        )

    def _recompute(self) -> Recompute:
        arguments = self.arguments
        granularity = arguments.text("recompute-granularity")
        if arguments.on("recompute-activations"):
            if granularity == "full":
                self.refuse(
                    "recompute-activations",
                    "--recompute-activations means selective, but granularity is full",
                )
            return "selective"
        if granularity is None:
            return "none"
        if granularity not in ("full", "selective"):
            self.refuse("recompute-granularity", f"expected full or selective, got {granularity!r}")
            return "none"
        method, units = arguments.text("recompute-method"), self.whole("recompute-num-layers")
        if granularity == "full":
            if method not in ("uniform", "block"):
                self.refuse(
                    "recompute-granularity", "full recompute needs --recompute-method uniform or block"
                )
            elif method == "block" or (units or 1) > 1:
                self.warnings.append(
                    Problem(
                        arguments.place("recompute-method"),
                        f"--recompute-method {method} over {units or 1} layers "
                        f"is taken as recompute of every layer on its own",
                    )
                )
            return "full"
        modules = arguments.text("recompute-modules")
        if modules is not None and modules.split() != ["core_attn"]:
            self.warnings.append(
                Problem(
                    arguments.place("recompute-modules"),
                    f"recomputes {modules}: taken as core attention only",
                )
            )
        return "selective"

    def _rank_order(self, dense_group: int, pipeline: int, data: int | None, expert: int) -> tuple[str, ...]:
        if not self.arguments.on("use-tp-pp-dp-mapping"):
            return ("tensor", "context", "data", "pipeline")
        expert_tensor = (
            self.whole("expert-tensor-parallel-size", self.degree("tensor-model-parallel-size")) or 1
        )
        if expert > 1 and pipeline > 1 and expert * expert_tensor != dense_group:
            self.refuse(
                "use-tp-pp-dp-mapping",
                "Megatron accepts this order with expert parallelism only if there is one pipeline stage or "
                "expert data "
                "parallelism equals data parallelism: leave the flag out and order the nodes instead",
            )
        if pipeline == 1 or data == 1:
            return ("tensor", "context", "data", "pipeline")
        return ("tensor", "context", "pipeline", "data")

    def _training(
        self,
        batch: int | None,
        precision: str,
        gradient: str,
        sharding: DataSharding,
        overlap: Overlap,
        recompute: Recompute,
        tensor: int,
    ) -> dict[str, Any]:
        arguments = self.arguments
        sequence_parallel = arguments.on("sequence-parallel") and tensor > 1
        if arguments.on("sequence-parallel") and tensor == 1:
            self.warnings.append(
                Problem(
                    arguments.place("sequence-parallel"),
                    "has no effect with tensor degree 1 (Megatron turns it off)",
                )
            )
        training: dict[str, Any] = {} if batch is None else {"global_batch_size": batch}
        training |= {
            "precision": precision,
            "gradient_dtype": gradient,
            "optimizer": "adam",
            "data_sharding": sharding,
            "sequence_parallel": sequence_parallel,
            "recompute": recompute,
            "framework": "megatron",
            "overlap": overlap.model_dump(),
        }
        optimizer = arguments.text("optimizer")
        if optimizer not in (None, "adam", "adamw"):
            self.refuse("optimizer", f"not supported yet: optimizer {optimizer}")
        backend = arguments.text("attention-backend")
        if arguments.on("use-flash-attn") or backend in ("flash", "fused"):
            training["flash_attention"] = True
        elif backend in ("unfused", "local"):
            training["flash_attention"] = False
        else:
            self.warnings.append(
                Problem(
                    arguments.source,
                    "does not say whether attention is fused (--attention-backend): "
                    "taken as not, which needs more memory",
                )
            )
        return training

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
