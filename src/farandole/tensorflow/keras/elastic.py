"""``farandole.keras.elastic`` where Horovod has it; that for Keras 2 where it is asked for."""

from __future__ import annotations

from farandole.frontend.keras_callbacks import keras_2

if keras_2():
    from farandole.tensorflow.tf_keras.elastic import *  # noqa: F403
    from farandole.tensorflow.tf_keras.elastic import __all__ as _names
else:
    from farandole.keras.elastic import *  # type: ignore[assignment]  # noqa: F403
    from farandole.keras.elastic import __all__ as _names

__all__ = [*_names]
