"""Numbers of one dtype as those of another: precision may be lost, a value may not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from farandole.base.types import Array

_ALL = -1  # every value fits
_NUMBERS = "biufc"


def is_number(dtype: Any) -> bool:
    """Whether a dtype is one of numbers or booleans: numpy's, or of those that packages add
    (bfloat16).
    """
    found = np.dtype(dtype)
    return found.kind in _NUMBERS or (found.kind == "V" and found.type is not np.void)


def cast(found: Array, dtype: Any) -> tuple[Array, int]:
    """Numbers as ``dtype``, and the place of the first one that it does not hold, -1 if it holds
    all of them.

    Integers and booleans hold whole numbers of their range. Floating numbers hold what stays
    finite, rounded. Values are looked at only where the dtype is narrower.
    """
    wanted = np.dtype(dtype)
    if not found.size or np.can_cast(found.dtype, wanted, "safe"):
        return found.astype(wanted, copy=False), _ALL
    if found.dtype.kind == "c" and wanted.kind != "c":
        return found, 0
    if wanted.kind in "biu":
        return _whole(found, wanted)
    return _rounded(found, wanted)


def bounds(dtype: Any) -> tuple[int, int]:
    """The least and the largest value of a dtype of integers or booleans."""
    wanted = np.dtype(dtype)
    if wanted.kind == "b":
        return 0, 1
    limits = np.iinfo(wanted)
    return int(limits.min), int(limits.max)


def rule(dtype: Any) -> str:
    """What a dtype holds, for a message."""
    wanted = np.dtype(dtype)
    if wanted.kind not in "biu":
        return f"{wanted.name} holds finite numbers up to {_largest(wanted)}"
    least, most = bounds(wanted)
    return f"{wanted.name} holds whole numbers from {least} to {most}"


def _largest(dtype: Any) -> str:
    return f"{float(np.finfo(dtype).max):.3g}" if dtype.kind in "fc" else "its largest"


def _whole(found: Array, dtype: Any) -> tuple[Array, int]:
    least, most = bounds(dtype)
    low, high = found.min(), found.max()  # NaN, if there is one: in no range
    if found.dtype.kind == "f":
        # both sides are powers of 2, or 0: exact
        within = least <= float(low) and float(high) < float(most + 1)
    else:
        within = least <= int(low) and int(high) <= most
    if within:
        made = found.astype(dtype)
        if found.dtype.kind != "f" or np.array_equal(made, found):
            return made, _ALL
    if found.dtype.kind == "f":
        wide = found.astype(np.float64)
        fits = (wide >= float(least)) & (wide < float(most + 1)) & (np.trunc(wide) == wide)
    else:
        fits = np.fromiter((least <= int(value) <= most for value in found.flat), bool, found.size)
    return found, int(np.argmin(fits))


def _rounded(found: Array, dtype: Any) -> tuple[Array, int]:
    with np.errstate(over="ignore", invalid="ignore"):  # what is lost is told below
        made = found.astype(dtype)
        if found.dtype.kind in "iu" and dtype.itemsize > np.dtype(np.float16).itemsize:
            return made, _ALL
        if np.isfinite(made.min()) and np.isfinite(made.max()):
            return made, _ALL
        lost = np.isfinite(found) & ~np.isfinite(made)
    return made, int(np.argmax(lost)) if lost.any() else _ALL
