"""The filters of lists of runs and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_tags(found: Mapping[str, Any], wanted: Any) -> bool:
    """Return whether tags or properties meet a filter.

    ``wanted``: a name, a list of names, or a mapping of values by name; None accepts all.
    """
    if wanted is None:
        return True
    if isinstance(wanted, str):
        return wanted in found
    if isinstance(wanted, Mapping):
        return all(found.get(name) == str(value) for name, value in wanted.items())
    return all(name in found for name in wanted)
