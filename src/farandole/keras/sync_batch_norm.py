"""SyncBatchNormalization for Keras 3 models on TensorFlow."""

from __future__ import annotations

from typing import Any

import keras

from farandole.core.api.ops import WORLD
from farandole.job.context import ProcessSet
from farandole.tensorflow.sync_batch_norm import Synchronized, check_not_fused


class SyncBatchNormalization(Synchronized, keras.layers.BatchNormalization):  # type: ignore[misc]
    """A replacement for ``tf.keras.layers.BatchNormalization``, with its arguments. Ranks may have
    batches of different sizes, or none. Statistics are computed in double precision.

    ``fused`` may only be False (otherwise ValueError). ``process_set``: the ranks whose batches
    count; all ranks by default.

    XLA cannot compile models with this layer; Keras's ``jit_compile="auto"`` does not try.
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
