"""What is told beside the files, and what is gathered while they are merged."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipette_milp.errors import Problem
from pipette_milp.importers.facts import Measures


@dataclass(frozen=True)
class ClusterOptions:
    """What the files do not say. SI units, None = not given."""

    gpu_type: str | None = None
    """Name of a GPU preset."""
    gpus_per_node: int | None = None
    hosts: tuple[str, ...] = ()
    """Names of the nodes where no file has them, in the order of GPU ids."""
    measures: Measures | None = None
    simultaneous_flows: int | None = None
    latency_s: float | None = None
    intra_node_bytes_per_s: float | None = None
    card_bytes_per_s: float | None = None
    """What one network card attains."""
    oversubscription: float | None = None
    """Bandwidth of the nodes below a switch over that of its uplinks, where only the groups are known."""


@dataclass
class Draft:
    """Everything to say about a merge."""

    problems: list[Problem] = field(default_factory=list)
    missing: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    provenance: dict[str, str] = field(default_factory=dict)
