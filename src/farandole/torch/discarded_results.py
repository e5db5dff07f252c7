"""Gradients that a program gives to ``allreduce``, whose result is a new tensor, and then steps
with as they were.

Such a step is told by what the gradients are after it. So that a collective costs nothing more, a
watch of an optimizer listens during the one step after which it looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.torch.checks import digest
from farandole.torch.functions import _collectives

# address -> digest of what was reduced into another tensor, while one listens
_given: dict[int, int] = {}


def listen() -> None:
    """Take note of what is reduced from now on, until ``unused`` is called."""
    _given.clear()
    _collectives.heard = _note


def _note(tensor: Any) -> None:
    _given[tensor.data_ptr()] = digest(tensor)


def unused(parameters: Sequence[Any]) -> int:
    """How many of these have a gradient that was reduced, and still is what it was. Ends the
    listening.
    """
    _collectives.heard = None
    gradients = (
        [parameter.grad for parameter in parameters if parameter.grad is not None] if _given else []
    )
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    found = sum(
        _given.get(gradient.data_ptr(), 0) == (digest(gradient) or -1) for gradient in dense
    )
    _given.clear()
    return found
