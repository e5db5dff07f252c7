"""Whether a job that began alike also learned together.

A program that gives all ranks the same parameters and then forgets to exchange gradients trains
unrelated models, and looks well. Metrics are a few numbers; gradients are as many as the
parameters. So a job in which parameters were broadcast, and nothing but a few numbers was reduced
afterwards, is told so at its end. If the parameters are seen to be what they were, it only
predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from farandole.base.contracts import Observer
from farandole.base.types import Kind, Response

_FEW = 64  # numbers in one piece: a metric, not a gradient
# how the names begin of what distributed optimizers exchange
_OURS = ("optimizer.", "DistributedOptimizer.")
# sparse gradients are gathered
_LEARNING = {Kind.ALLREDUCE, Kind.REDUCESCATTER, Kind.ALLGATHER, Kind.ALLTOALL}


def outcome(size: int, digests: Sequence[int] | None) -> str:
    """What ``size`` ranks train that exchange nothing. ``digests``: of the weights of each after as
    many steps.
    """
    if digests is None:
        return f"{size} models apart, or the same one {size} times if all read the same data"
    if len(set(digests)) == 1:
        return f"the same model on the same data, and do the same work {size} times"
    return f"{size} unrelated models"


class GradientCheck(Observer):
    """Observes all engines of this process, from ``init`` to ``shutdown``."""

    def __init__(self) -> None:
        self.broadcast = 0  # elements of parameters that all ranks were given
        self.largest = 0  # of them, those given at once: of one model, where there are several
        self.exchanged = 0  # elements of the largest piece that ranks put together
        self.by_program = 0  # ... that is not of a distributed optimizer
        self._before = 0  # elements of parameters that they were given before they began anew
        self.skipped = False  # whatever is broadcast later
        # is what was broadcast still the same? None: unknown
        self.unchanged: list[Callable[[], bool | None]] = []

    def begun(self, elements: int) -> None:
        """All ranks were given so many at once. Less than none: that many of the last were none of
        parameters.
        """
        self.broadcast += elements
        self.largest = max(min(self.largest, self.begun_with()), elements)

    def begun_with(self) -> int:
        """How many elements of parameters all ranks have had alike, in this stay or before it."""
        return max(self.broadcast, self._before)

    def agreed(self, responses: Sequence[Response]) -> None:
        for response in responses:
            if response.kind in _LEARNING and not response.error:
                for request in response.requests:
                    if request.dtype.is_float:
                        size = prod(request.shape)
                        self.exchanged = max(self.exchanged, size)
                        if size > self.by_program and not request.name.startswith(_OURS):
                            self.by_program = size

    def go_on(self, earlier: GradientCheck) -> None:
        """Be that of a job that begins anew, in the middle of training: what ranks did before
        counts as well.
        """
        self._before = earlier.begun_with()
        self.largest = earlier.largest
        self.unchanged = list(earlier.unchanged)
        self.exchanged = max(self.exchanged, earlier.exchanged)
        self.by_program = max(self.by_program, earlier.by_program)
        self.skipped = self.skipped or earlier.skipped

    def missing(self, size: int) -> bool:
        """Did ``size`` ranks begin alike, and exchange no gradients since? Not if the user was told
        already.
        """
        enough = min(_FEW, self.largest / 10)
        return size > 1 and not self.skipped and self.begun_with() > 0 and self.exchanged < enough

    def _predicted(self) -> bool:
        """Are the parameters what they were when they were broadcast, as far as anybody knows?"""
        known = {unchanged() for unchanged in self.unchanged}
        return True in known and False not in known

    def verdict(self, size: int) -> str:
        """What to tell the user of a job of ``size`` ranks; empty if there is nothing to say."""
        if not self.missing(size) or self._predicted():
            return ""
        what = f"at most {self.exchanged} numbers at a time" if self.exchanged else "nothing"
        return (
            f"the {size} ranks of this job began with the same {self.begun_with():,} parameters and"
            f" then exchanged {what}: no gradients. If it trains, it trained {outcome(size, None)}:"
            " let gradients pass through hvd's DistributedOptimizer (or DistributedGradientTape,"
            " DistributedTrainer, hvd.allreduce). If it only predicts, all is well"
        )
