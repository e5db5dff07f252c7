"""The models that one optimizer steps. Its functions have no state of their own, so one may serve several; what ranks
keep on their hosts is of one of them: a codec's residuals, the centre of parameter servers."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.jax.primitive import host_call

if TYPE_CHECKING:
    from farandole.types import Array


class Models:
    """Tells models of one optimizer apart, by a mark in the state of each."""

    def __init__(self) -> None:
        self._marks = itertools.count()
        self._places: dict[Hashable, int] = {}

    def mark(self) -> Any:
        """A new one, int32: a value of the program where that is traced, so that each of its runs has its own."""
        return host_call(_Mark(self), [])[0]

    def next_mark(self) -> int:
        return next(self._marks)

    def place(self, mark: Hashable) -> int:
        """The place of a model in the order of their first exchanges: the same on all ranks, which exchange in the same
        order, while one of them may have made more models."""
        return self._places.setdefault(mark, len(self._places))


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

    def shapes(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
        return [((), np.dtype(np.int32))]

    def run(self, arrays: Sequence[Array], jitted: bool) -> Sequence[Array]:
        return [np.array(self._models.next_mark(), dtype=np.int32)]
