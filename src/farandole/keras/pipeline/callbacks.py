"""The callbacks that ``Pipeline.fit`` puts around the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from farandole.keras.pipeline.messages import Stages
from farandole.keras.pooling import any_rank


class PipelineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Base class of callbacks that serve the stages of a pipeline."""


class ShareLogs(PipelineCallback):
    """Pass the last stage's logs of an epoch to all callbacks; it runs before the user's."""

    def __init__(self, stages: Stages, end: Callable[[], None]) -> None:
        """``end``: called when a stage has no more batches."""
        super().__init__()
        self._stages, self._end = stages, end

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs
        self._end()
        received = self._stages.from_last(dict(logs))
        logs.clear()
        logs.update(received)


class StopTogether(PipelineCallback):
    """Stop all ranks if one stops; it runs after the user's callbacks."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = any_rank(bool(self.model.stop_training))
