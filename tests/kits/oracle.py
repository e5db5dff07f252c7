"""Expected results of collectives, computed by numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from farandole.base.types import DType, ReduceOp

UFUNCS = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


def values(dtype: DType, length: int, seed: int) -> np.ndarray[Any, Any]:
    """Return random elements. Half types get few significant bits, so that their float32 sums are
    exact in any order.
    """
    return _values(dtype, length, seed).copy()


@lru_cache(maxsize=32)
def _values(dtype: DType, length: int, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([seed, length])
    if dtype is DType.BOOL:
        return rng.integers(0, 2, length).astype(bool)
    if dtype is DType.FLOAT16:
        return (rng.integers(-2047, 2048, length) / 256).astype(np.float16)
    if dtype is DType.BFLOAT16:
        return to_bfloat16((rng.integers(-127, 128, length) / 16).astype(np.float32))
    if dtype.is_float:
        return rng.standard_normal(length).astype(dtype.storage)
    info = np.iinfo(dtype.storage)
    # sums of small types wrap around; averages are taken in int64
    part = 8 if dtype is DType.INT64 else 2
    return rng.integers(info.min // part, info.max // part, length, dtype.storage, endpoint=True)


def to_bfloat16(wide: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Round float32 to bfloat16 bits by exact arithmetic: to the nearest neighbour, ties to even."""
    bits = wide.astype(np.float32).view(np.uint32)
    low, high = bits & np.uint32(0xFFFF0000), (bits & np.uint32(0xFFFF0000)) + np.uint32(0x10000)
    exact = wide.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        # the neighbour beyond the largest finite number counts as 2**128, as IEEE rounding has it
        above = np.where(
            (high & 0x7FFFFFFF) == 0x7F800000, np.sign(exact) * 2.0**128, from_float32_bits(high)
        )
        to_low, to_high = np.abs(exact - from_float32_bits(low)), np.abs(above - exact)
    even_low = ((low >> 16) & 1) == 0
    up = (to_high < to_low) | ((to_high == to_low) & ~even_low)
    return (np.where(up, high, low) >> 16).astype(np.uint16)


def from_float32_bits(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def wide(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Convert half types to float32."""
    if dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def reduced(
    parts: Sequence[np.ndarray[Any, Any]], dtype: DType, op: ReduceOp, scale: float = 1.0
) -> np.ndarray[Any, Any]:
    """Return ``scale * (parts[0] op parts[1] op ...)``, rounded once for half types and truncated
    for integers.
    """
    ufunc = UFUNCS[op]
    if dtype.is_half:
        total = wide(parts[0], dtype)
        for part in parts[1:]:
            total = ufunc(total, wide(part, dtype))
        total = (total * np.float32(scale)).astype(np.float32) if scale != 1.0 else total
        with np.errstate(over="ignore"):
            return total.astype(np.float16) if dtype is DType.FLOAT16 else to_bfloat16(total)
    if not dtype.is_float and scale != 1.0:
        exact = parts[0].astype(np.int64)
        for part in parts[1:]:
            exact = ufunc(exact, part)
        quotients = np.sign(exact) * (np.abs(exact) // round(1 / scale))
        return quotients.astype(dtype.storage)
    total = parts[0].copy()
    for part in parts[1:]:
        total = ufunc(total, part).astype(dtype.storage)
    return total * total.dtype.type(scale) if scale != 1.0 else total


def assert_reduced(
    got: np.ndarray[Any, Any],
    parts: Sequence[np.ndarray[Any, Any]],
    dtype: DType,
    op: ReduceOp,
    scale: float = 1.0,
    note: object = "",
) -> None:
    """Assert equality: exact for integers and for half sums, minima and maxima; within one unit in
    the last place for half products; within a few roundings of the largest intermediate for float32
    and float64.
    """
    want = reduced(parts, dtype, op, scale)
    what = f"{note} {op.name} {dtype.value} x{len(parts)} length {len(got)} scale {scale}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}"
    assert got.shape == want.shape, f"{what}: {got.shape}"
    if dtype.is_half and op is ReduceOp.PRODUCT:
        steps = np.abs(_ordered(got) - _ordered(want))
        assert not len(steps) or steps.max() <= 1, (
            f"{what}: off by {steps.max()} units in the last place"
        )
    elif dtype.is_half or not dtype.is_float:
        same = np.flatnonzero(got != want)
        assert not len(same), f"{what}: element {same[0]} is {got[same[0]]}, not {want[same[0]]}"
    else:
        largest = (
            np.sum([np.abs(part) for part in parts], axis=0) if op is ReduceOp.SUM else np.abs(want)
        )
        near = np.abs(got - want) <= 8 * np.finfo(got.dtype).eps * largest * max(1.0, abs(scale))
        assert near.all(), (
            f"{what}: element {np.argmin(near)} is {got[np.argmin(near)]}, not"
            f" {want[np.argmin(near)]}"
        )


def _ordered(half: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return 16-bit floats as integers in the order of their values: neighbours differ by one."""
    bits = half.view(np.uint16).astype(np.int64)
    return np.where(bits & 0x8000, 0x8000 - bits, bits)
