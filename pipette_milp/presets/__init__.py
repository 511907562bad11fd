"""GPU types, scale-up links and models everybody knows, as data files with their sources.

Names are matched exactly (upper and lower case aside): a name that could mean several things, such as
"a100" or "gpt", is refused with the choices.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pipette_milp.errors import InputError

KINDS = {"gpu": "gpus.json", "model": "models.json"}


@cache
def _data(file: str) -> dict[str, Any]:
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def presets(kind: str) -> dict[str, dict[str, Any]]:
    """All presets of a kind ("gpu" or "model") by name; every one has a ``source``."""
    return _data(KINDS[kind])


@dataclass(frozen=True)
class Chip:
    """What the data sheet says about a GPU beyond peak and bandwidth."""

    architecture: str
    multiprocessors: int
    exponentials_per_s: float | None = None
    """Of its special-function units: 16 a clock and multiprocessor (CUDA C programming guide, throughput of
    arithmetic instructions), 32 on Blackwell Ultra (5 and 10.7 TExp/s of GB200 and GB300 at verda.com,
    gb300-nvl72-architecture). The clock is that of the fp32 peak. None for GPUs without fused attention."""


@cache
def chip(gpu_name: str) -> Chip | None:
    """Chip of a GPU by the name its type has in an instance; None for names that are no preset's.

    Variants share the chip, so an unknown name counts when it begins with the model of exactly one chip
    ("A100-SXM4-64GB").
    """
    wanted = gpu_name.strip().lower()
    known = presets("gpu")
    names = {
        alias.lower(): preset
        for canonical, preset in known.items()
        for alias in (canonical, preset["name"], *preset.get("aliases", ()))
    }
    found = [names[wanted]] if wanted in names else []
    if not found:
        family = wanted.replace("_", "-").replace(" ", "-").split("-")[0]
        found = [preset for canonical, preset in known.items() if canonical.split("-")[0] == family]
    chips = {
        Chip(preset["architecture"], preset["multiprocessors"], preset.get("exponentials_per_s"))
        for preset in found
    }
    if not chips:
        return None
    # PCIe and SXM parts of one chip differ in the multiprocessors that are switched on
    return max(chips, key=lambda item: item.multiprocessors)


def scale_up(name: str) -> dict[str, str]:
    """``nominal`` and ``attained`` bandwidth of one GPU in one direction, ``latency`` and ``source``."""
    links: dict[str, str] = _data("links.json")["scale_up"][name]
    return links


def network_rule() -> dict[str, Any]:
    """``attained_fraction`` of a card's line rate, ``latency`` and ``source``."""
    rule: dict[str, Any] = _data("links.json")["network"]
    return rule


def find_preset(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Canonical name and content of a preset.

    Raises:
        InputError: unknown or ambiguous; the message lists what it could mean.
    """
    wanted = name.strip().lower()
    known = presets(kind)
    for canonical, preset in known.items():
        names = (canonical, str(preset.get("name", canonical)), *preset.get("aliases", ()))
        if wanted in (item.lower() for item in names):
            return canonical, preset
    matching = [item for item in known if wanted and wanted in item]
    if matching:
        raise InputError(f"{kind} {name!r} is ambiguous, choose from {', '.join(matching)}")
    close = difflib.get_close_matches(wanted, known, n=5, cutoff=0.5)
    raise InputError(f"unknown {kind} {name!r}, choose from {', '.join(close or known)}")
