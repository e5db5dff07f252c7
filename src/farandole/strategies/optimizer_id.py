"""The identity of an optimizer, the same on all ranks."""

from __future__ import annotations

import contextlib
import weakref

from farandole.core.engine import Engine
from farandole.errors import NotInitializedError, RequestError
from farandole.job import context
from farandole.job.context import ProcessSet


class OptimizerId:
    """The number of an optimizer in its process set, from 1, assigned when it is created.

    Ranks create their optimizers in the same order, but may use them in different orders. The
    number survives another ``init()``, which restarts the numbering: the name then includes the
    session in which the optimizer was created. Live optimizers are not counted, because ranks
    collect garbage at different times. In an elastic job, ranks that start later create theirs in
    another session, so ``context.object_names`` counts. Raises the exceptions of
    ``context.engine``.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._set = process_set
        self._engine = context.engine(process_set)
        self._elastic = context.is_elastic()
        names = context.object_names()
        self._number = names.next() if self._elastic else f"{self._engine.numbers.next_optimizer()}"
        self._made_on = weakref.ref(self._engine)
        self._made_in = context.session_id()

    @property
    def engine(self) -> Engine:
        """The present engine of the process set, or the last one if the set was removed."""
        if self._engine.ended:
            with contextlib.suppress(RequestError, NotInitializedError):
                self._engine = context.engine(self._set)
        return self._engine

    def name_on(self, engine: Engine) -> str:
        """Return the optimizer's name on ``engine``, the present engine of its process set. The
        name is unique, and the same on all ranks.
        """
        if self._elastic or self._made_on() is engine:
            return self._number
        return f"{self._number}.of.{self._made_in}"
