"""The callbacks that ``Pipeline.fit`` puts around the user's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from farandole import context
from farandole.frontend.objects import allgather_object
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
        told = self._stages.from_last(dict(logs))
        logs.clear()
        logs.update(told)


class StopTogether(PipelineCallback):
    """After the user's: if one rank wants to stop, all do."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = any_rank(bool(self.model.stop_training))


@contextmanager
def written_once(users: Sequence[Any]) -> Iterator[None]:
    """Inside, the CSVLoggers of several ranks that have one path are written by the first of them. Collective."""
    loggers = [callback for callback in users if isinstance(callback, keras.callbacks.CSVLogger)]
    paths = allgather_object([str(logger.filename) for logger in loggers])
    earlier = {path for theirs in paths[: context.rank()] for path in theirs}
    silent = [(logger, logger.filename) for logger in loggers if str(logger.filename) in earlier]
    for logger, _ in silent:
        logger.filename = os.devnull
    try:
        yield
    finally:
        for logger, path in silent:
            logger.filename = path
