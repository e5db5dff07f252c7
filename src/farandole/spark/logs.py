"""Progress reports of a training loop, in the cell (or terminal) where the job was started."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from farandole.job.config import Placement
from farandole.job.report import messages

EVERY = 1.0  # seconds between reports to the status line


class LoopLog:
    """The counterpart of ``LogCallback`` for a plain loop: rank 0 reports, the other ranks are
    silent.

        log = LoopLog()
        for epoch in range(epochs):
            log.epoch_begin(epoch)
            for step, batch in enumerate(batches):
                ...
                log.batch_end(step, loss=loss.item())
            log.epoch_end(epoch, loss=mean_loss, accuracy=accuracy)

    ``per_batch_log``: also print a line for each batch. Keyword arguments are values to show.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        self.per_batch_log = per_batch_log
        self._speaks = Placement.from_env().rank == 0
        self._epoch: int | None = None
        self._steps = 0
        self._reported = (0, time.monotonic())  # steps, and the time of the report

    def epoch_begin(self, epoch: int) -> None:
        """Report the start of an epoch. ``epoch`` counts from 0."""
        self._epoch = epoch
        self._began = time.monotonic()
        self._steps = 0
        self._reported = (0, self._began)
        if self._speaks:
            messages.log(f"Epoch {epoch} begins")
            messages.progress(epoch=epoch)

    def batch_end(self, step: int, **numbers: Any) -> None:
        if not self._speaks:
            return
        self._steps += 1
        if self.per_batch_log:
            messages.log(f"Epoch {self._epoch} batch {step}{_shown(numbers)}")
        before, when = self._reported
        now = time.monotonic()
        if now - when >= EVERY:
            self._reported = (self._steps, now)
            messages.progress(
                epoch=self._epoch, step=step, rate=(self._steps - before) / (now - when)
            )

    def epoch_end(self, epoch: int, **numbers: Any) -> None:
        if not self._speaks:
            return
        seconds = time.monotonic() - self._began
        rate = f", {self._steps / seconds:.3g} steps/s" if self._steps and seconds > 0 else ""
        messages.log(f"Epoch {epoch} ended after {seconds:.1f} s{_shown(numbers)}{rate}")


def _shown(numbers: Mapping[str, Any]) -> str:
    return "".join(f", {name}={_number(value)}" for name, value in numbers.items())


def _number(value: Any) -> str:
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError):
        return str(value)
