"""Loading models of Keras 2 so that they go on training together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tf_keras

from farandole import context
from farandole.frontend.compression import NoneCompressor
from farandole.keras.tf_keras.optimizer import DistributedOptimizer, state_of


def load_model(
    filepath: Any, custom_optimizers: Sequence[Any] | None = None, custom_objects: Any = None,
    compression: Any = NoneCompressor, legacy_opts: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """``tf_keras.models.load_model``, with the model's optimizer distributed, and its state kept.

    Files hold the optimizer that was wrapped, so Keras alone loads them, too. ``custom_optimizers``: optimizer classes
    of your own. ``custom_objects`` may make distributed ones, whose options count. ``options`` go to Keras.
    ``legacy_opts``, Horovod's word for what the file holds old optimizers, is not needed: the file tells.
    """
    context.size()
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = tf_keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})}, **options)
    if getattr(model, "optimizer", None) is not None and state_of(model.optimizer) is None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
