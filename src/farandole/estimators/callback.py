"""Callbacks for Farandole's own training loops (Keras and Lightning have their own callbacks)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callback:
    """A callback that runs on every rank.

    ``model`` and ``optimizer`` are set before training. ``stop_training = True`` on any rank ends
    the training after the epoch, on all ranks.
    """

    model: Any = None
    optimizer: Any = None
    stop_training = False

    def on_train_begin(self) -> None: ...

    def on_epoch_begin(self, epoch: int) -> None:
        """Handle the start of an epoch. ``epoch`` counts from 0."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Handle the end of an epoch.

        ``logs``: the loss and metrics over all ranks; names of validation values begin with "val_".
        """

    def on_train_end(self) -> None: ...
