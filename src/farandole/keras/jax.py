"""Keras on JAX: gradients are values of a program that is being traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from farandole.frontend.exchange import Exchange
from farandole.jax.gradients import reduce_gradients

if TYPE_CHECKING:
    from farandole.types import Array


def apart(call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``: here it is part of the program."""
    return call(*args)


def reduced(
    grads: Sequence[Any], names: Sequence[str], exchange: Exchange, sparse_as_dense: bool, compression: Any,
    now: Callable[[], Any] | None,
) -> list[Any]:  # fmt: skip
    """See ``gradients``: Keras computes a step for every batch that it accumulates, and drops all but one of them.
    ``now()`` tells which is not dropped, and so is exchanged."""

    def exchanged() -> list[Any]:
        return reduce_gradients(grads, names, exchange, compression)

    if now is None:
        return exchanged()
    return list(jax.lax.cond(now(), exchanged, lambda: list(grads)))


def values(variables: Sequence[Any]) -> Callable[[], list[Array] | None]:
    """A function that gives the values of ``variables`` as they are now, before the program that is being traced takes
    them away. In ``fit`` it already has."""
    found = [getattr(variable, "_value", None) for variable in variables]
    if any(value is None or isinstance(value, jax.core.Tracer) for value in found):
        return lambda: None
    arrays = [np.asarray(value) for value in found]
    return lambda: arrays
