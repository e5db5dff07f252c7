"""Batches in the form in which a framework takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(function: Callable[[str, Any], Any], batch: Any, name: str = "") -> Any:
    """A batch (a tuple or dict of arrays) with ``function(name, array)`` in the place of each
    array.
    """
    if isinstance(batch, tuple):
        return tuple(mapped(function, part, name) for part in batch)
    if isinstance(batch, dict):
        return {name: mapped(function, part, name) for name, part in batch.items()}
    return function(name, batch)
