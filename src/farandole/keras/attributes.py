"""The objects that a Keras 3 or Keras 2 model holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def held_by(model: Any) -> Iterator[Any]:
    """Yield the values of the model's attributes, including those in lists, tuples and
    dictionaries.
    """
    for value in vars(model).values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list | tuple):
            yield from value
        else:
            yield value
