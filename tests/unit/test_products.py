"""One matrix product: roofline, tiles and waves, inner dimension, alignment."""

from __future__ import annotations

import pytest

from pipette_milp.cluster import GpuType
from pipette_milp.cost.products import Products
from pipette_milp.presets import chip
from pipette_milp.schema.constants import default_constants

CONSTANTS = default_constants()


def products(name: str = "A100-SXM4-80GB", precision: str = "bf16") -> Products:
    peaks = {"bf16": 312e12, "fp16": 312e12, "fp8": 624e12}
    return Products(GpuType(name, 80 * 2.0**30, peaks, 2039e9), precision, 2.0, CONSTANTS)


def attained(model: Products, rows: int, inner: int, columns: int, batch: float = 1.0) -> float:
    """Share of the speed of a large product."""
    seconds = model.product_s(rows, inner, columns, batch) - CONSTANTS.kernel_s
    return 2.0 * rows * inner * columns * batch / seconds / model.attained_flop_per_s


def test_a_large_aligned_product_reaches_the_architecture_s_efficiency() -> None:
    model = products()
    assert model.attained_flop_per_s == pytest.approx(312e12 * CONSTANTS.matrix_efficiency["ampere"])
    assert 0.95 < attained(model, 16384, 65536, 13824 * 2) <= 1.0


def test_a_last_wave_of_one_tile_costs_a_whole_wave() -> None:
    model = products()
    full, over = 256 * 27, 256 * 28  # four 256 x 128 tiles a row: 108 and 112 on 108 multiprocessors
    assert attained(model, over, 8192, 512) < 0.75 * attained(model, full, 8192, 512)


def test_few_tiles_divide_the_inner_dimension() -> None:
    """A weight gradient with a long inner dimension keeps the GPU busy, one with a short one cannot."""
    model = products()
    assert attained(model, 1024, 65536, 1024) > 1.9 * attained(model, 1024, 512, 1024)


def test_a_tile_starts_and_ends_in_the_same_time_on_every_gpu() -> None:
    """With equal waves half the inner dimension saves half the arithmetic, not the time around it."""
    model = products()
    rows, columns = 256 * 27, 128 * 4  # one wave of 256 x 128 tiles
    deep, shallow = (model.product_s(rows, inner, columns) - CONSTANTS.kernel_s for inner in (8192, 4096))
    assert 2 * shallow - deep == pytest.approx(CONSTANTS.tile_s, rel=0.02)


def test_exponentials_come_on_top_of_the_products_of_fused_attention() -> None:
    peaks = {"bf16": 2.5e15, "fp8": 5e15}
    kinds = [Products(GpuType(name, 1.0, peaks, 8e12), "bf16", 2.0, CONSTANTS) for name in ("gb200", "gb300")]
    assert [model.flash_s(1e15, 0.0, 0.5) for model in kinds] == [kinds[0].flash_s(1e15, 0.0, 0.5)] * 2
    more = [model.flash_s(1e15, 1e12, 0.5) - model.flash_s(1e15, 0.0, 0.5) for model in kinds]
    assert more == pytest.approx([1e12 / rate / CONSTANTS.exponential_efficiency for rate in (5e12, 10e12)])
    unknown = products("SomethingNew-2030")
    assert unknown.flash_s(1e15, 1e12, 0.5) == unknown.flash_s(1e15, 0.0, 0.5)


def test_misaligned_dimensions_cost() -> None:
    """Hidden 14400 over 8 ranks against 14336: 1800 has three factors of two, 1792 eight."""
    model = products()
    loss = attained(model, 8192, 1800, 14336) / attained(model, 8192, 1792, 14336)
    assert loss == pytest.approx((1 - CONSTANTS.misalignment) ** 3, rel=0.01)


def test_a_thin_product_is_bound_by_memory() -> None:
    model = products()
    moved = (64 * 8192 + 8192 * 8192 + 64 * 8192) * 2.0
    expected = moved / (2039e9 * CONSTANTS.memory_efficiency) + CONSTANTS.kernel_s
    assert model.product_s(64, 8192, 8192) == pytest.approx(expected, rel=1e-12)


def test_an_unknown_gpu_is_timed_from_its_data_sheet_alone() -> None:
    model = products("SomethingNew-2030")
    assert chip("SomethingNew-2030") is None
    assert model.attained_flop_per_s == pytest.approx(312e12 * CONSTANTS.matrix_efficiency["other"])
    # no waves: one tile more than 108 multiprocessors hold costs no second wave
    assert attained(model, 256 * 109, 8192, 128) > 0.95 * attained(model, 256 * 108, 8192, 128)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("A100-SXM4-80GB", "ampere"),
        ("a100-80gb", "ampere"),
        ("A100-SXM4-64GB", "ampere"),
        ("H100-SXM5-80GB", "hopper"),
        ("b200", "blackwell"),
        ("GB200-186GB", "blackwell"),
        ("T4", "turing"),
        ("RTX-4090-24GB", "ada"),
    ],
)
def test_a_chip_is_known_by_the_name_of_the_type(name: str, architecture: str) -> None:
    found = chip(name)
    assert found is not None
    assert found.architecture == architecture


def test_fp8_is_relative_to_its_own_peak_and_attention_stays_in_16_bit() -> None:
    fp8, bf16 = products(precision="fp8"), products()
    share = CONSTANTS.fp8_matrix_efficiency * CONSTANTS.matrix_efficiency["ampere"]
    assert fp8.attained_flop_per_s == pytest.approx(624e12 * share)
    assert fp8.flash_s(1e12, 0.0, 0.5) == pytest.approx(bf16.flash_s(1e12, 0.0, 0.5), rel=1e-12)
    assert bf16.flash_s(0.0, 0.0, 0.5) == 0.0
    assert bf16.product_s(0, 128, 128) == 0.0
