"""A fingerprint of a model's origin, equal for equal programs: plain JSON, without memory addresses
or the numbers that Keras appends to names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

# an address; a function's lines; a module's current mode
_VARYING = ("shared_object_id", "code", "training")


def plain(value: Any) -> Any:
    """Convert ``value`` to JSON types: functions and classes to their names, other objects to their
    class and their plain attributes.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value if value == value else "nan"  # NaN is unequal to itself
    if isinstance(value, Mapping):
        return {
            str(name): _unnumbered(each) if name == "name" else plain(each)
            for name, each in value.items()
            if name not in _VARYING
        }
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):  # a value of numpy
        return plain(value.tolist())
    if isinstance(value, functools.partial):
        return [plain(value.func), plain(value.args), plain(value.keywords)]
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    return [type(value).__name__, configured(value)]


def configured(value: Any) -> Any:
    """Return an object's settings: its Keras configuration without the model's layers, or its plain
    attributes.
    """
    if hasattr(value, "get_config"):
        if hasattr(value, "layers"):
            return None
        try:
            return plain(value.get_config())
        except NotImplementedError:
            return None
    held = getattr(value, "__dict__", {})
    return plain(
        {
            name: each
            for name, each in held.items()
            if name[0] != "_" and isinstance(each, bool | int | float | str)
        }
    )


def digest(value: Any) -> str:
    """Return the digest of a ``plain`` value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _unnumbered(name: Any) -> Any:
    return re.sub(r"_\d+$", "", name) if isinstance(name, str) else plain(name)
