"""Learning rates by epoch and batch, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


def warmup_factor(epoch: float, size: int, warmup_epochs: float) -> float:
    """Return the factor of the learning rate of ``size`` ranks during warm-up: from 1 / size up to
    1.

    ``epoch`` is fractional, and ``warmup_epochs`` may be. Goyal et al., "Accurate, large minibatch
    SGD: training ImageNet in 1 hour" (2017).
    """
    return min(1.0, (epoch * (size - 1) / warmup_epochs + 1) / size)


def multiplier_of(
    multiplier: float | Callable[[float], float], start_epoch: int
) -> Callable[[float], float]:
    """Return ``multiplier`` as a function of the epoch: a number m becomes m ** (epoch -
    start_epoch).
    """
    if callable(multiplier):
        return multiplier
    return lambda epoch: multiplier ** (epoch - start_epoch)


class Schedule(NamedTuple):
    """The times at which a learning rate changes: the first batch of each epoch with ``staircase``,
    otherwise every batch.
    """

    initial_lr: float
    multiplier: Callable[[float], float]
    start_epoch: int = 0
    end_epoch: int | None = None
    staircase: bool = True

    def rate(self, epoch: int, batch: int, steps_per_epoch: int) -> float | None:
        """Return the learning rate from this batch on; None if it does not change.
        ``steps_per_epoch`` is only used without staircase.
        """
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return None
        if self.staircase:
            return self.initial_lr * self.multiplier(epoch) if batch == 0 else None
        return self.initial_lr * self.multiplier(epoch + batch / steps_per_epoch)
