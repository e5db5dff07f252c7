"""SyncBatchNormalization for Keras 2 models."""

from __future__ import annotations

from typing import Any

import tf_keras

from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow.sync_batch_norm import Synchronized, check_not_fused


class SyncBatchNormalization(
    Synchronized,
    tf_keras.layers.BatchNormalization,  # type: ignore[misc]
):
    """``farandole.tensorflow.SyncBatchNormalization`` for Keras 2 models."""

    def __init__(
        self, fused: bool | None = False, process_set: ProcessSet = WORLD, **kwargs: Any
    ) -> None:
        check_not_fused(fused)
        super().__init__(fused=False, **kwargs)
        self._process_set = process_set
