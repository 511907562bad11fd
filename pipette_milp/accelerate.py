"""Compile numeric kernels with numba where it is installed (extra ``fast``) and they were compiled before.

Kernels are written so that the plain function is their specification: it stays reachable as ``py_func``.
Compiling all of them takes about half a minute, once on a machine: ``python -m pipette_milp.warm_up`` does it
ahead. Until then the plain functions run, so that nobody's first search spends its time limit on a compiler;
`hint` says so.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

KERNEL_MODULES = (
    "cost/placement.py",
    "simulator/compiled.py",
    "solvers/incremental.py",
    "solvers/moves.py",
    "solvers/screening_kernels.py",
    "uplinks.py",
)
"""Files with compiled kernels; a test keeps the list complete."""


def stamp() -> Path:
    """Where `pipette_milp.warm_up` notes that these sources were compiled by this numba for this machine."""
    package = Path(__file__).parent
    facts = [platform.python_version(), platform.machine(), importlib.metadata.version("numba")]
    for name in KERNEL_MODULES:
        status = (package / name).stat()
        facts += [str(package / name), str(status.st_mtime_ns), str(status.st_size)]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "pipette_milp" / f"kernels-{digest}"


def _available() -> bool:
    if importlib.util.find_spec("numba") is None or os.environ.get("PIPETTE_NO_NUMBA"):
        return False
    try:
        return bool(os.environ.get("PIPETTE_COMPILE")) or stamp().exists()
    except (OSError, RuntimeError):  # no home directory, or sources out of reach
        return False


AVAILABLE = _available()
"""Whether kernels are compiled in this process. ``PIPETTE_NO_NUMBA=1`` in the environment turns it off,
``PIPETTE_COMPILE=1`` on even if that means compiling first."""


def hint() -> str | None:
    """What a user can do for speed, or None."""
    if AVAILABLE or os.environ.get("PIPETTE_NO_NUMBA"):
        return None
    if importlib.util.find_spec("numba") is None:
        return "the search runs without compiled kernels: pip install 'pipette_milp[fast]' makes it faster"
    return (
        "the search runs without compiled kernels: `python -m pipette_milp.warm_up`, once, half a minute, "
        "makes it faster"
    )


def compiled(kernel: Kernel) -> Kernel:
    """Decorator: the kernel compiled, from the cache on disk where it is there."""
    if not AVAILABLE:
        kernel.py_func = kernel  # type: ignore[attr-defined]
        return kernel
    return _LazyKernel(kernel)  # type: ignore[return-value]


class _LazyKernel:
    """Imports numba on the first call only: that takes a second."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.py_func = kernel
        self._dispatcher: Any = None
        functools.update_wrapper(self, kernel)

    @property
    def dispatcher(self) -> Any:
        """The numba function, for kernels that call other kernels."""
        if self._dispatcher is None:
            import numba

            self._dispatcher = numba.njit(cache=True)(self.py_func)
        return self._dispatcher

    @property
    def _numba_type_(self) -> Any:
        """How numba reads this object where a compiled kernel calls it: as the function it stands for."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)
