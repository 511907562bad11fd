"""Compile a numeric kernel with numba where it is installed (extra ``fast``); else leave it as it is.

Kernels are written so that the plain function is their specification: it stays reachable as ``py_func``.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any, TypeVar

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

AVAILABLE = importlib.util.find_spec("numba") is not None and not os.environ.get("PIPETTE_NO_NUMBA")
"""Whether kernels get compiled; ``PIPETTE_NO_NUMBA=1`` in the environment turns it off."""


def compiled(kernel: Kernel) -> Kernel:
    """Decorator: the kernel compiled on its first call (importing numba takes a second), cached on disk."""
    if not AVAILABLE:
        kernel.py_func = kernel  # type: ignore[attr-defined]
        return kernel
    return _LazyKernel(kernel)  # type: ignore[return-value]


class _LazyKernel:
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
