"""Pairwise bandwidths from several files as one matrix; contradictions are reported, not picked from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.collective import FACTOR_1, FACTOR_2, CollectiveRun
from pipette_milp.importers.facts import Measures, PairwiseBandwidth, pairwise
from pipette_milp.units import GB

# Two measurements of one directed pair that differ by more are a contradiction, not noise: repeats of one
# link
# differ by 2 % on average.
TOLERANCE = 0.05

ASK_FLOWS = (
    "does not say how many ranks per host sent at once, by which its figures differ from those of a node "
    "pair: say "
    "--simultaneous-flows K (K ranks per host ran together) or --measures node_pair (all cards together)"
)


@dataclass(frozen=True)
class Links:
    """One matrix from all sources, with what its figures mean."""

    bandwidth: PairwiseBandwidth
    sources: tuple[str, ...]
    warnings: tuple[Problem, ...]


def links_of_run(run: CollectiveRun) -> PairwiseBandwidth | None:
    """The pair of nodes that a collective measured; None without two hosts and large messages.

    A ring over two hosts passes its bus bandwidth over the pair in each direction, all cards together. In a
    send-receive ring every rank is a flow of its own.

    Raises:
        InputError: more than two hosts (one figure cannot be attributed to pairs), or a send-receive ring
            in which some ranks stay inside a host.
    """
    busbw, hosts = run.plateau_busbw_bytes_per_s, run.hosts
    if busbw is None or len(hosts) < 2:
        return None
    if len(hosts) > 2:
        raise InputError(
            Problem(
                run.place,
                f"measured {len(hosts)} hosts together, which says nothing about single pairs: run it "
                f"for two hosts at a time",
            )
        )
    measures: Measures = "node_pair"
    flows: int | None = None
    warnings: list[Problem] = list(run.warnings)
    if run.collective == "sendrecv" or run.rank_count == 2:
        crossing, inside = run.crossing_flows()
        if inside:
            raise InputError(
                Problem(
                    run.place,
                    f"sendrecv sends from each rank to the next: only {crossing} of {len(run.ranks)} flows "
                    f"leave a host here, and the figure is the mean of all; run one rank per host, or "
                    f"ranks that alternate between the hosts",
                )
            )
        measures, flows = "flow", crossing
    elif run.collective is None or run.collective in FACTOR_1 | FACTOR_2:
        warnings.append(
            Problem(
                run.place,
                "taken as what a ring passes between the two hosts in each direction (NCCL_ALGO=ring)",
            )
        )
    values = np.full((2, 2), busbw / GB)
    return pairwise(
        run.source,
        hosts,
        values,
        GB,
        "GB/s",
        measures=measures,
        simultaneous_flows=flows,
        directed=False,
        warnings=tuple(warnings),
    )


def with_meaning(
    measured: PairwiseBandwidth, measures: Measures | None, flows: int | None
) -> PairwiseBandwidth:
    """The same figures with what they stand for, as the caller says.

    Raises:
        InputError: the caller does not say it, or says two things.
    """
    if measures is None and flows is None:
        raise InputError(Problem(measured.source, ASK_FLOWS))
    if (measures == "node_pair") == (flows is not None):
        raise InputError("--measures flow needs --simultaneous-flows, and node_pair excludes it")
    return replace(measured, measures=measures or "flow", simultaneous_flows=flows)


def _meaning(measured: PairwiseBandwidth) -> str:
    if measured.measures == "node_pair":
        return "whole node pairs"
    return f"{measured.simultaneous_flows} simultaneous flows per pair of hosts"


def merge_links(
    sources: Sequence[PairwiseBandwidth], measures: Measures | None = None, flows: int | None = None
) -> Links:
    """All sources as one matrix over all their nodes, in order of first appearance.

    Sources that mean the same are kept in their meaning; a mixture is converted to whole node pairs. Pairs
    that no source measured stay nan; the mean counts where several agree within 5 %.

    Raises:
        InputError: a unit or a meaning is not known, or two sources contradict each other; all of it at once.
    """
    problems: list[Problem] = []
    meant: list[PairwiseBandwidth] = []
    for measured in sources:
        if measured.unit is None:
            problems.append(
                Problem(measured.source, "does not state the unit of its figures: say --unit, as in GB/s")
            )
        try:
            meant.append(with_meaning(measured, measures, flows) if measured.measures is None else measured)
        except InputError as error:
            problems += error.problems
    given = (measures or ("flow" if flows is not None else None), flows)
    if given[0] is not None and all(item.measures is not None for item in sources):
        problems += [
            Problem(
                item.source,
                f"the log itself shows {_meaning(item)}: leave --measures and --simultaneous-flows out",
            )
            for item in sources
            if (item.measures, item.simultaneous_flows) != given
        ]
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    meanings = {(item.measures, item.simultaneous_flows) for item in meant}
    mixed = len(meanings) > 1
    names = tuple(dict.fromkeys(name for item in meant for name in item.names))
    n = len(names)
    total, count = np.zeros((n, n)), np.zeros((n, n))
    first: dict[tuple[int, int], tuple[float, str]] = {}
    for item in meant:
        index = [names.index(name) for name in item.names]
        factor = float(item.simultaneous_flows or 1) if mixed else 1.0
        for a, b in np.argwhere(~np.isnan(item.values)):
            key, value = (index[a], index[b]), float(item.values[a, b]) * factor
            if key in first and abs(first[key][0] - value) > TOLERANCE * max(first[key][0], value):
                problems.append(
                    Problem(
                        item.source,
                        f"{names[key[0]]} to {names[key[1]]} is {value / GB:.3f} GB/s, but "
                        f"{first[key][0] / GB:.3f} GB/s "
                        f"in {first[key][1]}",
                    )
                )
            first.setdefault(key, (value, item.source))
            total[key] += value
            count[key] += 1
    if problems:
        raise InputError(problems)
    values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    warnings = [warning for item in meant for warning in item.warnings]
    if mixed:
        shown = "; ".join(f"{item.source}: {_meaning(item)}" for item in meant)
        warnings.append(
            Problem("", f"sources mean different things and were converted to whole node pairs ({shown})")
        )
    kept = ("node_pair", None) if mixed else next(iter(meanings))
    merged = PairwiseBandwidth(
        source=", ".join(dict.fromkeys(item.source for item in meant)),
        names=names,
        values=values,
        unit="B/s",
        measures=kept[0],
        simultaneous_flows=kept[1],
        directed=any(item.directed for item in meant),
        notes=tuple(note for item in meant for note in item.notes),
        warnings=tuple(warnings),
    )
    return Links(merged, tuple(item.source for item in meant), tuple(warnings))
