"""Damaged inputs: the right value or a clear diagnostic, never a traceback, never a wrong number in silence.

Mutations are what happens to pasted files: cut anywhere, lines lost or doubled, columns in another order,
colour codes, Windows line ends, tabs turned into blanks and back, indentation, decimal commas, launcher
tags, byte order marks. None of them changes a figure, so every figure that comes back must be one that was
there, at its own place; what a cut can shorten (the last figure of a file) must be warned about.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers import registry
from pipette_milp.importers.collective import CollectiveRun
from pipette_milp.importers.diagnose import diagnose
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.facts import PairwiseBandwidth
from pipette_milp.importers.framework_settings import FrameworkSettings
from pipette_milp.importers.huggingface import ImportedModel
from pipette_milp.importers.megatron_run import MegatronRun
from pipette_milp.importers.mpigraph import MpiGraph
from pipette_milp.importers.nccl_xml import NcclTopology
from pipette_milp.importers.node_topology import NodeTopology
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.importers.scheduler_topology import SchedulerTopology
from pipette_milp.importers.training_log import TrainingLog
from tests.importer_samples import KIND_OF_SAMPLE, sample

QUICK = 200
LONG = 10_000

Rng = np.random.Generator
Mutation = Callable[[str, Rng], str]


def cut(text: str, rng: Rng) -> str:
    return text[: int(rng.integers(0, len(text) + 1))]


def lose_line(text: str, rng: Rng) -> str:
    lines = text.splitlines(keepends=True)
    if lines:
        lines.pop(int(rng.integers(0, len(lines))))
    return "".join(lines)


def double_line(text: str, rng: Rng) -> str:
    lines = text.splitlines(keepends=True)
    if lines:
        position = int(rng.integers(0, len(lines)))
        lines.insert(position, lines[position])
    return "".join(lines)


def swap_columns(text: str, rng: Rng) -> str:
    """Two columns of a table change places in every line that has both; sentences have no columns."""
    separator = "\t" if text.count("\t") > text.count(";") else ";" if ";" in text else None
    lines = text.splitlines()
    # "#" before the titles of a table is no column of its own.
    heads = [re.match(r"#?\s*" if separator is None else "", line)[0] for line in lines]  # type: ignore[index]
    width = max((len(line.split(separator)) for line in lines), default=0)
    if width < 2:
        return text
    a, b = (int(item) for item in rng.choice(width, 2, replace=False))
    out = []
    for line, head in zip(lines, heads, strict=True):
        cells = line[len(head) :].split(separator)
        if len(cells) > max(a, b) and not re.search(r"\bRank\s+\d", line):
            cells[a], cells[b] = cells[b], cells[a]
            line = head + (separator or " ").join(cells)
        out.append(line)
    return "\n".join(out) + "\n"


def colour(text: str, rng: Rng) -> str:
    words = re.finditer(r"\x1b\[\d*m|\b\w", text)
    places = [match.start() for match in words if not match[0].startswith("\x1b")]
    for place in (
        sorted(rng.choice(places, min(5, len(places)), replace=False), reverse=True) if places else []
    ):
        text = text[:place] + f"\x1b[{int(rng.integers(0, 8))}m" + text[place:]
    return text


def windows(text: str, rng: Rng) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def tabs_to_blanks(text: str, rng: Rng) -> str:
    return text.replace("\t", " " * int(rng.integers(1, 9)))


def blanks_to_tabs(text: str, rng: Rng) -> str:
    return re.sub(r" {2,}", "\t", text)


def indent(text: str, rng: Rng) -> str:
    pad = rng.choice(["    ", "        ", "\t", " "])
    return "".join(pad + line for line in text.splitlines(keepends=True))


def decimal_comma(text: str, rng: Rng) -> str:
    return re.sub(r"(\d)\.(\d)", r"\1,\2", text)


def grouped(text: str, rng: Rng) -> str:
    """Thousands separated in every long whole part."""
    return re.sub(r"(?<![\d.\w])(\d{1,3})(\d{3})(?=\.\d)", r"\1,\2", text)


def tag(text: str, rng: Rng) -> str:
    prefix = rng.choice(["[1,0]<stdout>:", "0: ", "12: "])
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def mark(text: str, rng: Rng) -> str:
    return "\ufeff" + text


def blank_lines(text: str, rng: Rng) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(3):
        lines.insert(int(rng.integers(0, len(lines) + 1)), "\n")
    return "".join(lines)


def trailing_blanks(text: str, rng: Rng) -> str:
    return "".join(line.rstrip("\n") + "  \n" for line in text.splitlines(keepends=True))


MUTATIONS: tuple[Mutation, ...] = (
    cut,
    lose_line,
    double_line,
    swap_columns,
    colour,
    windows,
    tabs_to_blanks,
    blanks_to_tabs,
    indent,
    decimal_comma,
    grouped,
    tag,
    mark,
    blank_lines,
    trailing_blanks,
)
CUTTING = frozenset({cut})
SETTINGS = frozenset(("megatron", "hf-config", "nemo", "torchtitan", "deepspeed"))
WITHOUT_COLUMNS = frozenset(("megatron-log", "nemo", "torchtitan", "nccl-topology", "slurm-topology-yaml"))


def figures(fact: Any) -> dict[object, object]:
    """Every value by what it is the value of."""
    if isinstance(fact, tuple):
        merged: dict[object, object] = {}
        for item in fact:
            merged |= figures(item)
        return merged
    if isinstance(fact, NodeTopology):
        return _topology(fact)
    if isinstance(fact, CollectiveRun):
        found: dict[object, object] = {
            ("rank", rank.rank): (rank.host, rank.device, rank.name) for rank in fact.ranks
        }
        for row in fact.rows:
            for mode, timing in (("out", row.out_of_place), ("in", row.in_place)):
                if timing is not None:
                    found[row.size_bytes, mode, "time"] = timing.time_s
                    found[row.size_bytes, mode, "algbw"] = timing.algbw_bytes_per_s
                    found[row.size_bytes, mode, "busbw"] = timing.busbw_bytes_per_s
        return found
    if isinstance(fact, MpiGraph):
        names = [f"{host}:{rank}" for host, rank in fact.endpoints]
        return {
            **_matrix("send", names, fact.send),
            **_matrix("receive", names, fact.receive),
            "message": fact.message_bytes,
        }
    if isinstance(fact, PairwiseBandwidth):
        return {**_matrix(fact.unit, list(fact.names), fact.values)}
    if isinstance(fact, MegatronRun):
        return {
            **fact.model,
            **{f"training {name}": str(value) for name, value in fact.training.items()},
            "degrees": (fact.tensor, fact.pipeline, fact.context, fact.data),
            "split": None if fact.split is None else fact.split.layers_per_stage,
        }
    if isinstance(fact, Fabric):
        return {
            **{
                ("adapter", a.guid, a.port): (a.host, a.device, a.switch, a.bytes_per_s)
                for a in fact.adapters
            },
            **{("cable", cable.ends): cable.bytes_per_s for cable in fact.cables},
        }
    if isinstance(fact, SchedulerTopology):
        return {
            **{(fact.name, "switch", name): switch for name, switch in fact.switches.items()},
            **{(fact.name, "group", name): nodes for name, nodes in fact.groups.items()},
        }
    if isinstance(fact, NcclTopology):
        found = {}
        for number, (node, cards) in enumerate(zip(fact.nodes, fact.cards, strict=True)):
            found |= {(number, *key): value for key, value in _topology(node).items()}  # type: ignore[misc]
            found |= {(number, "card", card.name): card for card in cards}
        return found
    if isinstance(fact, PointToPoint):
        return {(fact.metric, size): value for size, value in fact.rows}
    if isinstance(fact, TrainingLog):
        found = {("memory", item.rank): item for item in fact.memory}
        for item in fact.iterations:
            found[item.number, "time"] = item.time_s
            found[item.number, "flops"] = item.flop_per_s_per_gpu
            found[item.number, "batch"] = item.global_batch_size
        return found | {("timer", name): values for name, *values in fact.timers}
    if isinstance(fact, FrameworkSettings):
        return {
            **fact.training,
            "degrees": (fact.tensor, fact.pipeline, fact.data),
            "micro_batch": fact.micro_batch,
        }
    assert isinstance(fact, ImportedModel)
    return dict(fact.section)


def _matrix(what: object, names: list[str], values: np.ndarray) -> dict[object, object]:
    return {
        (what, names[a], names[b]): float(values[a, b]) for a, b in np.argwhere(~np.isnan(values)).tolist()
    }


def _topology(fact: NodeTopology) -> dict[object, object]:
    found: dict[object, object] = {}
    for a, name in enumerate(fact.gpus):
        found |= {("gpu", name, fact.gpus[b]): link for b, link in enumerate(fact.gpu_links[a])}
        found |= {("nic", name, fact.nic_columns[c]): link for c, link in enumerate(fact.nic_links[a])}
        found["cpu", name] = fact.cpu_affinity[a]
        found["numa", name] = fact.numa_affinity[a]
        if fact.peer_access is not None:
            found |= {("peer", name, fact.gpus[b]): state for b, state in enumerate(fact.peer_access[a])}
    return found


@cache
def undamaged(name: str) -> dict[object, object]:
    """Figures of a sample as it is."""
    return figures(registry.parse(sample(name), name, KIND_OF_SAMPLE[name]))


def warnings_of(fact: Any) -> list[Problem]:
    if isinstance(fact, tuple):
        return [warning for item in fact for warning in item.warnings]
    return list(getattr(fact, "warnings", ()))


def same(one: object, two: object) -> bool:
    if isinstance(one, float) and isinstance(two, float):
        return abs(one - two) <= 1e-12 * abs(one)
    return one == two


def mutated(text: str, rng: Rng, kind: str) -> tuple[str, list[Mutation]]:
    chosen = [MUTATIONS[int(index)] for index in rng.integers(0, len(MUTATIONS), int(rng.integers(1, 4)))]
    if text.startswith("{") or kind in WITHOUT_COLUMNS:  # this would only swap figures
        chosen = [mutation for mutation in chosen if mutation is not swap_columns]
    # A cut comes last: what adds a line end after it would make a half figure look whole.
    chosen.sort(key=lambda mutation: mutation in CUTTING)
    for mutation in chosen:
        text = mutation(text, rng)
    return text, chosen


def check(name: str, seed: int) -> bool:
    """One mutation of a sample. True if it was read, False if it was refused."""
    kind, text = KIND_OF_SAMPLE[name], sample(name)
    damaged, chosen = mutated(text, np.random.default_rng([seed, len(text)]), kind)
    label = f"{name}, seed {seed}: {', '.join(item.__name__ for item in chosen)}"
    with contextlib.suppress(InputError):
        registry.guess_kind(damaged, name)
    refusal, fact = None, None
    try:
        fact = registry.parse(damaged, name, kind)
    except InputError as error:
        refusal = error
    if refusal is not None:
        assert refusal.problems, label
        assert all(problem.message for problem in refusal.problems), label
        assert any(name in problem.path or name in refusal.source for problem in refusal.problems), label
        return False
    if isinstance(fact, PairwiseBandwidth):
        diagnose(fact)
    expected = undamaged(name)
    wrong = {
        key: (value, expected.get(key))
        for key, value in figures(fact).items()
        if not _right(key, value, expected)
    }
    if kind in SETTINGS:
        # Losing an argument or a key makes another, valid file: the framework's default is what it means.
        return True
    if wrong and (CUTTING & set(chosen) or (kind == "nccl-topology" and lose_line in chosen)):
        # What is left of a last figure or word cannot be told from a whole one, so it has to be said.
        assert warnings_of(fact), f"{label}: {wrong}"
        return True
    assert not wrong, f"{label}: {wrong}"
    return True


def _right(key: object, value: object, expected: dict[object, object]) -> bool:
    if value is None:
        return True  # not known any more, which is no wrong value
    if key in expected:
        return same(value, expected[key])
    # A table that lost the line with its unit is in its own unit.
    if isinstance(key, tuple) and key[0] is None:
        return any(
            isinstance(other, tuple)
            and other[1:] == key[1:]
            and isinstance(known, float)
            and isinstance(value, float)
            and known % value < 1e-6 * known
            for other, known in expected.items()
        )
    return False


@pytest.mark.parametrize("name", KIND_OF_SAMPLE)
def test_damaged_files(name: str) -> None:
    read = sum(check(name, seed) for seed in range(QUICK))
    assert 0 < read < QUICK  # both happen, or the mutations test nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", KIND_OF_SAMPLE)
def test_many_damaged_files(name: str) -> None:
    for seed in range(LONG):
        check(name, seed)
