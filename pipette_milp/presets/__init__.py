"""GPU types, scale-up links and models everybody knows, as data files with their sources.

Names are matched exactly (upper and lower case aside): a name that could mean several things, such as
"a100" or "gpt", is refused with the choices.
"""

from __future__ import annotations

import difflib
import json
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
