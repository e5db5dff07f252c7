"""Batches in the form of each framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(function: Callable[[str, Any], Any], batch: Any, name: str = "") -> Any:
    """Apply ``function(name, array)`` to each array of a batch (a tuple or dict of arrays)."""
    if isinstance(batch, tuple):
        return tuple(mapped(function, part, name) for part in batch)
    if isinstance(batch, dict):
        return {name: mapped(function, part, name) for name, part in batch.items()}
    return function(name, batch)
