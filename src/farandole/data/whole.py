"""Whole numbers and switches that users give: of Python, or of numpy, as computed ones are."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from farandole.errors import SettingsError


def whole(name: str, value: Any, least: int | None = None, *, floats: bool = False) -> int:
    """``value`` as Python's own int: numpy's overflow. SettingsError if it is none, or less than
    ``least``. ``floats``: a float will do, if it is whole, like 1e9.
    """
    if floats and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        found = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        rule = "" if least is None else f", at least {least}"
        raise SettingsError(f"{name}={value!r} must be a whole number{rule}")
    return found


def switch(name: str, value: Any) -> bool:
    """``value`` as True or False: any text would count as True, also "no". SettingsError for what
    is neither.
    """
    if not isinstance(value, (bool, np.bool_, int, np.integer)) or value not in (0, 1):
        raise SettingsError(f"{name}={value!r} must be True or False")
    return bool(value)
