"""The numbers by which ranks know which optimizer is which."""

from __future__ import annotations

import contextlib
import weakref

from farandole.core.engine import Engine
from farandole.errors import NotInitializedError, RequestError
from farandole.job import context
from farandole.job.context import ProcessSet


class OptimizerId:
    """The number of an optimizer among those of its process set, from 1, taken when it is made:
    ranks make their optimizers in one order, but may not use them in one. It stays the same after
    another ``init()``, where numbers begin again: its name then tells in which stay it was made.

    Nothing here depends on which optimizers live: ranks drop one at different times, as their
    garbage is collected. Raises what ``context.engine`` raises.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._set, self._engine = process_set, context.engine(process_set)
        self._number = self._engine.numbers.next_optimizer()
        self._made_on, self._made_in = weakref.ref(self._engine), context.session_id()

    @property
    def engine(self) -> Engine:
        """That of its process set today; of a set that is gone, the last one."""
        if self._engine.ended:
            with contextlib.suppress(RequestError, NotInitializedError):
                self._engine = context.engine(self._set)
        return self._engine

    def name_on(self, engine: Engine) -> str:
        """The same on all ranks, and no other optimizer's, on ``engine``: that of its process set
        today.
        """
        return (
            f"{self._number}" if self._made_on() is engine else f"{self._number}.of.{self._made_in}"
        )
