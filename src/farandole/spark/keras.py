"""``LogCallback``: a Keras callback whose lines appear in the notebook's cell during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.core.api.keras_version import keras_2
from farandole.spark.logs import LoopLog

if keras_2():
    from tf_keras.callbacks import Callback
else:
    from keras.callbacks import Callback


class LogCallback(Callback):  # type: ignore[misc]
    """Report the start and the results of each epoch on rank 0; with ``per_batch_log`` also of each
    batch.

    Use it as ``model.fit(..., callbacks=[LogCallback()])``. Averages over the ranks are shown if
    the callback that averages metrics comes before it.
    """

    def __init__(self, per_batch_log: bool = False) -> None:
        super().__init__()
        self._log = LoopLog(per_batch_log)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._log.epoch_begin(epoch)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._log.batch_end(batch, **(dict(logs or {}) if self._log.per_batch_log else {}))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._log.epoch_end(epoch, **dict(logs or {}))
