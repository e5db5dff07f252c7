"""The identity of an optimizer, by which the ranks recognise it."""

from __future__ import annotations

import contextlib
import weakref

from farandole.core.engine import Engine
from farandole.errors import NotInitializedError, RequestError
from farandole.job import context
from farandole.job.context import ProcessSet


class OptimizerId:
    """The number of an optimizer among those of its process set, from 1, taken when it is made.

    Ranks make their optimizers in one order, but may not use them in one. The number stays the same
    after another ``init()``, where numbers begin again: its name then includes the session in which
    it was made. Nothing here depends on which optimizers live: ranks drop one at different times,
    as their garbage is collected. Raises the exceptions of ``context.engine``.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._set = process_set
        self._engine = context.engine(process_set)
        self._number = self._engine.numbers.next_optimizer()
        self._made_on = weakref.ref(self._engine)
        self._made_in = context.session_id()

    @property
    def engine(self) -> Engine:
        """The present engine of the process set; the last one if the set is gone."""
        if self._engine.ended:
            with contextlib.suppress(RequestError, NotInitializedError):
                self._engine = context.engine(self._set)
        return self._engine

    def name_on(self, engine: Engine) -> str:
        """Return the optimizer's name on ``engine``, the present one of its process set. It is
        unique, and the same on all ranks.
        """
        if self._made_on() is engine:
            return f"{self._number}"
        return f"{self._number}.of.{self._made_in}"
