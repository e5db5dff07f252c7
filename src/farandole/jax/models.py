"""The models that one optimizer trains.

An optimizer's functions have no state, so one optimizer may serve several models. State on the
hosts belongs to one model: a codec's residuals, the centre at parameter servers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.jax.primitive import host_call
from farandole.job import context

if TYPE_CHECKING:
    from farandole.base.types import Array


# see ``Models._check_lasts``: session, step, count
_single: dict[Hashable, tuple[str, int, int]] = {}


class Models:
    """Distinguishes the models of one optimizer by a mark in each model's state."""

    def __init__(self) -> None:
        self._marks = itertools.count()
        self._places: dict[Hashable, int] = {}
        # session and last step of each
        self._exchanged: dict[Hashable, tuple[str, int]] = {}
        self._began = False  # whether a model has begun on this rank

    def mark(self) -> Any:
        """Return a new mark (int32). In a traced program it is a value of the program, so that each
        run gets its own.
        """
        return host_call(_Mark(self), [])[0]

    def next_mark(self) -> int:
        self._began = True
        return next(self._marks)

    def place(self, mark: Hashable) -> int:
        """Return the index of a model in the order of first exchanges. That order is equal on all
        ranks, while a rank may have created more models.
        """
        return self._places.setdefault(mark, len(self._places))

    @contextlib.contextmanager
    def once(self, mark: Hashable, step: int, label: str, lasts: bool = False) -> Iterator[None]:
        """Run the exchange of a model's step (1, 2 ...) once.

        ``label``: names the state outside of the model's that the exchange changes; empty if there
        is none. ``lasts``: whether that state outlives this optimizer.

        Raises ValueError for a repeated step, because the state already includes the step and its
        successors. (State that ``lasts`` may have been restored too.) Exceptions are the first
        step, because a program may run once to compile, and any step after another ``init()``,
        because elastic programs return to their commit. Also raises ValueError for the third
        optimizer in a row that takes only one step.
        """
        now = context.session_id(), step
        scope, last = self._exchanged.get(mark, ("", 0))
        if label and step > 1 and scope == now[0] and (step == last or (step < last and not lasts)):
            raise ValueError(
                f"step {step} of this model was exchanged twice, and its first result was dropped,"
                f" but {label} counts both. optax.MultiSteps around DistributedOptimizer drops all"
                " passes but the last: use DistributedOptimizer(optimizer,"
                " backward_passes_per_step=...) instead, or put MultiSteps inside. To return to"
                " an earlier state, create a new optimizer"
            )
        if label and not lasts and step:
            self._check_lasts(mark, *now, label)
        yield
        self._exchanged[mark] = now

    def _check_lasts(self, mark: Hashable, scope: str, step: int, label: str) -> None:
        """Raise ValueError for the third of three optimizers with one step each: the program
        creates an optimizer in each step, which loses its state. An optimizer that continues from a
        checkpoint takes many steps.
        """
        if self._began:
            return
        if self._exchanged:
            _single.pop(mark, None)
            return
        last_scope, last, count = _single.get(mark, ("", 0, 0))
        count = count + 1 if (last_scope, last) == (scope, step - 1) else 1
        _single[mark] = scope, step, count
        if count > 2:
            raise ValueError(
                f"steps {step - 2}, {step - 1} and {step} of this model used three different"
                f" optimizers, and each lost the state that {label} keeps between steps. Create"
                " DistributedOptimizer once, before the first step. optax.inject_hyperparams"
                " around it creates a new one in each update outside of jax.jit: put it inside,"
                " DistributedOptimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)),"
                " or jit the update"
            )


def names_in(place: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return names of a model's arrays that are unique among the optimizer's models."""
    return tuple(names) if place == 0 else tuple(f"{name} of model {place + 1}" for name in names)


class _Mark:
    """A new mark, as a host call. See ``primitive.HostCall``."""

    elementwise = None
    in_place = False

    def __init__(self, models: Models) -> None:
        self._models = models

    def __str__(self) -> str:
        return "the mark of a model"

    def shapes(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
    ) -> list[tuple[tuple[int, ...], Any]]:
        return [((), np.dtype(np.int32))]

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        return [np.array(self._models.next_mark(), dtype=np.int32)]
