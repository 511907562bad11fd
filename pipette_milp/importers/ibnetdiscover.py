"""What ``ibnetdiscover`` prints: switches, adapters and the cables between them.

A block starts with its identifiers, then ``Switch`` or ``Ca`` with a name, then one line a port. Cables
between switches appear at both ends, or at one where the dump was cut down to some switches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.fabric import Adapter, Cable, Fabric
from pipette_milp.importers.text import Line, Text, clean
from pipette_milp.units import GB

KIND = "ibnetdiscover"

_LANE_GBIT = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 14.0,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Gbit/s of one lane as cards are sold; 8b/10b coding taken off up to QDR (InfiniBand specification)."""

_SWITCH = re.compile(r'Switch\s+\d+\s+"(S-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_ADAPTER = re.compile(r'(?:Ca|Rt)\s+\d+\s+"([HR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)"')
_PORT = re.compile(
    r"\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?\s*"
    r'"([SHR]-[0-9a-fA-F]+)"\[(\d+)\](?:\[ext \d+\])?(?:\([0-9a-fA-F]+\))?'
    r'\s*#\s*(?:lid \d+ lmc \d+ )?"([^"]*)"(?:\s+lid \d+)?(?:\s+(\d+)x([A-Z]+\d*))?\s*(?:[swv]=\S+\s*)*'
)
_IDENTIFIER = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=0x[0-9a-fA-F]+(?:\(.*\))?")
_HOST = re.compile(r"([A-Za-z0-9_][\w.-]*)\s+((?:mlx\d+_\w+|HCA-\d+|hfi\d+_\d+|ibp\w+|mthca\d+|qib\d+))\s*")
_ALONE = re.compile(r"[A-Za-z0-9_][\w.-]*")
_NOT_A_HOST = re.compile(r"(?i)aggregation node|quantum|switch|router|gateway")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is a print-out of ibnetdiscover."""
    return 0.95 if re.search(r'(?m)\bSwitch\s+\d+\s+"S-[0-9a-fA-F]+"', text) else 0.0


@dataclass
class _Seen:
    """What the lines say, both ends of a cable apart."""

    switches: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Descriptions of adapters."""
    rates: dict[tuple[tuple[str, int], tuple[str, int]], dict[float | None, Line]] = field(
        default_factory=dict
    )


def parse(text: str, source: str) -> Fabric:
    """The fabric.

    Raises:
        InputError: a line that cannot be read, one cable with two rates, one port with two cables; with line.
    """
    content = clean(text, source)
    seen, problems = _Seen(), list[Problem]()
    here: str | None = None
    for line in content.lines:
        words = line.text.strip()
        if not words or words.startswith(("#", "DR path")):
            continue
        if _IDENTIFIER.fullmatch(words):
            here = None
        elif match := _SWITCH.match(words):
            here = match[1]
            seen.switches[here] = _switch_name(match[2], here)
        elif match := _ADAPTER.match(words):
            here = match[1]
            seen.names[here] = match[2]
        elif match := _PORT.fullmatch(words):
            if here is None:
                problems.append(Problem(content.place(line), "a port without the switch or adapter it is of"))
                continue
            _port(here, match, line, seen)
        else:
            problems.append(Problem(content.place(line), f"cannot read {words[:60]!r}"))
    if not seen.switches and not problems:
        raise content.error('found no switch, as in: Switch 65 "S-2c..." # "name"')
    if problems:
        raise InputError(problems[:10])
    return _fabric(content, seen)


def _switch_name(description: str, guid: str) -> str:
    """``MF0;leaf-01:MQM9701/U1`` is leaf-01."""
    name = description.rsplit(";", 1)[-1].split(":")[0].strip()
    return name if _ALONE.fullmatch(name) else guid


def _port(here: str, match: re.Match[str], line: Line, seen: _Seen) -> None:
    other, description = match[2], match[4]
    if other.startswith("S-"):
        seen.switches.setdefault(other, _switch_name(description, other))
    else:
        seen.names.setdefault(other, description)
    rate = None
    if match[5]:
        lane = _LANE_GBIT.get(match[6])
        rate = None if lane is None else int(match[5]) * lane / 8 * GB
    ends = sorted(((here, int(match[1])), (other, int(match[3]))))
    seen.rates.setdefault((ends[0], ends[1]), {}).setdefault(rate, line)


def _fabric(content: Text, seen: _Seen) -> Fabric:
    problems: list[Problem] = []
    warnings: list[Problem] = []
    adapters: list[Adapter] = []
    cables: list[Cable] = []
    used: dict[tuple[str, int], tuple[tuple[str, int], tuple[str, int]]] = {}
    for ends, rates in seen.rates.items():
        line = next(iter(rates.values()))
        known = [rate for rate in rates if rate is not None]
        if len(known) > 1:
            shown = " and ".join(f"{rate / GB * 8:g} Gbit/s" for rate in known)
            problems.append(Problem(content.place(line), f"one cable has two rates: {shown}"))
        for end in ends:
            if used.setdefault(end, ends) != ends:
                problems.append(Problem(content.place(line), f"port {end[1]} of {end[0]} has two cables"))
        rate = known[0] if known else None
        switch = next((end for end in ends if end[0].startswith("S-")), None)
        other = next((end for end in ends if not end[0].startswith("S-")), None)
        if switch is None:
            continue  # two adapters back to back are no fabric
        if other is None:
            if ends[0][0] != ends[1][0]:
                cables.append(Cable(ends, rate))
            continue
        description = seen.names.get(other[0], "")
        if _NOT_A_HOST.search(description):
            continue
        host, device = _host_of(description)
        if host is None:
            warnings.append(
                Problem(
                    content.place(line),
                    f"the adapter {other[0]} is called {description!r}, which names no host: it is left out "
                    f"(set its node description, or rename it in a copy of this file)",
                )
            )
        adapters.append(Adapter(other[0], other[1], host, device, switch[0], rate))
    all_rates = [*(item.bytes_per_s for item in adapters), *(item.bytes_per_s for item in cables)]
    if None in all_rates:
        warnings.append(
            Problem(
                content.source,
                f"{all_rates.count(None)} links have no rate such as 4xNDR: they are not counted",
            )
        )
    warnings += content.cut_warnings()
    if problems:
        raise InputError(problems[:10])
    fabric = Fabric(content.source, seen.switches, tuple(adapters), tuple(cables))
    if fabric.service_hosts:
        warnings.append(
            Problem(
                content.source,
                f"{', '.join(fabric.service_hosts[:4])} hang on switches above the leaf switches: taken for "
                f"machines of the fabric's operation and left out",
            )
        )
    return Fabric(content.source, seen.switches, tuple(adapters), tuple(cables), tuple(warnings))


def _host_of(description: str) -> tuple[str | None, str]:
    """Host and device of a node description; the host is None where none is named."""
    match = _HOST.fullmatch(description.strip())
    if match is not None:
        return match[1], match[2]
    name = description.strip()
    # a single word is a host that named its card after itself, unless it is a card's model
    if _ALONE.fullmatch(name) and not re.match(r"(?i)mt\d{4}|mlx\d", name):
        return name, ""
    return None, ""
