"""Time of one matrix product from its shape: a roofline over tensor cores and memory, with what shapes cost.

* Tiles: a product is computed in tiles of at most 256 x 128, one multiprocessor each at a time; the last
  wave may be nearly empty. Smaller tiles fill it better and reuse their operands less. A product with few
  tiles divides its inner dimension over the idle multiprocessors.
* Inner dimension: loading a tile's first operands and storing its result takes ``tile_s`` besides the
  arithmetic. It is a time, set by the latency of device memory, so it weighs more the faster a multiprocessor
  computes and the fewer inner elements a tile has.
* Alignment: tensor-core kernels want multiples of 64 elements; each missing factor of two loses
  ``misalignment``.

Facts on tiles and alignment: NVIDIA, "Matrix Multiplication Background" (deep learning performance guide).
The figures are fitted (`CostConstants`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from pipette_milp.cluster import GpuType
from pipette_milp.presets import Chip, chip
from pipette_milp.schema.constants import CostConstants

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (128, 64, 0.75), (64, 64, 0.55))
"""Rows, columns and relative speed of the tiles that libraries choose from: operands are reused in
proportion to the tile's sides, so smaller ones wait more for memory (figures after the guide's table of
tile sizes)."""
TENSOR_CORE_WIDTH = 8
"""Elements that rows of 16-bit operands must be a multiple of (16 bytes) for tensor cores: head width 108
costs a whole model 40 % (BigScience's runs 113 and 116 beside 111 and 114)."""
PLAIN_SHARE = 16
"""Tensor-core peak over fp32 peak where a data sheet does not give the latter (312 / 19.5 on an A100)."""
WHOLE = 64
"""Elements a dimension should be a multiple of."""
LEAST_DEPTH = 512
"""Inner elements each part keeps when a product is divided along its inner dimension."""
USUAL_MULTIPROCESSORS = 128
"""Of a GPU whose data sheet is not known, for the speed of one: what large GPUs have had since 2020 (108 to
152)."""


@dataclass(frozen=True)
class Products:
    """Matrix products and element-wise traffic on one GPU type at one precision."""

    gpu: GpuType
    precision: str
    element_bytes: float
    constants: CostConstants

    @cached_property
    def chip(self) -> Chip | None:
        return chip(self.gpu.name)

    @cached_property
    def attained_flop_per_s(self) -> float:
        """Of large, aligned products."""
        architecture = self.chip.architecture if self.chip is not None else None
        rate = self.gpu.peak_flop_per_s[self.precision] * self.constants.efficiency_of(architecture)
        return rate * (self.constants.fp8_matrix_efficiency if self.precision == "fp8" else 1.0)

    @cached_property
    def attained_without_tensor_cores(self) -> float:
        """Of products that tensor cores cannot take."""
        peaks = self.gpu.peak_flop_per_s
        plain = peaks.get("fp32", peaks[self.precision] / PLAIN_SHARE)
        return plain * self.attained_flop_per_s / peaks[self.precision]

    @cached_property
    def attained_bytes_per_s(self) -> float:
        """Of element-wise kernels."""
        return self.gpu.memory_bytes_per_s * self.constants.memory_efficiency

    def product_s(self, rows: float, inner: float, columns: float, batch: float = 1.0) -> float:
        """Seconds of ``batch`` products [rows, inner] x [inner, columns]; 0 when one dimension is."""
        if min(rows, inner, columns, batch) <= 0:
            return 0.0
        flop = 2.0 * rows * inner * columns * batch
        speed = self._tiled(rows, inner, columns, batch)
        for dimension in (rows, inner, columns):
            speed *= (1.0 - self.constants.misalignment) ** _missing_factors(dimension)
        moved = (rows * inner + inner * columns + rows * columns) * batch * self.element_bytes
        rate = self.attained_flop_per_s
        if _odd(inner, TENSOR_CORE_WIDTH) or _odd(columns, TENSOR_CORE_WIDTH):
            rate = min(rate, self.attained_without_tensor_cores)
        arithmetic_s = flop / (rate * speed)
        return max(arithmetic_s, moved / self.attained_bytes_per_s) + self.constants.kernel_s

    def traffic_s(self, moved_bytes: float) -> float:
        """Seconds to move ``moved_bytes`` to and from device memory in element-wise kernels."""
        return moved_bytes / self.attained_bytes_per_s

    def flash_s(self, flop: float, exponentials: float, efficiency: float) -> float:
        """Seconds of a fused attention kernel: its products at ``efficiency`` of the speed of a large one,
        and the exponentials of its softmax.

        Tensor cores grew from Ampere to Blackwell, the units for exponentials hardly (arXiv 2407.08608): what
        the kernel does not overlap comes on top.
        """
        if flop <= 0:
            return 0.0
        sixteen_bit = self.attained_flop_per_s
        if self.precision == "fp8":  # the fused kernels stay in 16 bit
            sixteen_bit /= self.constants.fp8_matrix_efficiency
            sixteen_bit *= self._sixteen_bit_peak / self.gpu.peak_flop_per_s["fp8"]
        rate = None if self.chip is None else self.chip.exponentials_per_s
        softmax_s = 0.0 if rate is None else exponentials / (rate * self.constants.exponential_efficiency)
        return flop / (sixteen_bit * efficiency) + softmax_s + self.constants.kernel_s

    @cached_property
    def _sixteen_bit_peak(self) -> float:
        peaks = self.gpu.peak_flop_per_s
        return peaks.get("bf16", peaks.get("fp16", peaks["fp8"] / 2))

    def _tiled(self, rows: float, inner: float, columns: float, batch: float) -> float:
        """Speed with the best tile, relative to a product whose tiles fill all multiprocessors at all times
        and never start or end."""
        multiprocessors = self.chip.multiprocessors if self.chip is not None else None
        one = self.attained_flop_per_s / (multiprocessors or USUAL_MULTIPROCESSORS)
        best = 0.0
        for high, wide, relative in TILES:
            busy, parts = _busy(rows / high, columns / wide, inner, batch, multiprocessors)
            arithmetic_s = 2.0 * high * wide * (inner / parts) / (one * relative)
            best = max(best, relative * busy * arithmetic_s / (arithmetic_s + self.constants.tile_s))
        return best


def _busy(
    down: float, across: float, inner: float, batch: float, multiprocessors: int | None
) -> tuple[float, float]:
    """Useful share of the multiprocessors' time with ``down`` x ``across`` tiles, counted with fractions, and
    the parts that the inner dimension is divided into.

    Without a data sheet there are no waves, only partly filled tiles.
    """
    tiles = math.ceil(down) * math.ceil(across) * batch
    useful = down * across * batch / tiles
    if multiprocessors is None:
        return useful, 1.0
    waves = tiles / multiprocessors
    if waves < 1.0:
        parts = min(1.0 / waves, max(1.0, inner / LEAST_DEPTH))
        return useful * min(1.0, waves * parts), parts
    return useful * waves / math.ceil(waves), 1.0


def _odd(dimension: float, width: int) -> bool:
    """Whether a dimension is no multiple of ``width``. A fraction is a mean (tokens of an expert): kernels
    that take it pad it."""
    return dimension == int(dimension) and int(dimension) % width != 0


def _missing_factors(dimension: float) -> int:
    """Factors of two that a dimension lacks to a multiple of `WHOLE`."""
    missing = 0
    step = WHOLE
    while step > 1 and _odd(dimension, step):
        step //= 2
        missing += 1
    return missing
