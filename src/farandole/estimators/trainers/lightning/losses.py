"""The losses of this rank's batches, recorded in addition to Lightning's own."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from farandole.estimators.trainers.base import sum_over_ranks


class Losses:
    """The losses of this rank's batches in an epoch: their sum over rows, the rows with a loss, and
    all rows.

    A batch is a dict of the user's columns only, so its share and number of counted rows are passed
    separately.
    """

    def __init__(self) -> None:
        self.coming: deque[tuple[float, int]] = deque()  # prefetched batches
        self.share = 1.0
        self.of_batch = 0
        self.begin()

    def next_batch(self) -> None:
        self.share, self.of_batch = self.coming.popleft()

    def begin(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)
        self.counted = 0
        self.rows = 0

    def add(self, loss: Any) -> None:
        rows = self.of_batch
        self.rows += rows
        if loss is not None and rows:
            self.total = self.total + loss.detach().double().cpu() * rows
            self.counted += rows

    def mean(self) -> float | None:
        """Return the mean over the rows of all ranks; None without losses, as for a module with
        manual optimization.
        """
        total, counted = sum_over_ranks([float(self.total), self.counted])
        return total / counted if counted else None
