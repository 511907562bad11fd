"""Slow nodes and slow links from pairwise measurements, and what to measure when they cannot be told.

A pair is slow when it attains less than 80 % of the good level. A node that is part of one good pair is
cleared. What is left of a slow pair after that is its cause:

* no one: both ends are cleared, so the link between them is slow;
* one end that is slow with two partners or more: that node;
* one end, seen with one partner only, or both ends: not decidable, a pair with a cleared node would tell.

Where the two directions were measured apart, sending and receiving are judged apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipette_milp.importers.facts import PairwiseBandwidth

# Healthy links of the measured 16-node cluster differ by up to 16 %; a lost lane, card or rail costs half
# or more.
SLOW_SHARE = 0.8
# More slow links than nodes is a property of the fabric (an oversubscribed level), not of single cables.
_MANY = 1.0

Port = tuple[str, str]
"""(node, "sending" | "receiving" | "both ways")"""


@dataclass(frozen=True)
class Undecided:
    """A slow pair whose cause the data do not tell."""

    suspects: tuple[Port, ...]
    pair: tuple[str, str]
    measure: tuple[tuple[str, str], ...]
    """Pairs of which any one would tell; empty when no node is known to be good."""


@dataclass(frozen=True)
class Diagnosis:
    """What is slow. Levels are in the unit of the measurements."""

    good_level: float
    slow_level: float | None
    """Median of the slow pairs, None when there are none."""
    slow_nodes: tuple[Port, ...]
    slow_links: tuple[tuple[str, str], ...]
    undecided: tuple[Undecided, ...]
    cleared: tuple[str, ...]
    """Nodes with a good pair (in both directions, where those were measured apart)."""
    unmeasured: tuple[str, ...]
    """Nodes that were measured only with a slow node, or not at all."""
    remarks: tuple[str, ...]
    """What the comments of the source do and do not explain."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is slow."""
        return self.slow_level is None

    def lines(self) -> list[str]:
        """The findings as sentences, most important first."""
        if self.healthy:
            return ["no slow node and no slow link"]
        share = f"at {self.slow_level / self.good_level:.0%} of the good level" if self.slow_level else ""
        said = [f"slow node: {node} ({way}), {share}" for node, way in self.slow_nodes]
        if len(self.slow_links) > _MANY * max(len(self.cleared), 1):
            said.append(
                f"{len(self.slow_links)} links between good nodes are slow ({share}): a level of the fabric "
                f"is thin, "
                f"rather than single links broken"
            )
        else:
            said += [f"slow link: {a} to {b}, {share}" for a, b in self.slow_links]
        for item in self.undecided:
            names = " or ".join(f"{node} ({way})" for node, way in item.suspects)
            advice = (
                "measure " + " or ".join(f"{a} with {b}" for a, b in item.measure) + " to tell"
                if item.measure
                else "no node is known to be good: measure one of them with a further node"
            )
            said.append(f"{item.pair[0]} with {item.pair[1]} is slow: {names}, or the link between; {advice}")
        if self.unmeasured:
            said.append(f"not judged, because measured only with slow nodes: {', '.join(self.unmeasured)}")
        return [*said, *self.remarks]


def diagnose(measured: PairwiseBandwidth) -> Diagnosis | None:
    """Finds what is slow; None when nothing was measured."""
    values = measured.values
    entries = [
        (int(a), int(b), float(values[a, b]))
        for a, b in np.argwhere(~np.isnan(values))
        if measured.directed or a < b
    ]
    if not entries:
        return None
    figures = np.array([value for _, _, value in entries])
    good_level = float(np.median(figures[figures >= SLOW_SHARE * figures.max()]))
    slow = figures < SLOW_SHARE * good_level

    def ports(a: int, b: int) -> tuple[Port, Port]:
        if measured.directed:
            return (measured.names[a], "sending"), (measured.names[b], "receiving")
        return (measured.names[a], "both ways"), (measured.names[b], "both ways")

    good_ports = {
        port for (a, b, _), bad in zip(entries, slow, strict=True) if not bad for port in ports(a, b)
    }
    partners: dict[Port, list[Port]] = {}
    bad_pairs = [ports(a, b) for (a, b, _), bad in zip(entries, slow, strict=True) if bad]
    for first, second in bad_pairs:
        partners.setdefault(first, []).append(second)
        partners.setdefault(second, []).append(first)

    slow_ports = {
        port
        for port, others in partners.items()
        if port not in good_ports
        and len(others) > 1
        and (
            any(other in good_ports for other in others)
            or all(len(others) > len(partners[other]) for other in others)
        )
    }
    slow_links = tuple(
        (first[0], second[0]) for first, second in bad_pairs if first in good_ports and second in good_ports
    )
    undecided = []
    for pair in bad_pairs:
        suspects = tuple(port for port in pair if port not in good_ports)
        if suspects and not slow_ports & set(pair):
            undecided.append(
                Undecided(
                    suspects,
                    (pair[0][0], pair[1][0]),
                    _measurements(suspects, pair, good_ports, partners, measured),
                )
            )
    measured_ports = good_ports | set(partners)
    suspected = {port for item in undecided for port in item.suspects}
    cleared = _cleared(measured, good_ports, measured_ports)
    blamed = {node for node, _ in slow_ports | suspected}
    return Diagnosis(
        good_level=good_level,
        slow_level=float(np.median(figures[slow])) if slow.any() else None,
        slow_nodes=_joined(slow_ports, measured),
        slow_links=slow_links,
        undecided=tuple(undecided),
        cleared=cleared,
        unmeasured=tuple(name for name in measured.names if name not in cleared and name not in blamed),
        remarks=_remarks(measured, {frozenset((a[0], b[0])) for a, b in bad_pairs}),
    )


def _measurements(
    suspects: tuple[Port, ...],
    pair: tuple[Port, Port],
    good_ports: set[Port],
    partners: dict[Port, list[Port]],
    measured: PairwiseBandwidth,
) -> tuple[tuple[str, str], ...]:
    """For each suspect the pair with a good node that has the fewest slow pairs, in order of the source."""
    wanted = []
    for suspect in suspects:
        other_way = {"sending": "receiving", "receiving": "sending"}.get(suspect[1], suspect[1])
        candidates = [
            (name, other_way)
            for name in measured.names
            if (name, other_way) in good_ports and name not in (pair[0][0], pair[1][0])
        ]
        if not candidates:
            continue
        best = min(candidates, key=lambda port: len(partners.get(port, ())))
        wanted.append((best[0], suspect[0]) if suspect[1] == "receiving" else (suspect[0], best[0]))
    return tuple(wanted)


def _cleared(measured: PairwiseBandwidth, good: set[Port], known: set[Port]) -> tuple[str, ...]:
    ways = ("sending", "receiving") if measured.directed else ("both ways",)
    return tuple(
        name
        for name in measured.names
        if any((name, way) in good for way in ways)
        and all((name, way) in good for way in ways if (name, way) in known)
    )


def _joined(ports: set[Port], measured: PairwiseBandwidth) -> tuple[Port, ...]:
    """A node slow in both directions once."""
    found: list[Port] = []
    for name in measured.names:
        ways = [way for node, way in sorted(ports) if node == name]
        if len(ways) == 2:
            found.append((name, "both ways"))
        else:
            found += [(name, way) for way in ways]
    return tuple(found)


def _remarks(measured: PairwiseBandwidth, bad: set[frozenset[str]]) -> tuple[str, ...]:
    """Whether the pairs that carry one remark are the slow ones."""
    by_remark: dict[str, list[bool]] = {}
    for a, b, remark in measured.notes:
        by_remark.setdefault(remark, []).append(frozenset((a, b)) in bad)
    said = []
    for remark, slow in by_remark.items():
        if not any(slow):
            continue
        if not all(slow):
            said.append(
                f'"{remark}" is not the cause: {slow.count(False)} of {len(slow)} pairs with it are good'
            )
        elif sum(slow) == len(bad):
            said.append(f'every slow pair is marked "{remark}", and no good one is: look there first')
    return tuple(said)
