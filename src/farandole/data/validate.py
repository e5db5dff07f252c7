"""Validation of the user's integers and booleans, including numpy's."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from farandole.errors import SettingsError


def as_int(name: str, value: Any, least: int | None = None, *, floats: bool = False) -> int:
    """Return ``value`` as a Python int, which unlike numpy's does not overflow.

    Raises SettingsError if it is not an integer, or is less than ``least``. ``floats``: accept
    whole floats, such as 1e9.
    """
    if floats and isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        rule = "" if least is None else f", at least {least}"
        raise SettingsError(f"{name}={value!r} must be a whole number{rule}")
    return number


def as_bool(name: str, value: Any) -> bool:
    """Return ``value`` as a bool.

    Raises SettingsError for values other than True, False, 1 and 0: any non-empty text is truthy,
    even "no".
    """
    if not isinstance(value, (bool, np.bool_, int, np.integer)) or value not in (0, 1):
        raise SettingsError(f"{name}={value!r} must be True or False")
    return bool(value)
