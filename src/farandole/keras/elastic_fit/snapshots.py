"""The progress of callbacks, such as the best loss: copied, restored, and sent to new ranks."""

from __future__ import annotations

import copy
import numbers
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Snapshot = Mapping[tuple[str, int], Mapping[str, Any]]

# They may differ between ranks intentionally, or because only one rank has found an existing file.
_SETTINGS = ("params", "verbose", "append", "append_header")
_REPLACED = ("best_weights",)  # replaced as a whole, never changed in place
# Keras chooses this function at the end of the first epoch, and changes the sign of ``min_delta``
# with it. A rank that had only one of the two would change the sign again.
_FUNCTION = "monitor_op"


def taken(callbacks: Sequence[Any]) -> Snapshot:
    """Return copies of the numbers, arrays and containers that ``callbacks`` hold, and
    their functions that compare a metric with the best one.

    A callback is identified by its class and its place among callbacks of this class, because ranks
    may have different callbacks. Text is left out: it holds settings, such as the paths of files.
    """
    return {
        key: {
            name: value if name in _REPLACED else copy.deepcopy(value)
            for name, value in vars(callback).items()
            if _is_kept(name, value)
        }
        for key, callback in _keyed(callbacks)
    }


def put_back(callbacks: Sequence[Any], snapshot: Snapshot) -> None:
    """Set the attributes of ``callbacks`` to the values in ``snapshot``. Callbacks that the
    snapshot does not contain are unchanged.
    """
    for key, callback in _keyed(callbacks):
        for name, value in snapshot.get(key, {}).items():
            vars(callback)[name] = value if name in _REPLACED else copy.deepcopy(value)


def _keyed(callbacks: Sequence[Any]) -> list[tuple[tuple[str, int], Any]]:
    seen: Counter[str] = Counter()
    found = []
    for callback in callbacks:
        name = type(callback).__qualname__
        found.append(((name, seen[name]), callback))
        seen[name] += 1
    return found


def _is_kept(name: str, value: Any) -> bool:
    if name == _FUNCTION:  # lambdas, as in old versions, cannot be sent
        return "<" not in getattr(value, "__qualname__", "")
    return name not in _SETTINGS and not isinstance(value, (str, bytes)) and _is_plain(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, (list, tuple, set, deque)):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return value is None or isinstance(value, (numbers.Number, str, bytes, np.generic))
