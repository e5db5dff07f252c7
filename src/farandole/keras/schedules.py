"""Learning rates by epoch and batch, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


def warmup_factor(epoch: float, size: int, warmup_epochs: float) -> float:
    """The factor of the learning rate of ``size`` ranks while it warms up: from 1 / size to 1, and
    no further.

    ``epoch`` is fractional, and ``warmup_epochs`` may be. Goyal et al., "Accurate, large minibatch
    SGD: training ImageNet in 1 hour" (2017).
    """
    return min(1.0, (epoch * (size - 1) / warmup_epochs + 1) / size)


def multiplier_of(
    multiplier: float | Callable[[float], float], start_epoch: int
) -> Callable[[float], float]:
    """``multiplier`` as a function of the epoch: a number m is m ** (epoch - start_epoch)."""
    if callable(multiplier):
        return multiplier
    return lambda epoch: multiplier ** (epoch - start_epoch)


class Schedule(NamedTuple):
    """When a learning rate changes: ``staircase``, at the first batch of each epoch; else at every
    batch.
    """

    initial_lr: float
    multiplier: Callable[[float], float]
    start_epoch: int = 0
    end_epoch: int | None = None
    staircase: bool = True

    def rate(self, epoch: int, batch: int, steps_per_epoch: int) -> float | None:
        """The learning rate from this batch on; None where it stays. ``steps_per_epoch`` counts
        without staircase.
        """
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return None
        if self.staircase:
            return self.initial_lr * self.multiplier(epoch) if batch == 0 else None
        return self.initial_lr * self.multiplier(epoch + batch / steps_per_epoch)
