"""The layers that a process has adapted. Many prepare the data and belong to no model.

For Keras 2 and Keras 3. Ranks compare the states of these layers in the first comparison of an
optimizer.
"""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

from farandole.checks import held_state
from farandole.checks.held_state import HeldState
from farandole.keras.layer_state import states_outside

_adapted: list[weakref.ref[Any]] = []  # in the program's order
_CHANGES = ("adapt", "set_vocabulary")


def watch(layers: Any) -> None:
    """Record each layer that is adapted from now on. ``layers``: the module of Keras's layers."""
    names = ("StringLookup", "IntegerLookup", "TextVectorization", "Discretization")
    for kind in (getattr(layers, name) for name in (*names, "Normalization")):
        for name in _CHANGES:
            owner = next((base for base in kind.__mro__ if name in vars(base)), None)
            if owner is not None and not hasattr(vars(owner)[name], "_farandole"):
                setattr(owner, name, _noted(vars(owner)[name]))
    if _states not in held_state.sources:
        held_state.sources.append(_states)


def _noted(original: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if all(known() is not self for known in _adapted):
            _adapted.append(weakref.ref(self))
        return result

    method._farandole = True  # type: ignore[attr-defined]
    return method


def _states() -> list[HeldState]:
    if _adapted:  # ranks may not have collected the same layers yet, which are in cycles
        gc.collect()
    _adapted[:] = [known for known in _adapted if known() is not None]
    return states_outside([known() for known in _adapted])
