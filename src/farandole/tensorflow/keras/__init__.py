"""``farandole.keras`` where Horovod has it: ``import farandole.tensorflow.keras as hvd``.

With TF_USE_LEGACY_KERAS=1, when ``tf.keras`` is Keras 2, it is ``farandole.tensorflow.tf_keras``.
"""

from __future__ import annotations

from farandole.frontend.keras_callbacks import keras_2

if keras_2():
    from farandole.tensorflow.tf_keras import *  # noqa: F403
    from farandole.tensorflow.tf_keras import __all__ as _names
else:
    from farandole.keras import *  # type: ignore[no-redef,assignment]  # noqa: F403
    from farandole.keras import __all__ as _names

__all__ = [*_names]
