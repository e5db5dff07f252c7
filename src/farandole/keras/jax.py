"""Keras on JAX: gradients are values of a traced program."""

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
    """Return ``call(*args)``, which is part of the compiled program on JAX."""
    return call(*args)


def dense(grads: Sequence[Any]) -> Sequence[Any]:
    """Return ``grads`` unchanged: JAX has only dense gradients."""
    return grads


def reduced(
    grads: Sequence[Any],
    names: Sequence[str],
    reducer: GradientListReducer,
    replica: KerasReplica,
    now: Callable[[], Any] | None,
) -> list[Any]:
    """Return the reduced gradients.

    See ``reducer``: Keras computes a step for every batch that it accumulates, and drops all but
    one of them. ``now()`` returns whether this step is kept; only its gradients are exchanged.
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
    """Run an exchange of weights from a traced program; see ``exchange``."""
    *averaged, _ = weights.run_if(due, weights.HostExchange(run), [*values, step])
    return averaged
