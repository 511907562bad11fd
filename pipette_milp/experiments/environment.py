"""Where a run was done: what may explain that two figures differ."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("pipette_milp", "numpy", "numba", "highspy", "ortools", "pyomo")


@cache
def environment() -> dict[str, Any]:
    """Machine, Python, packages and revision of this process."""
    from pipette_milp import accelerate

    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "revision": _revision(),
        "compiled_kernels": accelerate.AVAILABLE,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # not installed, or run from a checkout that is not
        return None


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _revision() -> str | None:
    """Commit of the checkout this package runs from, with ``+`` where files differ from it."""
    package = Path(__file__).resolve().parents[1]
    try:
        commit = _git(package, "rev-parse", "--short=12", "HEAD")
        changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return commit + ("+" if changed else "")


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
