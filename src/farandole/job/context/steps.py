"""Steps that consist of several backward passes."""

from __future__ import annotations

from collections.abc import Callable

# Each callable returns whether an optimizer has a part of a step. Registered by frameworks.
open_steps: list[Callable[[], bool]] = []


def is_between_steps() -> bool:
    """Return whether no optimizer of this process has an incomplete step, so that its state can be
    committed.
    """
    return not any(is_open() for is_open in open_steps)
