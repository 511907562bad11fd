"""The arguments of Megatron-LM that decide shape, degrees and memory of a run, and how their values are read.

Names are those of the command line. Since 2026 most arguments are generated from dataclasses, so the names
follow the fields in kebab case; old spellings are listed with what they became.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.shell_words import Word


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHOLE = _names(
    """
    num-layers hidden-size ffn-hidden-size num-attention-heads num-query-groups kv-channels seq-length
    max-position-embeddings make-vocab-size-divisible-by vocab-size padded-vocab-size
    tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size
    expert-model-parallel-size expert-tensor-parallel-size micro-batch-size global-batch-size
    num-layers-per-virtual-pipeline-stage num-virtual-stages-per-pipeline-rank
    microbatch-group-size-per-virtual-pipeline-stage decoder-first-pipeline-num-layers
    decoder-last-pipeline-num-layers recompute-num-layers num-experts moe-ffn-hidden-size
    moe-router-topk moe-shared-expert-intermediate-size q-lora-rank kv-lora-rank qk-head-dim
    qk-pos-emb-head-dim v-head-dim mtp-num-layers nnodes nproc-per-node world-size num-microbatches
    encoder-num-layers encoder-seq-length
    """
)
TEXT = _names(
    """
    position-embedding-type normalization pipeline-model-parallel-layout hybrid-layer-pattern
    moe-layer-freq recompute-granularity recompute-method recompute-modules attention-backend
    data-parallel-sharding-strategy fp8-format main-grads-dtype optimizer step-batch-size-schedule
    rampup-batch-size node-rank
    """
)
SWITCHES = _names(
    """
    group-query-attention swiglu squared-relu openai-gelu untie-embeddings-and-output-weights
    disable-bias-linear add-qkv-bias qk-layernorm multi-latent-attention sequence-parallel
    use-distributed-optimizer overlap-grad-reduce overlap-param-gather tp-comm-overlap
    recompute-activations distribute-saved-activations checkpoint-activations
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split use-tp-pp-dp-mapping bf16
    fp16 grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 use-flash-attn
    use-rotary-position-embeddings use-megatron-fsdp use-custom-fsdp use-torch-fsdp2
    no-overlap-p2p-communication overlap-p2p-communication decrease-batch-size-if-needed
    use-mcore-models no-position-embedding moe-shared-expert-gate moe-router-enable-expert-bias
    """
)
KNOWN = WHOLE | TEXT | SWITCHES

_SEVERAL_VALUES = frozenset({"recompute-modules", "rampup-batch-size", "step-batch-size-schedule"})

RENAMED = {
    "model-parallel-size": "tensor-model-parallel-size",
    "batch-size": "micro-batch-size",
    "fp8-hybrid": "fp8-format",
    # Fields of Bridge and NeMo 2, seen in scripts that wrap Megatron.
    "num-layers-in-first-pipeline-stage": "decoder-first-pipeline-num-layers",
    "num-layers-in-last-pipeline-stage": "decoder-last-pipeline-num-layers",
    "moe-layer-frequency": "moe-layer-freq",
}

_LARGEST = 10**12


@dataclass(frozen=True)
class Argument:
    """One argument as given."""

    name: str
    text: str
    """Value, "" for a switch."""
    place: str


@dataclass(frozen=True)
class Arguments:
    """All known arguments of one command, by name."""

    source: str
    given: Mapping[str, Argument]
    others: tuple[str, ...]
    """Names of further arguments, which do not concern the plan."""
    warnings: tuple[Problem, ...]

    def place(self, name: str) -> str:
        """Where an argument stands; the source where it is absent."""
        return self.given[name].place if name in self.given else self.source

    def on(self, name: str) -> bool:
        """Whether a switch is given."""
        return name in self.given

    def text(self, name: str) -> str | None:
        """Value of a text argument."""
        return self.given[name].text if name in self.given else None

    def whole(self, name: str) -> int | None:
        """Value of a whole-number argument.

        Raises:
            InputError: it is not a positive whole number.
        """
        if name not in self.given:
            return None
        argument = self.given[name]
        if not re.fullmatch(r"\d{1,13}", argument.text) or not 0 < int(argument.text) <= _LARGEST:
            raise InputError(
                Problem(
                    argument.place, f"--{name}: expected a whole number of at least 1, got {argument.text!r}"
                )
            )
        return int(argument.text)


class ArgumentReader:
    """Reads values for one purpose and gathers what is wrong, so that all of it is told at once."""

    def __init__(self, arguments: Arguments, warnings: list[Problem]) -> None:
        self.arguments = arguments
        self.problems: list[Problem] = []
        self.warnings = warnings

    def refuse(self, name: str, message: str) -> None:
        """Notes a problem at the place of an argument."""
        self.problems.append(Problem(self.arguments.place(name), message))

    def warn(self, name: str, message: str) -> None:
        """Notes a warning at the place of an argument."""
        self.warnings.append(Problem(self.arguments.place(name), message))

    def whole(self, *names: str) -> int | None:
        """The first of several whole-number arguments that is given."""
        for name in names:
            try:
                value = self.arguments.whole(name)
            except InputError as error:
                self.problems += error.problems
                return None
            if value is not None:
                return value
        return None


def read_arguments(words: Iterable[Word], source: str) -> Arguments:
    """Arguments of one command; ``--name value`` and ``--name=value``, underscores count as dashes.

    As with argparse the last of several wins; that is warned about when the values differ.

    Raises:
        InputError: a known argument has no value, a switch has one, or a value depends on something
            outside the script.
    """
    given: dict[str, Argument] = {}
    others: list[str] = []
    warnings: list[Problem] = []
    problems: list[Problem] = []
    items = [part for word in words for part in _parts(word)]
    position = 0
    while position < len(items):
        word = items[position]
        position += 1
        place = f"{source}:{word.line}:{word.column}"
        if not word.text.startswith("--"):
            if word.undecided and word.text.count("\x00") == 2 and word.text.startswith("\x00"):
                warnings.append(
                    Problem(
                        place, f"arguments in ${word.undecided[0]} are not known and were left out (set it)"
                    )
                )
            continue
        name, equals, value = word.text[2:].partition("=")
        name = name.replace("_", "-")
        name = RENAMED.get(name, name)
        values = [value] if equals else []
        if not equals:
            while position < len(items) and _is_value(name, values, items[position]):
                values.append(items[position].text)
                position += 1
        if name not in KNOWN:
            others.append(name)
            continue
        problem = _problem(name, values)
        if problem is not None:
            problems.append(Problem(place, problem))
            continue
        kept = values if name in _SEVERAL_VALUES else values[:1]
        argument = Argument(name, "" if name in SWITCHES else " ".join(kept), place)
        if name in given and given[name].text != argument.text:
            warnings.append(
                Problem(place, f"--{name} is given twice: {argument.text!r} wins over {given[name].text!r}")
            )
        given[name] = argument
    if problems:
        raise InputError(problems)
    return Arguments(source, given, tuple(others), tuple(warnings))


def _is_value(name: str, values: list[str], word: Word) -> bool:
    """Whether a word belongs to the argument before it.

    A variable that nothing sets may stand for one value; after a switch or a complete value it stands for
    further arguments.
    """
    if word.text.startswith("--"):
        return False
    complete = name in SWITCHES or (name in WHOLE | TEXT and name not in _SEVERAL_VALUES and bool(values))
    return not (complete and word.undecided)


def _parts(word: Word) -> list[Word]:
    """A quoted word that holds a whole command (``bash -c "torchrun ... --x 1"``) in its parts."""
    if " --" not in word.text.replace("\n", " ").replace("\t", " "):
        return [word]
    return [Word(text, word.line, word.column) for text in word.text.split()]


def _problem(name: str, values: list[str]) -> str | None:
    undecided = [reason for value in values for reason in Word(value, 0, 0).undecided]
    if undecided:
        return (
            f"--{name} depends on ${undecided[0]}, which the script does not set, or only in a branch: "
            f"say --set {undecided[0]}=VALUE"
        )
    if name in SWITCHES:
        return None  # a positional argument may follow
    if not values or not values[0]:
        return f"--{name} has no value"
    if (
        name not in _SEVERAL_VALUES
        and len(values) > 1
        and name in WHOLE
        and any(value.isdigit() for value in values[1:])
    ):
        return f"--{name}: expected one value, got {' '.join(values[:4])}"
    return None
