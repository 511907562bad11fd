"""The layout string of ``--pipeline-model-parallel-layout``: which layer sits in which pipeline stage.

``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss; stages are separated
by ``|``, commas are cosmetic, ``x*n`` and ``(...)*n`` repeat. Stage i runs on pipeline rank i mod PP as
chunk i div PP. A stage may be empty. Source: Megatron-LM,
megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby

from pipette_milp.errors import InputError, Problem

_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
_REPEAT = re.compile(r"([EtmL|])\*(\d+)")
# No model has more layers and stages than this together; keeps "(t*999999)*999999" from filling the memory.
_LONGEST = 100_000


@dataclass(frozen=True)
class LayoutStage:
    """What one stage of a layout holds."""

    embedding: bool
    layers: int
    prediction_layers: int
    head: bool


def parse_layout(layout: str, pipeline: int, place: str) -> tuple[LayoutStage, ...]:
    """The stages in model order, ``pipeline`` times the number of chunks.

    Raises:
        InputError: an unknown character, a count that is not a multiple of ``pipeline``, or an order of
            layers that Megatron refuses (embedding once and first, loss once and last, prediction layers
            after all decoders and not on the first rank).
    """

    def refuse(message: str) -> InputError:
        return InputError(Problem(place, f"layout {_shortened(layout)!r}: {message}"))

    text = re.sub(r"[,\s]", "", layout)
    for pattern in (_GROUP, _REPEAT):
        if sum(len(match[1]) * int(match[2][:7]) for match in pattern.finditer(text)) > _LONGEST:
            raise refuse("repeats more often than any model has layers")
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    wrong = next((character for character in text if character not in "EtmL|"), None)
    if wrong is not None:
        raise refuse(f"cannot read {wrong!r}, known are E, t, m, L, | and repeats such as t*3 and (tt|)*4")
    parts = text.split("|")
    if len(parts) % pipeline:
        raise refuse(f"has {len(parts)} stages, which is no multiple of the pipeline size {pipeline}")
    flat = "".join(parts)
    if not re.fullmatch(r"Et*m*L", flat):
        raise refuse("expected one E first, then all t, then all m, then one L last")
    if any("m" in part for part in parts[::pipeline]) and pipeline > 1:
        raise refuse("prediction layers may not be on the first pipeline rank")
    return tuple(
        LayoutStage(
            embedding="E" in part, layers=part.count("t"), prediction_layers=part.count("m"), head="L" in part
        )
        for part in parts
    )


def _shortened(layout: str) -> str:
    return layout if len(layout) <= 80 else layout[:77] + "..."


def format_layout(stages: tuple[LayoutStage, ...]) -> str:
    """The layout string of stages, with runs of equal stages written once: ``Et*3|(tt|)*29m|L``."""
    parts = [
        "E" * stage.embedding
        + _run("t", stage.layers)
        + _run("m", stage.prediction_layers)
        + "L" * stage.head
        for stage in stages
    ]
    text = ""
    position = 0
    for part, group in groupby(parts):
        count = len(list(group))
        position += count
        last = position == len(parts)
        repeated = count - 1 if last else count
        if repeated > 1:
            text += f"({part}|)*{repeated}"
        else:
            text += f"{part}|" * repeated
        if last:
            text += part
    return text


def _run(letter: str, count: int) -> str:
    # Inside a repeated group Megatron unrolls the group first and "t*3" afterwards, so both may be used.
    return letter * count if count <= 2 else f"{letter}*{count}"
