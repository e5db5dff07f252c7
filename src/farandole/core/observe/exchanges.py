"""The amounts that the ranks of a job exchange: broadcast parameters, and the largest piece that
was reduced or gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from farandole.base.contracts import Observer
from farandole.base.exchange_names import is_of_optimizer
from farandole.base.types import Kind, Response

_FEW = 64  # numbers in one piece: a metric, not a gradient
# sparse gradients are gathered
_LEARNING = {Kind.ALLREDUCE, Kind.REDUCESCATTER, Kind.ALLGATHER, Kind.ALLTOALL}


class ExchangeCounts(Observer):
    """Observes all engines of this process, from ``init`` to ``shutdown``."""

    def __init__(self) -> None:
        self.broadcast = 0  # elements of parameters that all ranks were given
        self.largest = 0  # elements of the largest broadcast: one model, where there are several
        self.exchanged = 0  # elements of the largest piece that ranks put together
        self.by_program = 0  # ... that is not of a distributed optimizer
        self._before = 0  # elements of parameters broadcast before the ranks were initialized again
        self.skipped = False  # whatever is broadcast later
        # is what was broadcast still the same? None: unknown
        self.unchanged: list[Callable[[], bool | None]] = []

    def add_broadcast(self, elements: int) -> None:
        """Count a broadcast to all ranks. A negative number takes back elements of the last one
        that were no parameters.
        """
        self.broadcast += elements
        self.largest = max(min(self.largest, self.broadcast_in_all()), elements)

    def broadcast_in_all(self) -> int:
        """Return the elements of parameters that were broadcast in this session or before it."""
        return max(self.broadcast, self._before)

    def agreed(self, responses: Sequence[Response]) -> None:
        for response in responses:
            if response.kind in _LEARNING and not response.error:
                for request in response.requests:
                    if request.dtype.is_float:
                        size = prod(request.shape)
                        self.exchanged = max(self.exchanged, size)
                        if size > self.by_program and not is_of_optimizer(request.name):
                            self.by_program = size

    def continue_from(self, earlier: ExchangeCounts) -> None:
        """Count on from ``earlier``: the ranks were initialized again in the middle of training."""
        self._before = earlier.broadcast_in_all()
        self.largest = earlier.largest
        self.unchanged = list(earlier.unchanged)
        self.exchanged = max(self.exchanged, earlier.exchanged)
        self.by_program = max(self.by_program, earlier.by_program)
        self.skipped = self.skipped or earlier.skipped

    def no_gradients(self, size: int) -> bool:
        """Return whether ``size`` ranks began alike and have exchanged no gradients since. False if
        the user knows already.
        """
        enough = min(_FEW, self.largest / 10)
        return (
            size > 1
            and not self.skipped
            and self.broadcast_in_all() > 0
            and self.exchanged < enough
        )

    def predicted(self) -> bool:
        """Return whether the parameters are still those that were broadcast, as far as known."""
        known = {unchanged() for unchanged in self.unchanged}
        return True in known and False not in known
