"""How many network cards a node has and what one attains: told, measured, or nominal with the usual share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipette_milp import presets
from pipette_milp.errors import Problem
from pipette_milp.importers.fabric import Fabric
from pipette_milp.importers.merge_options import ClusterOptions, Draft
from pipette_milp.importers.nccl_xml import NcclTopology
from pipette_milp.importers.point_to_point import PointToPoint
from pipette_milp.units import GB

_TOLERANCE = 0.05
"""Relative; measured cards that differ by more are told apart."""


@dataclass(frozen=True)
class Cards:
    """Network cards of the nodes."""

    bytes_per_s: float | None
    """What one attains; None = not known."""
    line_rate_bytes_per_s: float | None
    """What one is sold with; None = not known."""
    source: str
    of_host: Mapping[str, int]
    """Ports in the fabric of every host; empty without a fabric."""

    @property
    def usual(self) -> int | None:
        """How many most hosts have."""
        return Counter(self.of_host.values()).most_common(1)[0][0] if self.of_host else None


def cards_of_cluster(
    fabrics: Sequence[Fabric],
    dumps: Sequence[NcclTopology],
    tests: Sequence[PointToPoint],
    options: ClusterOptions,
    draft: Draft,
) -> Cards:
    """What all sources together say about cards; nominal figures are scaled to what is usually attained."""
    of_host = {host: len(ports) for fabric in fabrics for host, ports in fabric.adapters_of.items()}
    rates = {
        port.bytes_per_s
        for fabric in fabrics
        for ports in fabric.adapters_of.values()
        for port in ports
        if port.bytes_per_s
    }
    source = ", ".join(fabric.source for fabric in fabrics)
    if not rates:
        rates = {
            card.bytes_per_s for dump in dumps for node in dump.cards for card in node if card.bytes_per_s
        }
        source = ", ".join(dump.source for dump in dumps)
    line = min(rates) if rates else None
    if len(rates) > 1:
        shown = ", ".join(f"{rate / GB * 8:g}" for rate in sorted(rates))
        draft.warnings.append(
            Problem(source, f"cards run at {shown} Gbit/s: the slowest figure is taken for all of them")
        )
    if options.card_bytes_per_s is not None:
        return Cards(options.card_bytes_per_s, line, "command line", of_host)
    measured = [
        value for test in tests if test.tool == "perftest" and (value := test.plateau_bytes_per_s) is not None
    ]
    if measured:
        if min(measured) < (1 - _TOLERANCE) * max(measured):
            draft.warnings.append(
                Problem(
                    "cluster.node_types.node.nics",
                    f"cards were measured at {min(measured) / GB:.1f} to {max(measured) / GB:.1f} GB/s: the "
                    f"lowest figure is taken",
                )
            )
        names = ", ".join(dict.fromkeys(test.source for test in tests if test.tool == "perftest"))
        return Cards(min(measured), line, f"measured: {names}", of_host)
    if line is None:
        return Cards(None, None, "", of_host)
    rule = presets.network_rule()
    fraction = float(rule["attained_fraction"])
    draft.warnings.append(
        Problem(
            "cluster.node_types.node.nics",
            f"is nominal: {line / GB * 8:g} Gbit/s a card, of which {fraction:g} is taken as attained",
        )
    )
    return Cards(line * fraction, line, f"nominal: {source}, times {fraction:g} ({rule['source']})", of_host)
