"""Accumulation of several updates, for optimizers that do not exchange in every update."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class AccumulationState(NamedTuple):
    """``count``: updates since the last step. ``gradients``: their sum. ``inner``: the optimizer's
    own state.
    """

    count: Any
    gradients: Any
    inner: Any


def accumulated(optimizer: Any, every: int, mean: bool) -> Any:
    """Return an optimizer that runs ``optimizer`` in every ``every``-th update, on the mean or sum
    of the updates. The other updates are zeros.

    Unlike with ``optax.MultiSteps``, ``optimizer`` does not run in the other updates.
    """
    import optax

    each_of, zeros = jax.tree_util.tree_map, jnp.zeros_like

    def init(params: Any) -> AccumulationState:
        return AccumulationState(
            jnp.zeros((), jnp.int32), each_of(zeros, params), optimizer.init(params)
        )

    def update(
        updates: Any, state: AccumulationState, params: Any = None, **extra: Any
    ) -> tuple[Any, Any]:
        total = each_of(lambda one, other: one + other, state.gradients, updates)
        full = state.count + 1 == every

        def step() -> tuple[Any, Any, Any]:
            counted = each_of(lambda gradient: gradient / every, total) if mean else total
            found, inner = optimizer.update(counted, state.inner, params, **extra)
            return found, inner, each_of(zeros, total)

        def wait() -> tuple[Any, Any, Any]:
            shape = jax.eval_shape(step)[0]
            return (
                each_of(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape),
                state.inner,
                total,
            )

        if isinstance(full, jax.core.Tracer):
            found, inner, gradients = jax.lax.cond(full, step, wait)
        else:
            found, inner, gradients = step() if full else wait()
        return found, AccumulationState(jnp.where(full, 0, state.count + 1), gradients, inner)

    return optax.GradientTransformationExtraArgs(init, update)
