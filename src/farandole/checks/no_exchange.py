"""Detection of ranks that train with a plain optimizer and exchange no gradients, in frameworks
with countable training steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.checks.unwrapped_optimizer import (
    MOMENT,
    STEPS,
    enough_for_gradients,
    report_unwrapped,
    stored_digests,
)
from farandole.core.observe.exchanges import ExchangeCounts
from farandole.job import context


class NoExchange:
    """Watches the first ``STEPS`` steps of a training, or its first epoch if that is shorter.

    ``digest_of``: returns a digest of a model's trained weights. ``size_of``: returns their number
    of elements. ``did``: the training, for messages ("model.fit ran"). ``cure``: the change to
    make.
    """

    def __init__(
        self,
        digest_of: Callable[[Any], int],
        size_of: Callable[[Any], int],
        did: str = "model.fit ran",
        cure: str = "compile with hvd.DistributedOptimizer(optimizer)",
    ) -> None:
        self._digest_of, self._size_of = digest_of, size_of
        self._did, self._cure = did, cure
        self._counts: ExchangeCounts | None = None  # the counts of the watched fit
        self._digest = 0
        self._steps = 0
        self._end = ""  # for the message: the completed steps
        self.models: int | None = None  # different models of the ranks, on rank 0 after a report

    def begin(self) -> None:
        if context.settings().check != "off" and not context.exchange_counts().skipped:
            self._counts = ExchangeCounts()
            context.engine().observers.add(self._counts)

    def step_ended(self, model: Callable[[], Any]) -> None:
        """Count a step. ``model``: returns the model with its current weights."""
        if self._counts is None:
            return
        self._steps += 1
        if self._steps >= STEPS:  # again after it, because other ranks may be later
            self._end = f"{STEPS} steps"
            self._compare(model(), 0.0)

    def epoch_ended(self, model: Callable[[], Any]) -> None:
        if self._counts is not None:
            self._end = self._end or "an epoch"
            self._compare(model(), MOMENT)
        self.end()

    def end(self) -> None:
        """End the watch. May be called again."""
        if self._counts is not None:
            context.engine().observers.remove(self._counts)
            self._counts = None

    def _compare(self, model: Any, seconds: float) -> None:
        assert self._counts is not None
        if self._counts.exchanged >= enough_for_gradients(self._size_of(model)):
            self.end()
            return
        self._digest = self._digest or self._digest_of(model)
        found = stored_digests(self._digest, seconds)
        if context.rank() and not seconds:
            self.end()
        elif found is not None or seconds or context.store() is None:
            optimizer = getattr(model, "optimizer", None)
            with_it = f" with {type(optimizer).__name__}" if optimizer is not None else ""
            self.end()
            self.models = None if found is None else len(set(found))
            report_unwrapped(f"{self._did} {self._end}{with_it}", found, self._cure)
