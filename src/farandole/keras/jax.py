"""Keras on JAX: gradients are values of a program that is being traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from farandole.jax import weights
from farandole.jax.gradients import reduce_gradients
from farandole.jax.primitive import plain_errors as plain_errors
from farandole.keras.checks import KerasReplica
from farandole.strategies.list_reducer import GradientListReducer


def uncompiled(call: Callable[..., Any], *args: Any) -> Any:
    """``call(*args)``: here it is part of the program."""
    return call(*args)


def dense(grads: Sequence[Any]) -> Sequence[Any]:
    """``grads``: here they are dense."""
    return grads


def reduced(
    grads: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: KerasReplica,
    now: Callable[[], Any] | None,
) -> list[Any]:
    """See ``reducer``: Keras computes a step for every batch that it accumulates, and drops all but
    one of them. ``now()`` tells which is not dropped, and so is exchanged.
    """

    def exchanged() -> list[Any]:
        held = [] if replica.not_broadcast else [variable.value for variable in replica.variables]
        return reduce_gradients(grads, names, reducer, held, replica.cures, replica.reported)

    if now is None:
        return exchanged()
    return list(jax.lax.cond(now(), exchanged, lambda: list(grads)))


def run_if(
    due: Any, run: Callable[[Sequence[Any], int], None], values: Sequence[Any], step: Any
) -> Sequence[Any]:
    """See ``exchange``."""
    *averaged, _ = weights.run_if(due, weights.HostExchange(run), [*values, step])
    return averaged
