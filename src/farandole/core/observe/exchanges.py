"""Counts of the elements that ranks exchange: broadcast parameters, and the largest reduced or
gathered tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from farandole.base.contracts import Observer
from farandole.base.exchange_names import is_of_optimizer
from farandole.base.types import Kind, Response

_FEW = 64  # elements; smaller tensors count as metrics, not gradients
# sparse gradients are gathered
_LEARNING = {Kind.ALLREDUCE, Kind.REDUCESCATTER, Kind.ALLGATHER, Kind.ALLTOALL}


class ExchangeCounts(Observer):
    """Observes all engines of this process, from ``init`` to ``shutdown``."""

    def __init__(self) -> None:
        self.broadcast = 0  # elements of parameters broadcast to all ranks
        self.largest = 0  # elements of the largest broadcast: one of several models
        self.exchanged = 0  # elements of the largest combined tensor
        self.by_program = 0  # ... outside of distributed optimizers
        self._before = 0  # elements of parameters broadcast before the ranks were initialized again
        self.skipped = False  # the check for exchanged gradients is disabled
        # functions that return whether the broadcast parameters are unchanged; None: unknown
        self.unchanged: list[Callable[[], bool | None]] = []

    def add_broadcast(self, elements: int) -> None:
        """Count a broadcast to all ranks. A negative number subtracts non-parameters of the last
        broadcast.
        """
        self.broadcast += elements
        self.largest = max(min(self.largest, self.broadcast_in_all()), elements)

    def broadcast_in_all(self) -> int:
        """Return the elements of parameters broadcast in this session or before it."""
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
        """Continue the counts of ``earlier``, when the ranks were initialized again during
        training.
        """
        self._before = earlier.broadcast_in_all()
        self.largest = earlier.largest
        self.unchanged = list(earlier.unchanged)
        self.exchanged = max(self.exchanged, earlier.exchanged)
        self.by_program = max(self.by_program, earlier.by_program)
        self.skipped = self.skipped or earlier.skipped

    def no_gradients(self, size: int) -> bool:
        """Return whether ``size`` ranks received the same parameters and have exchanged no
        gradients since; False if the check is disabled.
        """
        enough = min(_FEW, self.largest / 10)
        return (
            size > 1
            and not self.skipped
            and self.broadcast_in_all() > 0
            and self.exchanged < enough
        )

    def predicted(self) -> bool:
        """Return whether the parameters are unchanged since their broadcast, as far as known."""
        known = {unchanged() for unchanged in self.unchanged}
        return True in known and False not in known
