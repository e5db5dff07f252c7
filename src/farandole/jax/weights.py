"""Optimizers that step locally on each rank and exchange weights by a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from farandole.base.contracts import Strategy
from farandole.jax.gradients import names_of
from farandole.jax.inner_optimizer import facts_of
from farandole.jax.models import Models, names_in
from farandole.jax.primitive import host_call
from farandole.strategies.options import GradientOptions
from farandole.strategies.weights import WeightExchange, slots_of

if TYPE_CHECKING:
    from farandole.base.types import Array


class WeightState(NamedTuple):
    """``step``: updates so far. ``slots``: the strategy's slots, each a list by leaf. ``inner``:
    the optimizer's state. ``mark``: identifies the model to the ranks.
    """

    step: Any
    slots: Any
    inner: Any
    mark: Any


class HostExchange:
    """A host call with values, followed by integers (at least a step). See ``primitive.HostCall``.

    ``run(arrays, *numbers)`` writes to the arrays, which are float32 or float64. Exchanges with the
    same ``run`` are equal.
    """

    elementwise = None
    in_place = True

    def __init__(self, run: Callable[..., None], numbers: int = 1) -> None:
        self._run = run
        self._numbers = numbers

    def __hash__(self) -> int:
        return hash(self._run)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostExchange) and self._run == other._run

    def __str__(self) -> str:
        return "the exchange of weights"

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        return list(zip(shapes, dtypes, strict=True))

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        values, numbers = arrays[: -self._numbers], arrays[-self._numbers :]
        wide = [
            value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)
            for value in values
        ]
        self._run(wide, *map(int, numbers))
        for value, changed in zip(values, wide, strict=True):
            if value is not changed:
                value[...] = changed.astype(value.dtype)
        return arrays


class _Exchanges:
    """The exchanges of an optimizer, one for each of its models."""

    def __init__(self, make: Callable[[], WeightExchange]) -> None:
        self.models = Models()
        self._make = make
        self._of = [make()]  # in the order in which the ranks first used them

    @property
    def kinds(self) -> Sequence[str]:
        return self._of[0].kinds

    def needed(self) -> bool:
        return self._of[0].needed()

    def run(self, names: Sequence[str], arrays: Sequence[Array], step: int, mark: int) -> None:
        """Exchange weights of one model. ``arrays``: the weights with these names, then their
        slots.
        """
        place = self.models.place(mark)
        if place == len(self._of):
            self._of.append(self._make())
        count = len(names)
        columns = [arrays[begin : begin + count] for begin in range(0, len(arrays), count)]
        exchange = self._of[place]
        with self.models.once(mark, step, exchange.state_label, exchange.lasts):
            exchange(columns[0], columns[1:], step, names_in(place, names))


class _Run(NamedTuple):
    """An exchange of weights with these names. Runs with the same exchanges and names are equal."""

    exchanges: _Exchanges
    names: tuple[str, ...]

    def run(self, arrays: Sequence[Array], step: int, mark: int) -> None:
        self.exchanges.run(self.names, arrays, step, mark)


def exchanging(optimizer: Any, options: GradientOptions, strategy: Strategy) -> Any:
    """Return ``optimizer`` with the ranks' weights exchanged by ``strategy``, inside and outside
    ``jit``.
    """
    import optax

    facts = facts_of(optimizer)

    def exchange() -> WeightExchange:
        made = WeightExchange("DistributedOptimizer", options, strategy)
        made.describe(facts)
        return made

    exchanges = _Exchanges(exchange)

    def init(params: Any) -> WeightState:
        weights = _weights(params)
        slots = slots_of(
            exchanges.kinds, [_wide(weight) for weight in weights], jnp.array, jnp.zeros_like
        )
        return WeightState(
            jnp.zeros((), jnp.int32), slots, optimizer.init(params), exchanges.models.mark()
        )

    def update(
        updates: Any, state: WeightState, params: Any = None, **extra: Any
    ) -> tuple[Any, WeightState]:
        if params is None:
            raise ValueError(
                f"strategy={strategy.spec!r} exchanges weights, but update() was called without"
                " them. Call optimizer.update(gradients, state, params)"
            )
        found, inner = optimizer.update(updates, state.inner, params, **extra)
        step = state.step + 1
        weights, names = _weights(optax.apply_updates(params, found)), tuple(_names(params))
        # a label of optax.multi_transform may cover no weight
        if not (exchanges.needed() and weights):
            return found, WeightState(step, state.slots, inner, state.mark)
        given = [*weights, *(slot for column in state.slots for slot in column), step, state.mark]
        received = run_if(strategy.due(step), HostExchange(_Run(exchanges, names).run, 2), given)
        count = len(weights)
        changes = _changes(params, found, received[:count])
        columns = [
            list(received[begin : begin + count]) for begin in range(count, len(given) - 2, count)
        ]
        return changes, WeightState(step, columns, inner, state.mark)

    return optax.GradientTransformationExtraArgs(init, update)


def run_if(due: Any, call: HostExchange, values: Sequence[Any]) -> Sequence[Any]:
    """Return ``values`` after the call if it is ``due``, else unchanged; inside and outside
    ``jit``.
    """
    if isinstance(due, jax.core.Tracer):
        exchanged: tuple[Any, ...] = jax.lax.cond(
            due, lambda: tuple(host_call(call, values)), lambda: tuple(values)
        )
        return exchanged
    return host_call(call, values) if due else values


def _changes(params: Any, found: Any, weights: Sequence[Any]) -> Any:
    """Return the updates that lead from ``params`` to ``weights``; for leaves that are not weights,
    the updates in ``found``.
    """
    leaves, kind = jax.tree_util.tree_flatten(params)
    others, left = jax.tree_util.tree_leaves(found), iter(weights)
    changes = [
        _like(leaf, next(left)) - leaf if _is_weight(leaf) else other
        for leaf, other in zip(leaves, others, strict=True)
    ]
    return jax.tree_util.tree_unflatten(kind, changes)


def _weights(params: Any) -> list[Any]:
    """Return the weights as arrays; complex ones as real and imaginary parts."""
    arrays = [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(params) if _is_weight(leaf)]
    return [jnp.stack([one.real, one.imag], -1) if jnp.iscomplexobj(one) else one for one in arrays]


def _like(leaf: Any, weight: Any) -> Any:
    """Return a weight from ``_weights`` with the dtype of ``leaf``."""
    return jax.lax.complex(weight[..., 0], weight[..., 1]) if jnp.iscomplexobj(leaf) else weight


def _names(params: Any) -> list[str]:
    leaves = jax.tree_util.tree_leaves(params)
    return [name for name, leaf in zip(names_of(params), leaves, strict=True) if _is_weight(leaf)]


def _is_weight(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _wide(weight: Any) -> Any:
    return weight if weight.dtype in (np.float32, np.float64) else weight.astype(jnp.float32)
