"""SyncBatchNormalization for models of Keras 3 on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras

from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow.sync_batch_norm import Synchronized, check_not_fused


class SyncBatchNormalization(Synchronized, keras.layers.BatchNormalization):  # type: ignore[misc]
    """Takes the place of ``tf.keras.layers.BatchNormalization``, with its arguments. Ranks may have
    batches of different sizes, or none. Statistics are computed in double precision.

    ``fused`` may only be False (ValueError). ``process_set``: whose batches count; all ranks by
    default.

    Models with it cannot be compiled by XLA: Keras's ``jit_compile="auto"`` does not.
    """

    supports_jit = False

    def __init__(
        self, fused: bool | None = False, process_set: ProcessSet = WORLD, **kwargs: Any
    ) -> None:
        check_not_fused(fused)
        super().__init__(**kwargs)
        self.supports_jit = False
        self._process_set = process_set

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config())
