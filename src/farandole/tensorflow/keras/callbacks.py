"""``farandole.keras.callbacks`` where Horovod has it; those for Keras 2 where that is asked for."""

from __future__ import annotations

from farandole.frontend.keras_callbacks import keras_2

if keras_2():
    from farandole.tensorflow.tf_keras.callbacks import *  # noqa: F403
    from farandole.tensorflow.tf_keras.callbacks import __all__ as _names
else:
    from farandole.keras.callbacks import *  # noqa: F403
    from farandole.keras.callbacks import __all__ as _names

__all__ = [*_names]
