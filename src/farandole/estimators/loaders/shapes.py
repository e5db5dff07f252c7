"""Rows of one shape that are read as rows of another one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def fits(given: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether rows of shape ``given`` may be reshaped to ``wanted``: they have as many numbers, and
    not the same axes in another order (channels first and channels last), whose numbers would be
    mixed up.
    """
    own, other = ([length for length in shape if length != 1] for shape in (given, wanted))
    return math.prod(own) == math.prod(other) and (own == other or sorted(own) != sorted(other))


def rows_of(array: Any, shape: Sequence[int] | None) -> Any:
    """An array or tensor as rows of ``shape``, in which -1 stands for the rows; as it is if there
    is none.
    """
    return (
        array
        if shape is None
        else array.reshape(len(array), *[length for length in shape if length != -1])
    )
