"""Megatron-LM arguments, from a launch script, an argument string or a JSON object of the same names.

What they say about the model, the training and the parallel configuration. Defaults are those of Megatron-LM
(training/arguments.py, validate_args); what it refuses, or older versions silently got wrong, is refused
here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.jsontext import load
from pipette_milp.importers.megatron_flags import KNOWN, SWITCHES, Argument, Arguments, read_arguments
from pipette_milp.importers.megatron_run import MegatronRun, run_of
from pipette_milp.importers.shell_words import Word, commands, variables
from pipette_milp.importers.text import clean

KIND = "megatron"

# A command with fewer known arguments is something else (mkdir -p, echo).
_LEAST_ARGUMENTS = 2


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
    return run_of(arguments, world_size, tensor_overlap)


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
