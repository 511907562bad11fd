"""Compute as real matrix products that would take a given time on an idle device."""

from __future__ import annotations

import time
from typing import Any

SIDE = {"cpu": 256, "cuda": 4096}
"""Rows and columns of one product: long enough for the device, short beside a task."""
CALIBRATION_S = 0.2


class MatrixWork:
    """Square products, counted out by how long one takes."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch = torch
        self.device = device
        side = SIDE[device.type]
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._left = torch.ones(side, side, dtype=dtype, device=device)
        self._out = torch.empty_like(self._left)
        self.seconds_per_product = 0.0

    def calibrate(self) -> None:
        """Time products for `CALIBRATION_S`."""
        self._products(3)
        count = 1
        while True:
            start = time.monotonic()
            self._products(count)
            elapsed = time.monotonic() - start
            if elapsed >= CALIBRATION_S:
                break
            count *= 2
        self.seconds_per_product = elapsed / count

    def run(self, seconds: float) -> None:
        """As many products as fit into ``seconds``."""
        self._products(round(seconds / self.seconds_per_product))

    def _products(self, count: int) -> None:
        for _ in range(count):
            self.torch.mm(self._left, self._left, out=self._out)
        if self.device.type == "cuda":
            self.torch.cuda.current_stream(self.device).synchronize()
