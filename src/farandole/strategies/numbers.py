"""The numbers by which ranks know which optimizer is which."""

from __future__ import annotations

import weakref

from farandole import context
from farandole.context import ProcessSet
from farandole.engine import Engine


class OptimizerNumber:
    """The number of an optimizer among those of its process set, from 1, taken when it is made: ranks make their
    optimizers in one order, but may not use them in one. After another ``init()``, the first of them that is used has
    all that are left numbered anew, in the order that they had.

    ``engine``: the one on which it has that number. Raises what ``context.engine`` raises.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self.engine = context.engine(process_set)
        self._number = self.engine.numbers.next_optimizer()
        _made.add(self)

    def on(self, engine: Engine) -> int:
        """The number among those of ``engine``, which is that of the same process set, today."""
        if engine is not self.engine:
            old = self.engine
            for one in sorted((one for one in _made if one.engine is old), key=lambda one: one._number):
                one.engine, one._number = engine, engine.numbers.next_optimizer()
        return self._number


_made: weakref.WeakSet[OptimizerNumber] = weakref.WeakSet()
