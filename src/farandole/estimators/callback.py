"""What a user's object hears of a training loop that is ours (Keras and Lightning have callbacks of
their own).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callback:
    """On every rank. ``model`` and ``optimizer`` are set before training; ``stop_training = True``
    on any rank ends it after the epoch, on all.
    """

    model: Any = None
    optimizer: Any = None
    stop_training = False

    def on_train_begin(self) -> None: ...

    def on_epoch_begin(self, epoch: int) -> None:
        """``epoch`` counts from 0."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """``logs``: numbers over all ranks: loss, metrics, and those of validation with "val_"
        before their names.
        """

    def on_train_end(self) -> None: ...
