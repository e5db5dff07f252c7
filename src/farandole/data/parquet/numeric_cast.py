"""Casts of numbers that may lose precision but not a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

_ALL = -1  # every value fits
_NUMBERS = "biufc"


def is_number(dtype: Any) -> bool:
    """Return whether a dtype is numeric or boolean: numpy's own, or a package's (bfloat16)."""
    resolved = np.dtype(dtype)
    return resolved.kind in _NUMBERS or (resolved.kind == "V" and resolved.type is not np.void)


def cast(numbers: Array, dtype: Any) -> tuple[Array, int]:
    """Return numbers as ``dtype``, and the index of the first one that does not fit, or -1.

    Integers and booleans hold whole numbers in their range. Floats hold values that stay finite
    when rounded. Values are checked only if the dtype is narrower.
    """
    wanted = np.dtype(dtype)
    if not numbers.size or np.can_cast(numbers.dtype, wanted, "safe"):
        return numbers.astype(wanted, copy=False), _ALL
    if numbers.dtype.kind == "c" and wanted.kind != "c":
        return numbers, 0
    if wanted.kind in "biu":
        return _whole(numbers, wanted)
    return _rounded(numbers, wanted)


def bounds(dtype: Any) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer or boolean dtype."""
    wanted = np.dtype(dtype)
    if wanted.kind == "b":
        return 0, 1
    limits = np.iinfo(wanted)
    return int(limits.min), int(limits.max)


def rule(dtype: Any) -> str:
    """Describe the values that a dtype holds, for a message."""
    wanted = np.dtype(dtype)
    if wanted.kind not in "biu":
        return f"{wanted.name} holds finite numbers up to {_largest(wanted)}"
    least, most = bounds(wanted)
    return f"{wanted.name} holds whole numbers from {least} to {most}"


def _largest(dtype: Any) -> str:
    return f"{float(np.finfo(dtype).max):.3g}" if dtype.kind in "fc" else "its largest"


def _whole(numbers: Array, dtype: Any) -> tuple[Array, int]:
    least, most = bounds(dtype)
    low, high = numbers.min(), numbers.max()  # NaN, if there is one, is in no range
    if numbers.dtype.kind == "f":
        # both bounds are powers of 2, or 0, and so exact
        within = least <= float(low) and float(high) < float(most + 1)
    else:
        within = least <= int(low) and int(high) <= most
    if within:
        converted = numbers.astype(dtype)
        if numbers.dtype.kind != "f" or np.array_equal(converted, numbers):
            return converted, _ALL
    if numbers.dtype.kind == "f":
        wide = numbers.astype(np.float64)
        fits = (wide >= float(least)) & (wide < float(most + 1)) & (np.trunc(wide) == wide)
    else:
        fits = np.fromiter(
            (least <= int(value) <= most for value in numbers.flat), bool, numbers.size
        )
    return numbers, int(np.argmin(fits))


def _rounded(numbers: Array, dtype: Any) -> tuple[Array, int]:
    with np.errstate(over="ignore", invalid="ignore"):  # lost values are reported below
        converted = numbers.astype(dtype)
        if numbers.dtype.kind in "iu" and dtype.itemsize > np.dtype(np.float16).itemsize:
            return converted, _ALL
        if np.isfinite(converted.min()) and np.isfinite(converted.max()):
            return converted, _ALL
        lost = np.isfinite(numbers) & ~np.isfinite(converted)
    return converted, int(np.argmax(lost)) if lost.any() else _ALL
