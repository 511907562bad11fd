"""``nvidia-smi topo -m``: how the GPUs of a node are joined, and which card is near which GPU.

There is no formal specification. Columns are found by their names and a row by its first cell, so that newer
columns, device names instead of NIC numbers, doubled tabs and blanks for tabs do not shift values.
Link classes: nvidia-smi's own legend. `nvidia-smi topo -p2p` prints another matrix of the same shape; it says
whether GPUs may copy to each other, and is read as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipette_milp.errors import InputError, Problem
from pipette_milp.importers.node_topology import Link, NodeTopology
from pipette_milp.importers.text import Cell, Line, Text, clean

KIND = "nvidia-smi-topo"

_LINK = re.compile(r"NV(\d+)|PIX|PXB|PHB|NODE|SYS|SOC|X")
_GPU = re.compile(r"GPU(\d+)")
_PEER_STATES = frozenset({"OK", "GNS", "CNS", "TNS", "NS", "DR", "U", "X"})
_AFFINITY_NAMES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
# Words that the affinity columns contribute to a header whose tabs have become blanks.
_AFFINITY_WORDS = frozenset({"CPU", "NUMA", "GPU", "Affinity", "ID"})
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")


def detect(text: str) -> float:
    """Confidence in 0..1 that this is `nvidia-smi topo -m`."""
    for line in clean(text, "").lines:
        words = line.text.split()
        if len(words) > 1 and _GPU.fullmatch(words[0]) and any(_is_link(word) for word in words[1:]):
            return 0.95
    return 0.0


def _is_link(word: str) -> bool:
    return _LINK.fullmatch(word) is not None


@dataclass(frozen=True)
class _Header:
    line: Line
    devices: tuple[str, ...]
    affinities: tuple[str, ...]
    separator: str | None
    """None: blanks, the tabs are lost."""


def parse(text: str, source: str) -> NodeTopology:
    """Reads the topology matrix and, where present, the NIC legend and a peer-access matrix.

    Raises:
        InputError: no matrix, a row of a GPU missing or cut, an unknown link class, rows that contradict each
            other; each with line and column.
    """
    content = clean(text, source)
    tables = _tables(content)
    matrices = [table for table in tables if not _is_peer_table(table)]
    if not matrices:
        if tables:
            raise content.error(
                "this is the peer-access matrix of `nvidia-smi topo -p2p`, which has no link classes; the "
                "topology "
                "is what `nvidia-smi topo -m` prints",
                tables[0][0].line,
            )
        raise content.error("found no header line with GPU0, as `nvidia-smi topo -m` prints it")
    if len(matrices) > 1:
        raise content.error(
            "a second topology matrix starts here: give one file per node", matrices[1][0].line
        )
    header, rows = matrices[0]
    warnings: list[Problem] = []
    gpus = [name for name in header.devices if _GPU.fullmatch(name)]
    nic_columns = [name for name in header.devices if not _GPU.fullmatch(name)]
    missing = [name for name in gpus if name not in rows]
    if missing:
        raise content.error(
            f"the rows of {', '.join(missing)} are missing: the output is cut, run `nvidia-smi topo -m` "
            f"again",
            list(rows.values())[-1][0] if rows else header.line,
        )
    gpus.sort(key=lambda name: int(name[3:]))

    links: dict[tuple[str, str], Link | None] = {}
    affinity: dict[str, dict[str, str | None]] = {}
    for name, (line, cells) in rows.items():
        if name not in header.devices:
            raise content.error(f"row {name!r} has no column in the header", line)
        row, rest = _row_links(header, name, line, cells, content, cut_allowed=name not in gpus)
        if row is None:
            warnings.append(
                Problem(
                    content.place(line), f"the row of {name} is cut, its entries are taken from the GPU rows"
                )
            )
            continue
        links.update({(name, other): link for other, link in row.items()})
        affinity[name] = _row_affinity(header, rest, content, warnings)
    _check_symmetry(links, rows, content)
    last = content.lines[-1]
    if not content.complete and any(line is last for line, _ in rows.values()):
        warnings.append(
            Problem(content.place(last), "the file ends inside this row, its last value may be cut")
        )
    absent = [name for name in nic_columns if name not in rows]
    if absent:
        warnings.append(
            Problem(
                content.place(list(rows.values())[-1][0]),
                f"the rows of {', '.join(absent)} are missing; the distances to the GPUs are taken from the "
                f"GPU rows",
            )
        )
    legend = _legend(content)
    return NodeTopology(
        source=source,
        gpus=tuple(int(name[3:]) for name in gpus),
        gpu_links=tuple(tuple(links[a, b] for b in gpus) for a in gpus),
        nics=tuple(legend.get(name, name) for name in nic_columns),
        nic_columns=tuple(nic_columns),
        nic_links=tuple(tuple(_present(links[a, c]) for c in nic_columns) for a in gpus),
        nic_nic_links=tuple(
            tuple(links.get((a, b), links.get((b, a))) if a != b else None for b in nic_columns)
            for a in nic_columns
        ),
        cpu_affinity=tuple(affinity[name].get("CPU Affinity") for name in gpus),
        numa_affinity=tuple(affinity[name].get("NUMA Affinity") for name in gpus),
        peer_access=_peer_access(tables, gpus, content),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _present(link: Link | None) -> Link:
    if link is None:
        raise ValueError("a GPU and a network card are one device")
    return link


_Table = tuple[_Header, dict[str, tuple[Line, list[Cell]]]]


def _tables(content: Text) -> list[_Table]:
    """Every block of a header line and the rows below it."""
    tables: list[_Table] = []
    for line in content.lines:
        words = line.text.split()
        if not words:
            continue
        header = _header(line, content)
        if header is not None:
            tables.append((header, {}))
        elif (tables and words[0] in tables[-1][0].devices) or (tables and _GPU.fullmatch(words[0])):
            rows = tables[-1][1]
            if words[0] in rows:
                raise content.error(
                    f"the row of {words[0]} occurs twice, first on line {rows[words[0]][0].number}", line
                )
            rows[words[0]] = (line, _cells(line, tables[-1][0]))
    return tables


def _cells(line: Line, header: _Header) -> list[Cell]:
    """Cells of a row after its name."""
    if header.separator is None or header.separator not in line.text:
        return line.cells()[1:]
    cells = line.split(header.separator)
    while cells and not cells[0].text:
        cells.pop(0)
    return cells[1:]


def _header(line: Line, content: Text) -> _Header | None:
    words = line.text.split()
    gpus = [word for word in words if _GPU.fullmatch(word)]
    if not gpus or any(_is_link(word) or word in _PEER_STATES for word in words):
        return None
    if not _GPU.fullmatch(words[0]) and "GPU" not in words[0] and not gpus:
        return None
    if "\t" in line.text:
        names = [cell.text for cell in line.split("\t") if cell.text]
        separator: str | None = "\t"
    else:
        text = line.text
        for name in _AFFINITY_NAMES:
            text = re.sub(r"\s+".join(name.split()), name.replace(" ", "_"), text)
        names = [
            word.replace("_", " ") if word.replace("_", " ") in _AFFINITY_NAMES else word
            for word in text.split()
        ]
        separator = None
    affinities = [name for name in names if name in _AFFINITY_NAMES]
    devices = [name for name in names if name not in _AFFINITY_NAMES]
    # Columns that are neither: only what can be a device name.
    odd = [name for name in devices if not re.fullmatch(r"GPU\d+|NIC\d+|[A-Za-z][\w.:-]*", name)]
    if odd or any(name in _AFFINITY_WORDS for name in devices):
        raise content.error(f"cannot read the header: {' '.join(odd) or 'a column name is cut'}", line)
    repeated = sorted({name for name in devices if devices.count(name) > 1})
    if repeated:
        raise content.error(f"column {', '.join(repeated)} occurs twice in the header", line)
    numbers = sorted(int(name[3:]) for name in gpus)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise content.error(
            f"the header names {len(gpus)} GPUs that are not consecutive: a column is missing", line
        )
    return _Header(line, tuple(devices), tuple(affinities), separator)


def _is_peer_table(table: _Table) -> bool:
    words = [cell.text for _, cells in table[1].values() for cell in cells if cell.text]
    return bool(words) and all(word in _PEER_STATES for word in words) and any(word != "X" for word in words)


def _row_links(
    header: _Header, name: str, line: Line, cells: list[Cell], content: Text, cut_allowed: bool
) -> tuple[dict[str, Link | None] | None, list[Cell]]:
    """Links of one row by column name, and the cells after them. None: the row is cut."""
    if len([cell for cell in cells if cell.text]) < len(header.devices):
        if cut_allowed:
            return None, []
        raise content.error(
            f"the row of {name} has {len(cells)} cells for {len(header.devices)} devices: it is cut", line
        )
    row: dict[str, Link | None] = {}
    for other, cell in zip(header.devices, cells, strict=False):
        match = _LINK.fullmatch(cell.text)
        if match is None:
            raise content.error(
                f"{name} to {other}: expected X, NV<number>, PIX, PXB, PHB, NODE or SYS, got {cell.text!r}",
                cell,
            )
        if (match[0] == "X") != (other == name):
            raise content.error(
                f"{name} to {other}: "
                f"{'X is only for a device and itself' if match[0] == 'X' else 'expected X'}",
                cell,
            )
        if match[1] is not None and int(match[1]) == 0:
            raise content.error(f"{name} to {other}: NV0 is no link", cell)
        if match[0] == "X":
            row[other] = None
        elif match[1] is not None:
            row[other] = Link("NVLINK", int(match[1]))
        else:
            row[other] = Link("SYS" if match[0] == "SOC" else match[0])
    rest = cells[len(header.devices) :]
    surplus = next((cell for cell in rest if _is_link(cell.text)), None)
    if surplus is not None:
        raise content.error(f"the row of {name} has more link cells than the header has devices", surplus)
    return row, rest


def _row_affinity(
    header: _Header, cells: list[Cell], content: Text, warnings: list[Problem]
) -> dict[str, str | None]:
    """Values of the affinity columns. The driver doubles the tab before some, so empty cells are skipped."""
    if list(header.affinities) != [name for name in _AFFINITY_NAMES if name in header.affinities]:
        # With cells to skip, only the driver's own order says which value is which.
        where = content.place(header.line)
        warnings.append(Problem(where, "affinity columns are in another order than the driver's: left out"))
        return {}
    filled = [cell for cell in cells if cell.text]
    values = {
        name: None if cell.text.upper() == "N/A" else cell.text
        for name, cell in zip(header.affinities, filled, strict=False)
    }
    cpus, numa = _size_of(values.get("CPU Affinity")), _size_of(values.get("NUMA Affinity"))
    if numa is not None and "CPU Affinity" in values and numa > (cpus or 0):
        where = filled[0].at(content.source)
        warnings.append(
            Problem(where, "a GPU near more NUMA nodes than CPUs cannot be: affinities of this row left out")
        )
        return {}
    return values


def _size_of(ranges: str | None) -> int | None:
    """Members of a list such as "0-47,96-143"; None where it is none."""
    if ranges is None or not re.fullmatch(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", ranges):
        return None
    ends = [part.split("-") for part in ranges.split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def _check_symmetry(
    links: dict[tuple[str, str], Link | None], rows: dict[str, tuple[Line, list[Cell]]], content: Text
) -> None:
    wrong = [
        Problem(
            content.place(rows[a][0]),
            f"{a} to {b} is {_shown(link)}, but the row of {b} says {_shown(links[b, a])}",
        )
        for (a, b), link in links.items()
        if a < b and (b, a) in links and links[b, a] != link
    ]
    if wrong:
        raise InputError(wrong)


def _shown(link: Link | None) -> str:
    if link is None:
        return "X"
    return f"NV{link.nvlinks}" if link.path == "NVLINK" else link.path


def _legend(content: Text) -> dict[str, str]:
    names: dict[str, str] = {}
    for line in content.lines:
        match = _LEGEND.fullmatch(line.text)
        if match:
            if names.get(match[1], match[2]) != match[2]:
                raise content.error(f"{match[1]} is both {names[match[1]]} and {match[2]}", line)
            names[match[1]] = match[2]
    return names


def _peer_access(
    tables: list[_Table], gpus: list[str], content: Text
) -> tuple[tuple[bool | None, ...], ...] | None:
    for header, rows in tables:
        if not _is_peer_table((header, rows)):
            continue
        if set(header.devices) != set(gpus) or set(rows) != set(gpus):
            raise content.error("the peer-access matrix has other GPUs than the topology", header.line)
        states: dict[tuple[str, str], bool | None] = {}
        for a, (line, cells) in rows.items():
            filled = [cell.text for cell in cells if cell.text]
            if len(filled) != len(gpus):
                raise content.error(f"the row of {a} has {len(filled)} cells for {len(gpus)} GPUs", line)
            for b, state in zip(header.devices, filled, strict=True):
                states[a, b] = None if state in ("X", "U") else state == "OK"
        return tuple(tuple(states[a, b] for b in gpus) for a in gpus)
    return None
