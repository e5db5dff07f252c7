"""What a model of Keras 3 or 2 holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def held_by(model: Any) -> Iterator[Any]:
    """The values of its attributes, and those in lists, tuples and dictionaries among them."""
    for value in vars(model).values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value
