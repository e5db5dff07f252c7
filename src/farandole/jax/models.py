"""The models that one optimizer steps. Its functions have no state of their own, so one may serve
several; what ranks keep on their hosts is of one of them: a codec's residuals, the centre of
parameter servers.
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


# see ``Models._check_lasts``: the stay in the job, step, how many
_single: dict[Hashable, tuple[str, int, int]] = {}


class Models:
    """Tells models of one optimizer apart, by a mark in the state of each."""

    def __init__(self) -> None:
        self._marks = itertools.count()
        self._places: dict[Hashable, int] = {}
        # the last step of each, and the stay in the job
        self._exchanged: dict[Hashable, tuple[str, int]] = {}
        self._began = False  # has a model begun here?

    def mark(self) -> Any:
        """A new one, int32: a value of the program where that is traced, so that each of its runs
        has its own.
        """
        return host_call(_Mark(self), [])[0]

    def next_mark(self) -> int:
        self._began = True
        return next(self._marks)

    def place(self, mark: Hashable) -> int:
        """The place of a model in the order of their first exchanges: the same on all ranks, which
        exchange in the same order, while one of them may have made more models.
        """
        return self._places.setdefault(mark, len(self._places))

    @contextlib.contextmanager
    def once(self, mark: Hashable, step: int, label: str, lasts: bool = False) -> Iterator[None]:
        """Run the exchange of a model's step (1, 2 ...) once. ``label``: of state outside of the
        model's that the exchange changes; empty if there is none. ``lasts``: that state outlives
        this optimizer.

        Raises ValueError for a step that is computed anew: what is remembered of the first time,
        and of steps after it, is wrong then. (What ``lasts`` may have been taken back, too.) The
        first step may be, for a program may be run once to compile it; any may be after ``init()``
        anew, as elastic programs go back to what they committed. And for the third optimizer in a
        row that makes one step each.
        """
        now = context.session_id(), step
        scope, last = self._exchanged.get(mark, ("", 0))
        if label and step > 1 and scope == now[0] and (step == last or (step < last and not lasts)):
            raise ValueError(
                f"step {step} of this model was exchanged before, and its result was dropped, but"
                f" {label} counts both times. optax.MultiSteps around DistributedOptimizer drops"
                " all passes but the last one: use DistributedOptimizer(optimizer,"
                " backward_passes_per_step=...) instead, or put MultiSteps inside. To go back to"
                " an earlier state, make a new optimizer"
            )
        if label and not lasts and step:
            self._check_lasts(mark, *now, label)
        yield
        self._exchanged[mark] = now

    def _check_lasts(self, mark: Hashable, scope: str, step: int, label: str) -> None:
        """Optimizers that no model began with may go on from a checkpoint, each with many steps.
        Three with a step each are one that is made anew each time, and what it should keep is lost.
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
                f"steps {step - 2}, {step - 1} and {step} of this model were made by three"
                f" optimizers, and {label} keeps something from step to step, which each of them"
                " lost: make DistributedOptimizer once, before the first step."
                " optax.inject_hyperparams around it makes a new one in each update outside of"
                " jax.jit: put it inside,"
                " DistributedOptimizer(optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)), or"
                " jit the update"
            )


def names_in(place: int, names: Sequence[str]) -> tuple[str, ...]:
    """The names of a model's arrays: no other model of the optimizer has them."""
    return tuple(names) if place == 0 else tuple(f"{name} of model {place + 1}" for name in names)


class _Mark:
    """See ``primitive.HostCall``."""

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
