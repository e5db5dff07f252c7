"""The arithmetic of all transports: elementwise reduction of arrays in a fixed order.

Parts are always combined in rank order, so all reducing ranks get the same bits. 16-bit floats are
widened to float32, summed and rounded once; integers that are scaled are summed in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.base.types import DType, ReduceOp

if TYPE_CHECKING:
    from farandole.base.types import Array

_UFUNCS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def quiet() -> np.errstate:
    """Return a context without numpy's warnings: gradients may overflow to infinity, which the
    optimizer detects.
    """
    return np.errstate(all="ignore")


def reduce_into(
    out: Array, parts: Sequence[Array], op: ReduceOp, dtype: DType, scale: float = 1.0
) -> None:
    """Compute ``out[i] = scale * (parts[0][i] op parts[1][i] op ...)``.

    Arrays are 1-D, of ``dtype.storage`` and of the same length. ``out`` may be one of the first two
    parts, but not a later one.
    """
    with quiet():
        reducer(op, dtype, scale)(out, parts)


def reducer(
    op: ReduceOp, dtype: DType, scale: float = 1.0
) -> Callable[[Array, Sequence[Array]], None]:
    """Return ``reduce_into`` for one operation, type and scale, prepared once for many chunks.

    The caller enters ``quiet()``, also only once.
    """
    ufunc = _UFUNCS[op]
    if dtype.is_half:
        return partial(_reduce_half, ufunc=ufunc, dtype=dtype, scale=scale)
    if scale == 1.0:
        return partial(_reduce_plain, ufunc=ufunc, factor=None)
    if dtype.is_float:
        # numpy is faster with an array of the dtype than with a scalar whose dtype it must
        # determine
        with quiet():
            return partial(_reduce_plain, ufunc=ufunc, factor=np.array(scale, dtype.storage))
    return partial(_reduce_wide, ufunc=ufunc, scale=scale)


def _reduce_plain(out: Array, parts: Sequence[Array], ufunc: Any, factor: Array | None) -> None:
    if len(parts) == 1 and out is not parts[0]:
        out[:] = parts[0]
    elif len(parts) > 1:
        ufunc(parts[0], parts[1], out=out)
        for part in parts[2:]:
            ufunc(out, part, out=out)
    if factor is not None:
        np.multiply(out, factor, out)


def _reduce_wide(out: Array, parts: Sequence[Array], ufunc: Any, scale: float) -> None:
    total = parts[0].astype(np.int64)
    for part in parts[1:]:
        ufunc(total, part, out=total)
    scale_into(out, total, scale)


def scale_into(out: Array, values: Array, scale: float) -> None:
    """Compute ``out = scale * values``. Integers are truncated toward zero (Horovod's rule),
    exactly where possible.
    """
    if out.dtype.kind == "f":
        np.multiply(values, scale, out=out, casting="unsafe")
        return
    divisor = divisor_of(scale)
    if divisor:  # an average: int64 division keeps all 64 bits
        quotient, remainder = np.divmod(values.astype(np.int64), divisor)
        quotient += (remainder != 0) & (quotient < 0)  # divmod rounds down
        np.copyto(out, quotient, casting="unsafe")
    else:
        np.copyto(out, np.trunc(values * scale), casting="unsafe")


def divisor_of(scale: float) -> int:
    """Return the integer n if ``scale`` is exactly 1 / n; else 0."""
    divisor = round(1.0 / scale) if abs(scale) > 2.0**-52 else 0
    return divisor if divisor and 1.0 / divisor == scale else 0


def halves(values: Any) -> tuple[Any, Any]:
    """Return the upper and the lower 32 bits of int64 ``values``. Their sums fit in 64 bits even if
    the sum of the values overflows.
    """
    return values >> 32, values & 0xFFFFFFFF


def average_of_halves(high: Any, low: Any, count: int) -> Any:
    """Return the average of ``count`` values, given the sums of their ``halves``, truncated toward
    zero. Accepts arrays and PyTorch tensors.
    """
    quotient = high // count
    rest = ((high - quotient * count) << 32) + low
    carried = rest // count
    total = (quotient << 32) + carried
    total += (rest != carried * count) & (total < 0)  # // rounds down
    return total


def scaled_halves(high: Any, low: Any, scale: float) -> Any:
    """Return ``scale`` times a sum, given the sums of its ``halves``.

    The result is an exact integer for a scale of 1/n, else float64. Accepts arrays and PyTorch
    tensors.
    """
    divisor = divisor_of(scale)
    if divisor:
        return average_of_halves(high, low, divisor)
    wide, rest = (
        half.astype(float) if isinstance(half, np.ndarray) else half.double()
        for half in (high, low)
    )
    return (wide * 2.0**32 + rest) * scale


def accumulator(dtype: DType, scale: float) -> np.dtype[Any]:
    """Return the dtype of a reduction's partial results, so that it rounds only once, at the
    end.
    """
    if dtype.is_half:
        return np.dtype(np.float32)
    if scale != 1.0 and not dtype.is_float:
        return np.dtype(np.int64)
    return np.dtype(dtype.storage)


def opened(values: Array, dtype: DType, scale: float) -> Array:
    """Return ``values`` as a partial result, without a copy if no wider type is needed."""
    if dtype.is_half:
        return widen(values, dtype)
    return values.astype(accumulator(dtype, scale), copy=False)


def combine_into(out: Array, left: Array, right: Array, op: ReduceOp) -> None:
    """Compute ``out = left op right`` for partial results."""
    with quiet():
        _UFUNCS[op](left, right, out=out)


def close_into(out: Array, total: Array, dtype: DType, scale: float) -> None:
    """Scale the last partial result and round it into ``out``. ``total`` may be ``out``, and may be
    overwritten.
    """
    if dtype.is_half:
        if scale != 1.0:
            with quiet():
                np.multiply(total, np.float32(scale), out=total)
        narrow_into(out, total, dtype)
    elif scale == 1.0:
        if out is not total:
            out[:] = total
    elif dtype.is_float:
        with quiet():
            np.multiply(total, out.dtype.type(scale), out=out)
    else:
        scale_into(out, total, scale)


def widen(values: Array, dtype: DType) -> Array:
    """Return a 16-bit float array (for bfloat16: its bits) as float32."""
    if dtype is DType.FLOAT16:
        return values.astype(np.float32)
    return (values.astype(np.uint32) << 16).view(np.float32)


def narrow_into(out: Array, values: Array, dtype: DType) -> None:
    """Round float32 ``values`` to nearest, ties to even, into ``out`` (for bfloat16: the bits). NaN
    stays NaN.
    """
    if dtype is DType.FLOAT16:
        with quiet():
            np.copyto(out, values, casting="unsafe")
        return
    bits = values.view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    np.copyto(out, rounded, casting="unsafe")
    nan = np.isnan(values)
    if nan.any():
        out[nan] = ((bits[nan] >> 16) | 0x40).astype(np.uint16)


def _reduce_half(
    out: Array, parts: Sequence[Array], ufunc: Any, dtype: DType, scale: float
) -> None:
    total = widen(parts[0], dtype)
    with quiet():
        for part in parts[1:]:
            ufunc(total, widen(part, dtype), out=total)
        if scale != 1.0:
            np.multiply(total, np.float32(scale), out=total)
    narrow_into(out, total, dtype)


def shares(total: int, parts: int) -> list[int]:
    """Return the number of ``total`` rows for each of ``parts`` ranks. The first ranks get one more
    each for the remainder (Horovod's rule).
    """
    base, extra = divmod(total, parts)
    return [base + 1 if rank < extra else base for rank in range(parts)]
