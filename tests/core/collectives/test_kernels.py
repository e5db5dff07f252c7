from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.base.types import DType, ReduceOp
from farandole.core import kernels
from tests.kits import oracle
from tests.kits.oracle import assert_reduced, values

OPS = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_reduce_every_op_and_type(dtype: DType, op: ReduceOp, count: int) -> None:
    for length in (0, 1, 1001):
        parts = [values(dtype, length, seed) for seed in range(count)]
        out = np.empty(length, dtype.storage)
        kernels.reduce_into(out, parts, op, dtype)
        assert_reduced(out, parts, dtype, op)


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("aliased", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_out_may_be_one_of_the_first_two_parts(dtype: DType, aliased: int, scale: float) -> None:
    parts = [values(dtype, 500, seed) for seed in range(3)]
    copies = [part.copy() for part in parts]
    kernels.reduce_into(copies[aliased], copies, ReduceOp.SUM, dtype, scale)
    assert_reduced(copies[aliased], parts, dtype, ReduceOp.SUM, scale)


@pytest.mark.parametrize("dtype", [each for each in DType if not each.is_float])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_averages_of_integers_are_truncated_toward_zero(dtype: DType, count: int) -> None:
    parts = [values(dtype, 1000, seed) for seed in range(count)]
    out = np.empty(1000, dtype.storage)
    kernels.reduce_into(out, parts, ReduceOp.SUM, dtype, 1 / count)
    assert_reduced(out, parts, dtype, ReduceOp.SUM, 1 / count)


@pytest.mark.parametrize(
    ("total", "scale", "want"),
    [
        (-7, 1 / 2, -3),
        (7, 1 / 2, 3),
        (-1, 1 / 3, 0),
        (-9, 1 / 3, -3),
        (7, -1 / 2, -3),
        (-7, -1 / 2, 3),
        (2**62 + 1, 1 / 2, 2**61),
        (-(2**62) - 3, 1 / 2, -(2**61) - 1),
        (-(2**63), 1 / 2, -(2**62)),
        (2**63 - 1, 1 / 3, (2**63 - 1) // 3),
        (10, 0.0, 0),
        (10, 1.5, 15),
        (-3, 1.5, -4),
        (3, 1e-300, 0),
    ],
)
def test_scaled_integers(total: int, scale: float, want: int) -> None:
    out = np.zeros(1, np.int64)
    kernels.scale_into(out, np.array([total], np.int64), scale)
    assert out[0] == want


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_averages_of_int64_by_halves(count: int) -> None:
    limits = np.iinfo(np.int64)
    few = np.array([limits.min, limits.max, limits.min + 1, -3, -1, 0, 1, 3, 2**32, -(2**32) - 1])
    parts = [np.roll(few, turn) for turn in range(count)]
    high, low = (sum(half) for half in zip(*map(kernels.halves, parts), strict=True))
    sums = [sum(map(int, column)) for column in zip(*parts, strict=True)]
    wanted = [abs(total) // count * (1 if total > 0 else -1) for total in sums]
    assert kernels.average_of_halves(high, low, count).tolist() == wanted
    assert kernels.scaled_halves(high, low, 1 / count).tolist() == wanted
    large = kernels.scaled_halves(high, low, 0.75).astype(float)
    np.testing.assert_allclose(large, [0.75 * total for total in sums], rtol=1e-15)


def test_an_average_of_small_integers_does_not_wrap_around() -> None:
    parts = [np.full(4, 250, np.uint8) for _ in range(4)]
    out = np.empty(4, np.uint8)
    kernels.reduce_into(out, parts, ReduceOp.SUM, DType.UINT8, 0.25)
    assert (out == 250).all()


def test_bfloat16_rounds_to_nearest_even() -> None:
    cases = {
        0x3F800000: 0x3F80,
        0x3F808000: 0x3F80,
        0x3F818000: 0x3F82,
        0x3F808001: 0x3F81,
        0x3F807FFF: 0x3F80,
        0x7F800000: 0x7F80,
        0xFF800000: 0xFF80,
        0x7F7FFFFF: 0x7F80,
        0x80000000: 0x8000,
        0x00008000: 0x0000,
        0x00018000: 0x0002,
        0x7F7F7FFF: 0x7F7F,
    }
    out = np.empty(len(cases), np.uint16)
    kernels.narrow_into(out, np.array(list(cases), np.uint32).view(np.float32), DType.BFLOAT16)
    assert [hex(bits) for bits in out] == [hex(bits) for bits in cases.values()]


@pytest.mark.parametrize(
    "bits", [0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800001, 0x7FBFFFFF]
)
def test_not_a_number_stays_so(bits: int) -> None:
    for dtype in (DType.BFLOAT16, DType.FLOAT16):
        out = np.empty(1, dtype.storage)
        kernels.narrow_into(out, np.array([bits], np.uint32).view(np.float32), dtype)
        assert np.isnan(kernels.widen(out, dtype)).all()


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_bfloat16_is_the_nearest(numbers: list[float]) -> None:
    wide = np.array(numbers, np.float32)
    out = np.empty(len(wide), np.uint16)
    kernels.narrow_into(out, wide, DType.BFLOAT16)
    assert np.array_equal(out, oracle.to_bfloat16(wide))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_half_survives_widening(dtype: DType) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.storage)
    wide = kernels.widen(every, dtype)
    back = np.empty(1 << 16, dtype.storage)
    kernels.narrow_into(back, wide, dtype)
    same = every.view(np.uint16) == back.view(np.uint16)
    assert (same | np.isnan(wide)).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_halves_are_rounded_once(dtype: DType) -> None:
    """1 + 3 * (a quarter of the last place): rounding after each addition would lose all three."""
    last_place = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}[dtype]
    parts = []
    for value in (1.0, last_place / 4, last_place / 4, last_place / 4):
        part = np.empty(1, dtype.storage)
        kernels.narrow_into(part, np.array([value], np.float32), dtype)
        parts.append(part)
    out = np.empty(1, dtype.storage)
    kernels.reduce_into(out, parts, ReduceOp.SUM, dtype)
    assert kernels.widen(out, dtype)[0] == 1.0 + last_place


@pytest.mark.parametrize("dtype", [each for each in DType if each.is_float])
@pytest.mark.parametrize("op", OPS)
def test_infinity_and_not_a_number_come_through_silently(dtype: DType, op: ReduceOp) -> None:
    def part(*numbers: float) -> Any:
        out = np.empty(len(numbers), dtype.storage)
        if dtype.is_half:
            kernels.narrow_into(out, np.array(numbers, np.float32), dtype)
        else:
            out[:] = numbers
        return out

    largest = {
        DType.FLOAT16: 65504.0,
        DType.BFLOAT16: 3.3895e38,
        DType.FLOAT32: 3.4028234e38,
        DType.FLOAT64: 1.79e308,
    }
    parts = [part(np.inf, np.nan, 1.0, largest[dtype]), part(1.0, 2.0, np.nan, largest[dtype])]
    out = np.empty(4, dtype.storage)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernels.reduce_into(
            out, parts, op, dtype, 0.5 if op is ReduceOp.SUM and dtype.is_half else 1.0
        )
    got = kernels.widen(out, dtype) if dtype.is_half else out
    assert got[0] == (1.0 if op is ReduceOp.MIN else np.inf)
    assert np.isnan(got[1:3]).all()
    if op is ReduceOp.PRODUCT:
        assert got[3] == np.inf
    elif op is ReduceOp.SUM and dtype is DType.FLOAT16:
        # the average of two large halves is a half again: scaled before it is rounded
        assert np.isfinite(got[3])


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MAX])
def test_partial_results_give_the_same(dtype: DType, scale: float, op: ReduceOp) -> None:
    """As in a ring: open, combine step by step, close."""
    parts = [values(dtype, 333, seed) for seed in range(4)]
    total = kernels.opened(parts[0], dtype, scale).copy()
    assert total.dtype == kernels.accumulator(dtype, scale)
    for part in parts[1:]:
        kernels.combine_into(total, total, kernels.opened(part, dtype, scale), op)
    out = np.empty(333, dtype.storage)
    kernels.close_into(out, total, dtype, scale)
    assert_reduced(out, parts, dtype, op, scale)


@pytest.mark.parametrize(
    ("total", "parts", "want"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0])]
)
def test_shares(total: int, parts: int, want: list[int]) -> None:
    assert kernels.shares(total, parts) == want
