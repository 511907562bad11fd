"""Errors of the estimates on a table of measured runs, counted per subset.

The list that ``accuracy --json`` prints: subsets by the column ``split_hint`` (``exclude-*`` left out), finer
rows for two of them, and ``all``. A relative error is ``estimate / measured - 1``.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipette_milp.calibration.evaluate import Estimate, estimate_run
from pipette_milp.calibration.express import express
from pipette_milp.calibration.facts import Refused
from pipette_milp.calibration.runs import Run
from pipette_milp.errors import InputError
from pipette_milp.schema.constants import CostConstants

EXCLUDED = "exclude-"
SWEEP_SIZE = 5
"""Fewest runs of one model, GPU count and global batch that make a sweep."""
LOW_MFU = 0.10


@dataclass(frozen=True)
class Judged:
    """One run beside its estimate; ``estimate`` is None for a refused run, ``reason`` says why."""

    run: Run
    estimate: Estimate | None
    reason: str = ""

    @property
    def measured_s(self) -> float | None:
        return self.run.number("measured_iter_time_s")

    @property
    def time_error(self) -> float | None:
        """Relative error of the time, None where there is nothing to compare."""
        measured = self.measured_s
        if self.estimate is None or measured is None or measured <= 0:
            return None
        return self.estimate.time_s / measured - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of the figure that the column ``mem_metric`` describes."""
        measured, metric = self.run.number("measured_peak_mem_gb"), self.run.text("mem_metric")
        if self.estimate is None or measured is None or measured <= 0 or not metric:
            return None
        return self.estimate.memory(metric) / measured - 1.0

    @property
    def out_of_memory(self) -> bool | None:
        """What the source says: True, False for a run that was timed, None where it is not known."""
        if self.run.status == "oom" or self.run.flag("oom"):
            return True
        return False if self.run.status == "ok" and self.measured_s is not None else None


def judge(
    runs: Iterable[Run],
    constants: CostConstants | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Judged]:
    """Estimates every run that is not excluded; ``progress`` is told how many are done.

    Raises:
        InputError: a field that is no number where one is needed.
    """
    judged: list[Judged] = []
    for run in runs:
        if run.subset.startswith(EXCLUDED):
            continue
        try:
            judged.append(Judged(run, estimate_run(express(run), constants)))
        except (Refused, InputError) as refusal:
            judged.append(Judged(run, None, str(refusal)))
        if progress is not None:
            progress(len(judged))
    return judged


@dataclass
class SubsetAccuracy:
    """One row of the table, names as in the contract. None where there is nothing to count."""

    subset: str
    n: int
    refused: int
    time_mape: float | None
    time_median_ape: float | None
    time_bias: float | None
    time_spearman: float | None
    memory_n: int
    memory_mape: float | None
    memory_bias: float | None
    oom: dict[str, int]
    refusals: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def accuracy_table(judged: Sequence[Judged]) -> list[SubsetAccuracy]:
    """Rows of all subsets in the order of the file, their finer rows, and "all"."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for item in judged:
        groups[item.run.subset].append(item)
        for finer in _finer(item):
            groups[finer].append(item)
    rows = [subset_accuracy(name, items) for name, items in _ordered(groups)]
    rows.append(subset_accuracy("all", judged))
    return rows


def _finer(item: Judged) -> list[str]:
    """Finer rows a run is counted in as well."""
    subset = item.run.subset
    if subset == "nanotron-h100":
        mfu = item.run.number("measured_mfu")
        return [f"{subset}:mfu>=0.10"] if mfu is not None and mfu >= LOW_MFU else []
    if subset == "bridge-dense":
        return [
            f"{subset}:h100" if item.run.text("gpu_model").upper().startswith("H100") else f"{subset}:other"
        ]
    return []


def _ordered(groups: dict[str, list[Judged]]) -> list[tuple[str, list[Judged]]]:
    """Finer rows right after their subset."""
    names = list(groups)
    subsets = [name for name in names if ":" not in name]
    finer = sorted(name for name in names if ":" in name)
    ordered = [
        entry
        for subset in subsets
        for entry in (subset, *(name for name in finer if name.split(":")[0] == subset))
    ]
    return [(name, groups[name]) for name in ordered]


def subset_accuracy(name: str, judged: Sequence[Judged]) -> SubsetAccuracy:
    """All figures of one subset."""
    time = np.array([error for item in judged if (error := item.time_error) is not None])
    memory = np.array([error for item in judged if (error := item.memory_error) is not None])
    refused = Counter(_shortened(item.reason) for item in judged if item.estimate is None)
    return SubsetAccuracy(
        subset=name,
        n=len(judged),
        refused=sum(refused.values()),
        time_mape=_mean(np.abs(time)),
        time_median_ape=float(np.median(np.abs(time))) if time.size else None,
        time_bias=_mean(time),
        time_spearman=sweep_spearman(judged),
        memory_n=int(memory.size),
        memory_mape=_mean(np.abs(memory)),
        memory_bias=_mean(memory),
        oom=_out_of_memory(judged),
        refusals=dict(refused.most_common()),
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size else None


def _shortened(reason: str) -> str:
    """A reason without its line, so that equal ones are counted together; the column stays."""
    return re.sub(r"\bline \d+, ", "", reason)


def _out_of_memory(judged: Sequence[Judged]) -> dict[str, int]:
    """Whether estimates say "does not fit" where the source says "out of memory" (positive)."""
    counts = dict.fromkeys(("true_positive", "false_positive", "true_negative", "false_negative"), 0)
    for item in judged:
        stated = item.out_of_memory
        if item.estimate is None or stated is None:
            continue
        predicted = not item.estimate.fits
        right = "true" if predicted == stated else "false"
        counts[f"{right}_{'positive' if predicted else 'negative'}"] += 1
    return counts


def sweep_spearman(judged: Sequence[Judged]) -> float | None:
    """Rank correlation of estimated and measured times: mean over sweeps weighted by their size.

    A sweep: at least `SWEEP_SIZE` runs of one subset with equal model, GPU count and global batch.
    """
    sweeps: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for item in judged:
        if item.time_error is None or item.estimate is None or item.measured_s is None:
            continue
        key = tuple(item.run.text(name) for name in ("split_hint", "model_name", "num_gpus", "global_batch"))
        sweeps[key].append((item.estimate.time_s, item.measured_s))
    total, weight = 0.0, 0
    for pairs in sweeps.values():
        if len(pairs) < SWEEP_SIZE:
            continue
        estimated, measured = np.array(pairs).T
        if np.ptp(estimated) == 0 or np.ptp(measured) == 0:
            continue
        correlation = np.corrcoef(_ranks(estimated), _ranks(measured))[0, 1]
        total += float(correlation) * len(pairs)
        weight += len(pairs)
    return total / weight if weight else None


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2.0)[inverse]
