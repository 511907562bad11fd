"""NCCL's topology dump (``NCCL_TOPO_DUMP_FILE``; RCCL's too): one node, or the nodes of one NVLink domain.

Nesting says how devices are joined: below one PCIe switch PIX, below several PXB, below one CPU PHB, else
SYS. NVLinks go to other GPUs or to switches (class 0x0680), which join all GPUs alike.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.node_topology import Link, NodeTopology
from pipette_milp.importers.text import clean
from pipette_milp.units import GB

KIND = "nccl-topology"

_SWITCH_CLASS = "0x0680"
_MBIT = GB / 8000  # bytes/s
_MOST_ELEMENTS = 100_000


@dataclass(frozen=True)
class Card:
    """A network card as NCCL sees it."""

    name: str
    bytes_per_s: float
    """Line rate in one direction."""
    latency_s: float
    gpu_direct: bool | None
    """None where the file does not say."""


@dataclass(frozen=True)
class NcclTopology:
    """What one dump says."""

    source: str
    nodes: tuple[NodeTopology, ...]
    """One, or one for every host of an NVLink domain."""
    cards: tuple[tuple[Card, ...], ...]
    """[node][card] as in ``nodes[.].nics``."""
    compute_capability: tuple[int | str, ...]
    """[GPU of the first node] such as 90, or gfx942 (RCCL)."""
    nvlinks: tuple[tuple[int, int], ...]
    """[GPU of the first node] (links, switches they go to); switches 0 = to other GPUs."""
    warnings: tuple[Problem, ...] = ()

    @property
    def is_domain(self) -> bool:
        """Whether several hosts share NVLink."""
        return len(self.nodes) > 1


@dataclass(frozen=True)
class _Device:
    element: ElementTree.Element
    path: tuple[int, ...]
    """Indices of the PCI devices and, first, the CPU above it."""
    bus: str


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a topology dump."""
    start = text.lstrip("\ufeff \t\r\n")[:2000]
    return 0.95 if re.search(r"<system\b[^>]*>", start) and ("<cpu" in text or "<pci" in text) else 0.0


def parse(text: str, source: str) -> NcclTopology:
    """The topology.

    Raises:
        InputError: not XML (with line and column), no GPU, or attributes that are no numbers.
    """
    plain = "\n".join(line.text for line in clean(text, source).lines).strip("\ufeff \n\t")
    if "<!DOCTYPE" in plain or "<!ENTITY" in plain:
        raise InputError(Problem(source, "has a document type, which a topology dump never has"))
    try:
        root = ElementTree.fromstring(plain)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise InputError(Problem(f"{source}:{line}:{column + 1}", f"is not XML: {error}")) from None
    if root.tag != "system":
        raise InputError(Problem(source, f"expected <system>, got <{root.tag}>"))
    if sum(1 for _ in root.iter()) > _MOST_ELEMENTS:
        raise InputError(Problem(source, f"has more than {_MOST_ELEMENTS} elements"))
    return _Reading(root, source).topology()


class _Reading:
    def __init__(self, root: ElementTree.Element, source: str) -> None:
        self.root, self.source = root, source
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    def topology(self) -> NcclTopology:
        hosts: dict[str, list[tuple[int, ElementTree.Element]]] = {}
        for index, cpu in enumerate(self.root.findall("cpu")):
            hosts.setdefault(cpu.get("host_hash", ""), []).append((index, cpu))
        nodes, cards, first = [], [], None
        for hash_, cpus in hosts.items():
            gpus = [item for index, cpu in cpus for item in _devices(cpu, (index,), "gpu")]
            nets = [item for index, cpu in cpus for item in _devices(cpu, (index,), "net")]
            if not gpus:
                continue
            gpus.sort(key=lambda item: self.whole(item.element, "dev", 0))
            nodes.append(self._node(gpus, nets, dict(cpus), hash_))
            cards.append(tuple(self._card(item.element) for item in nets))
            first = first or gpus
        if first is None and not self.problems:
            raise InputError(Problem(self.source, "has no <gpu>: dump it after NCCL has started"))
        capabilities = tuple(self._capability(item.element) for item in first or [])
        links = tuple(self._nvlinks(item.element) for item in first or [])
        if len({count for count, _ in links}) > 1:
            shown = ", ".join(str(count) for count, _ in links)
            self.warnings.append(
                Problem(self.source, f"GPUs have {shown} NVLinks: is a link down, or a line missing here?")
            )
        if len(nodes) > 1:
            self.warnings.append(
                Problem(
                    self.source,
                    f"{len(nodes)} hosts share one NVLink domain, which is not supported yet: they are taken "
                    f"for separate nodes",
                )
            )
        if self.problems:
            raise InputError(self.problems[:10])
        return NcclTopology(
            self.source, tuple(nodes), tuple(cards), capabilities, links, tuple(dict.fromkeys(self.warnings))
        )

    def whole(self, element: ElementTree.Element, name: str, default: int) -> int:
        """A whole number of an attribute."""
        text = element.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"\d{1,9}", text):
            self.problems.append(
                Problem(self.source, f"<{element.tag} {name}>: expected a whole number, got {text[:40]!r}")
            )
            return default
        return int(text)

    def number(self, element: ElementTree.Element, name: str) -> float:
        """A number of an attribute, 0 where it is absent."""
        text = element.get(name, "0")
        if not re.fullmatch(r"\d{1,12}(?:\.\d*)?(?:[eE][+-]?\d{1,2})?", text):
            self.problems.append(
                Problem(self.source, f"<{element.tag} {name}>: expected a number, got {text[:40]!r}")
            )
            return 0.0
        return float(text)

    def _capability(self, gpu: ElementTree.Element) -> int | str:
        return gpu.get("gcn") or self.whole(gpu, "sm", 0)

    def _card(self, net: ElementTree.Element) -> Card:
        gdr = net.get("gdr")
        card = Card(
            name=net.get("name", "?"),
            bytes_per_s=self.number(net, "speed") * _MBIT,
            latency_s=self.number(net, "latency") * 1e-6,
            gpu_direct=None if gdr is None else gdr == "1",
        )
        if card.gpu_direct is False:
            self.warnings.append(
                Problem(
                    self.source,
                    f"{card.name} has no GPUDirect (gdr=0): transfers go through host memory, measure "
                    f"what they attain",
                )
            )
        if card.bytes_per_s <= 0:
            self.warnings.append(Problem(self.source, f"{card.name} has no speed"))
        return card

    def _nvlinks(self, gpu: ElementTree.Element) -> tuple[int, int]:
        to_switches = [item for item in _links(gpu) if item.get("tclass", "").startswith(_SWITCH_CLASS)]
        total = sum(self.whole(item, "count", 1) for item in _links(gpu))
        return total, len({item.get("target") for item in to_switches})

    def _node(
        self,
        gpus: list[_Device],
        nets: list[_Device],
        cpus: dict[int, ElementTree.Element],
        hash_: str,
    ) -> NodeTopology:
        indices = [self.whole(item.element, "dev", position) for position, item in enumerate(gpus)]
        if len(set(indices)) < len(indices):
            self.problems.append(Problem(self.source, f"two GPUs have the number dev={indices[0]}"))
        if sorted(indices) != list(range(len(indices))):
            self.warnings.append(
                Problem(
                    self.source,
                    f"has GPU {', '.join(map(str, indices))} of a node, not those before: a fragment?",
                )
            )
        bus = {item.bus: position for position, item in enumerate(gpus)}
        direct: dict[tuple[int, int], int] = {}
        switched = [0] * len(gpus)
        for position, item in enumerate(gpus):
            for link in _links(item.element):
                count, target = self.whole(link, "count", 1), bus.get(link.get("target", "").lower())
                if link.get("tclass", "").startswith(_SWITCH_CLASS):
                    switched[position] += count
                elif target is not None:
                    direct[position, target] = direct.get((position, target), 0) + count

        def between(a: int, b: int) -> Link:
            links = max(direct.get((a, b), 0), direct.get((b, a), 0)) or min(switched[a], switched[b])
            return Link("NVLINK", links) if links else Link(_path(gpus[a], gpus[b]))

        affinity = [self._numa(cpus[item.path[0]]) for item in gpus]
        everyone = range(len(gpus))
        names = [item.element.get("name", "?") for item in nets]
        return NodeTopology(
            source=f"{self.source} (host {hash_})" if hash_ else self.source,
            gpus=tuple(indices),
            gpu_links=tuple(tuple(None if a == b else between(a, b) for b in everyone) for a in everyone),
            nics=tuple(names),
            nic_columns=tuple(names),
            nic_links=tuple(tuple(Link(_path(gpu, net)) for net in nets) for gpu in gpus),
            nic_nic_links=tuple(
                tuple(None if one is other else Link(_path(one, other)) for other in nets) for one in nets
            ),
            cpu_affinity=(None,) * len(gpus),
            numa_affinity=tuple(affinity),
            peer_access=None,
        )

    def _numa(self, cpu: ElementTree.Element) -> str | None:
        text = cpu.get("numaid")
        return text if text is not None and re.fullmatch(r"\d+", text) else None


def _links(gpu: ElementTree.Element) -> list[ElementTree.Element]:
    """NVLinks, or xGMI links of AMD cards."""
    return [*gpu.findall("nvlink"), *gpu.findall("xgmi")]


def _devices(
    element: ElementTree.Element, path: tuple[int, ...], tag: str, bus: str = ""
) -> Iterator[_Device]:
    for index, child in enumerate(element):
        if child.tag == tag:
            yield _Device(child, path, bus)
        elif child.tag == "pci":
            yield from _devices(child, (*path, index), tag, child.get("busid", "").lower())
        elif child.tag == "nic":
            yield from _devices(child, path, tag, bus)


def _path(one: _Device, other: _Device) -> str:
    """Class of the path between two devices; the last element of a path is the device itself."""
    common = 0
    for a, b in zip(one.path, other.path, strict=False):
        if a != b:
            break
        common += 1
    if common == 0:
        return "SYS"
    if common == 1:
        return "PHB"
    # bridges that lie between the devices and the switch they share
    between = len(one.path) - 1 - common + len(other.path) - 1 - common
    return "PIX" if between <= 0 else "PXB"
