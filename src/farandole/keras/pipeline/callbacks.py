"""The callbacks that ``Pipeline.fit`` puts around the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from farandole.keras.pipeline.messages import Stages
from farandole.keras.pooling import any_rank


class PipelineCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """One that is there for the stages of a pipeline."""


class TellLogs(PipelineCallback):
    """Before the user's: what the last stage knows of an epoch is what all callbacks see."""

    def __init__(self, stages: Stages, end: Callable[[], None]) -> None:
        """``end``: to be called when a stage has no more batches."""
        super().__init__()
        self._stages, self._end = stages, end

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = {} if logs is None else logs
        self._end()
        received = self._stages.from_last(dict(logs))
        logs.clear()
        logs.update(received)


class StopTogether(PipelineCallback):
    """After the user's: if one rank wants to stop, all do."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = any_rank(bool(self.model.stop_training))
